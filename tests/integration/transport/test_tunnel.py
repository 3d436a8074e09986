"""Tunnels to real hosts, and gRPC through them (K28, K47, K48, K65, K66; BEHAVIOUR I.3 rows 15-19, 40, 46, 49)."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
import pytest

from airflow_provider.runtime.transport.ssh import process
from airflow_provider.runtime.transport.ssh.channel import TunnelChannel
from airflow_provider.runtime.transport.ssh.errors import SshRefused, SshUnreachable
from airflow_provider.runtime.transport.ssh.links import open_link
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import NOISY_BASHRC, HostSettings
from tests.integration.transport.rig import (
    PIECE,
    echo,
    exhaust,
    hurried,
    logins,
    on_disk,
    poured,
    relay_command,
    serving,
    stranger,
    target_of,
    until,
)

Hosts = Callable[[int], list[Host]]
MakeHost = Callable[[HostSettings], Host]

SOCKET = "/root/s.sock"
NO_RELAY = "exit 7"


def near_ends() -> list[Path]:
    directory = process.ssh_side().tunnels._directory
    return sorted(directory.path.iterdir()) if directory is not None else []


async def test_calls_go_through_and_back(hosts: Hosts, client_keys: ClientKeys) -> None:
    host = hosts(1)[0]
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target_of(host, client_keys.ed25519), socket=SOCKET, relay=NO_RELAY)
        assert await echo(tunnel.channel, b"hello") == b"hello"
        await tunnel.close()
        await tunnel.close()


async def test_all_who_use_an_agent_share_one_channel_of_their_loop(
    host: Host, client_keys: ClientKeys
) -> None:
    """Row 19, K16: not a channel for every user, let alone for every call."""
    target = target_of(host, client_keys.ed25519)
    async with serving(host, SOCKET):
        users = await asyncio.gather(
            *(TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY) for _ in range(200))
        )
        await asyncio.gather(*(echo(user.channel) for user in users))
        assert len({id(user.channel) for user in users}) == 1
        for user in users[1:]:
            await user.close()
        assert await echo(users[0].channel, b"still") == b"still"
        await users[0].close()
        assert logins(host) == 1


def test_each_loop_has_a_channel_of_its_own_and_all_share_the_tunnel(
    host: Host, client_keys: ClientKeys
) -> None:
    """K47: asyncio.run twice around our client, without closing the first time."""
    target = target_of(host, client_keys.ed25519)

    async def call() -> bytes:
        async with serving(host, SOCKET):
            tunnel = await TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY)
            return await echo(tunnel.channel)

    assert asyncio.run(call()) == b"hello"
    assert asyncio.run(call()) == b"hello"
    assert logins(host) == 1


async def test_two_agents_of_one_host_are_told_apart(hosts: Hosts, client_keys: ClientKeys) -> None:
    """Row 17: a tunnel leads to the socket that it was opened for, on whatever connection."""
    host = hosts(1)[0]
    target = target_of(host, client_keys.ed25519)
    async with serving(host, SOCKET):
        there = await TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY)
        absent = await TunnelChannel.open(target, socket="/root/other.sock", relay=NO_RELAY)
        assert await echo(there.channel) == b"hello"
        with pytest.raises(grpc.RpcError):
            await echo(absent.channel)
        await there.close()
        await absent.close()


async def test_only_our_account_can_get_at_a_near_end_and_there_is_no_port(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    """Rows 17, 18, 49, K48: no port to be guessed, taken over or mistaken, and nobody else can connect."""
    host = hosts(1)[0]
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target_of(host, client_keys.ed25519), socket=SOCKET, relay=NO_RELAY)
        await echo(tunnel.channel)
        (near,) = near_ends()
        assert stat.S_IMODE(near.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(near.stat().st_mode) == 0o600
        attempt = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        other = await asyncio.create_subprocess_exec(
            *("/usr/bin/python3", "-c", attempt, str(near)), user=65534, stderr=asyncio.subprocess.PIPE
        )
        assert b"PermissionError" in (await other.communicate())[1]
        assert not [c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
        await tunnel.close()
        await until(lambda: near_ends() == [], "the near end is left")


async def test_an_agent_that_comes_back_is_reached_without_opening_anew(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    """K48: agent dead although SSH works, then started again."""
    host = hosts(1)[0]
    target = target_of(host, client_keys.ed25519)
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY)
        await echo(tunnel.channel)
    begun = time.monotonic()
    with pytest.raises(grpc.RpcError) as refused:
        await echo(tunnel.channel)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 1
    async with serving(host, SOCKET):
        assert await _echo_within(tunnel, 5) == b"hello"
    await tunnel.close()


async def _echo_within(tunnel: TunnelChannel, seconds: float) -> bytes:
    """What a client does that tries until it succeeds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await echo(tunnel.channel)
        except grpc.RpcError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def test_a_host_that_was_rebooted_is_reached_through_the_same_channel(
    host: Host, client_keys: ClientKeys
) -> None:
    """K48, K66: the listener stays while SSH connects again below it."""
    target = target_of(host, client_keys.ed25519)
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY)
        await echo(tunnel.channel)
        drops = tunnel.channel.unary_stream("/test/Drip")(b"", timeout=60)
        await drops.read()
        await asyncio.to_thread(host.power_off)
        begun = time.monotonic()
        with pytest.raises(grpc.RpcError):
            await exhaust(drops)
        assert time.monotonic() - begun < 1
        await asyncio.to_thread(host.start)
        assert await _echo_within(tunnel, 10) == b"hello"
        assert logins(host) == 2
        await tunnel.close()


async def test_a_jump_host_that_restarts_leaves_the_channel_usable(
    hosts: Hosts, host: Host, client_keys: ClientKeys
) -> None:
    """K66: bastion restarts mid-job."""
    last = hosts(1)[0]
    target = target_of(last, client_keys.ed25519, jump=target_of(host, client_keys.ed25519))
    async with serving(last, SOCKET):
        tunnel = await TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY)
        await echo(tunnel.channel)
        await asyncio.to_thread(host.reboot)
        assert await _echo_within(tunnel, 10) == b"hello"
        await tunnel.close()


async def test_where_forwarding_is_forbidden_a_relay_on_the_host_does_it(
    make_host: MakeHost, client_keys: ClientKeys
) -> None:
    host = make_host(HostSettings(sshd_options={"AllowStreamLocalForwarding": "no"}))
    target = target_of(host, client_keys.ed25519)
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target, socket=SOCKET, relay=relay_command(host, SOCKET))
        assert await echo(tunnel.channel) == b"hello"
        assert await poured(tunnel.channel, 20) == 20 * PIECE
        again = await TunnelChannel.open(target, socket="/root/none.sock", relay=NO_RELAY)
        with pytest.raises(grpc.RpcError):
            await echo(again.channel)
        assert host.sshd_log.count("refused streamlocal port forward") == 1, "it is tried once"
        await tunnel.close()
        await again.close()


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash"])
async def test_what_a_login_shell_prints_is_not_mistaken_for_the_agent(
    make_host: MakeHost, client_keys: ClientKeys, shell: str
) -> None:
    """Row 46: a start-up file that speaks, before the relay does."""
    settings = HostSettings(
        shell=shell,
        home_files={".bashrc": NOISY_BASHRC + "yes | head -c 100000\n"},
        sshd_options={"DisableForwarding": "yes"},
    )
    host = make_host(settings)
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(
            target_of(host, client_keys.ed25519), socket=SOCKET, relay=relay_command(host, SOCKET)
        )
        assert await echo(tunnel.channel) == b"hello"
        await tunnel.close()


async def test_a_login_shell_that_never_gets_to_the_relay_is_given_up(
    make_host: MakeHost, client_keys: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 46: nothing waits for ever for the first line that it expects."""
    monkeypatch.setattr("airflow_provider.runtime.transport.ssh.tunnel._FAR_SECONDS", 0.5)
    settings = HostSettings(
        home_files={".bashrc": "read answer < /dev/zero\n"}, sshd_options={"DisableForwarding": "yes"}
    )
    host = make_host(settings)
    tunnel = await TunnelChannel.open(target_of(host, client_keys.ed25519), socket=SOCKET, relay="true")
    begun = time.monotonic()
    with pytest.raises(grpc.RpcError):
        await echo(tunnel.channel)
    assert time.monotonic() - begun < 3
    other = await open_link(target_of(host, client_keys.ed25519, user="worker"))
    assert not other.is_lost, "nothing is locked meanwhile"
    await tunnel.close()


async def test_a_socket_path_too_long_for_forwarding_is_reached_by_the_relay(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    host = hosts(1)[0]
    deep = "/root/" + "d" * 120
    on_disk(host, deep).mkdir(exist_ok=True)
    path = f"{deep}/s.sock"
    async with serving(host, "/root/short.sock"):
        on_disk(host, path).symlink_to("../short.sock")
        tunnel = await TunnelChannel.open(
            target_of(host, client_keys.ed25519),
            socket=path,
            relay=relay_command(host, f"{deep}/s.sock")
            .replace("exec ", f"cd {deep} && exec ")
            .replace(path, "s.sock"),
        )
        assert await echo(tunnel.channel) == b"hello"
        await tunnel.close()


async def test_the_reason_why_a_host_is_not_reached_is_raised(host: Host, client_keys: ClientKeys) -> None:
    """Row 16."""
    with pytest.raises(SshRefused, match="does not let us in"):
        await TunnelChannel.open(stranger(host, client_keys), socket=SOCKET, relay=NO_RELAY)
    await asyncio.to_thread(host.power_off)
    with pytest.raises(SshUnreachable, match=host.address):
        await TunnelChannel.open(hurried(target_of(host, client_keys.ed25519)), socket=SOCKET, relay=NO_RELAY)
    assert near_ends() == []


def test_proxies_of_the_environment_are_not_asked(host: Host, client_keys: ClientKeys) -> None:
    """K65: worker and triggerer with a company's proxy in their environment, and no_proxy unset."""
    program = (
        "import asyncio, sys\n"
        "from airflow_provider.runtime.transport.ssh.channel import TunnelChannel\n"
        "from airflow_provider.runtime.transport.ssh.target import *\n"
        "async def main(address, key, pinned):\n"
        "    target = SshTarget('h', address, 'root', identities=(Identity('key', path=key),),\n"
        "        host_keys=HostKeys(pinned=(pinned,)))\n"
        f"    tunnel = await TunnelChannel.open(target, socket={SOCKET!r}, relay='true')\n"
        "    print(await tunnel.channel.unary_unary('/test/Echo')(b'hello', timeout=10))\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"), "http://127.0.0.1:9")
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    arguments = [host.address, str(client_keys.ed25519.path), host.disk.host_keys[0]]

    async def main() -> str:
        async with serving(host, SOCKET):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", program, *arguments],
                env=environment | proxies,
                capture_output=True,
                text=True,
                timeout=30,
            )
        return done.stdout + done.stderr

    assert asyncio.run(main()) == "b'hello'\n"


async def test_a_reader_that_is_slow_holds_the_agent_back(hosts: Hosts, client_keys: ClientKeys) -> None:
    """Nothing between the two keeps more than a window of what is on its way."""
    host = hosts(1)[0]
    place = on_disk(host, "/root/plain.sock")
    place.unlink(missing_ok=True)
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(400):
            writer.write(b"x" * PIECE)
            await writer.drain()
            sent += PIECE
        writer.close()

    server = await asyncio.start_unix_server(pour, place)
    tunnel = await TunnelChannel.open(
        target_of(host, client_keys.ed25519), socket="/root/plain.sock", relay=NO_RELAY
    )
    with socket.socket(socket.AF_UNIX) as near:
        near.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(near, str(near_ends()[0]))
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 12 * 1024 * 1024
        received = 0
        while data := await loop.sock_recv(near, PIECE):
            received += len(data)
        assert received == 400 * PIECE
    server.close()
    await tunnel.close()


async def test_what_was_sent_before_the_near_end_was_closed_arrives(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    host = hosts(1)[0]
    place = on_disk(host, "/root/plain.sock")
    place.unlink(missing_ok=True)
    arrived: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        arrived.set_result(len(await reader.read()))
        writer.close()

    server = await asyncio.start_unix_server(swallow, place)
    tunnel = await TunnelChannel.open(
        target_of(host, client_keys.ed25519), socket="/root/plain.sock", relay=NO_RELAY
    )
    _, writer = await asyncio.open_unix_connection(near_ends()[0])
    writer.write(b"x" * 5_000_000)
    await writer.drain()
    writer.close()
    assert await asyncio.wait_for(arrived, 10) == 5_000_000
    server.close()
    await tunnel.close()


async def test_a_half_closed_connection_still_gets_its_answer(hosts: Hosts, client_keys: ClientKeys) -> None:
    host = hosts(1)[0]
    place = on_disk(host, "/root/plain.sock")
    place.unlink(missing_ok=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d bytes" % len(await reader.read()))
        writer.close()

    server = await asyncio.start_unix_server(answer, place)
    tunnel = await TunnelChannel.open(
        target_of(host, client_keys.ed25519), socket="/root/plain.sock", relay=NO_RELAY
    )
    reader, writer = await asyncio.open_unix_connection(near_ends()[0])
    writer.write(b"question")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b"8 bytes"
    writer.close()
    server.close()
    await tunnel.close()


async def test_closing_a_tunnel_closes_its_connections(hosts: Hosts, client_keys: ClientKeys) -> None:
    host = hosts(1)[0]
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target_of(host, client_keys.ed25519), socket=SOCKET, relay=NO_RELAY)
        reader, writer = await asyncio.open_unix_connection(near_ends()[0])
        assert await reader.read(1)
        await tunnel.close()
        with suppress(ConnectionResetError):
            while await asyncio.wait_for(reader.read(100), 5):
                pass
        writer.close()


async def test_a_near_end_that_somebody_tidied_away_is_made_anew(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    host = hosts(1)[0]
    target = target_of(host, client_keys.ed25519)
    async with serving(host, SOCKET):
        first = await TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY)
        (near,) = near_ends()
        near.unlink()
        near.parent.rmdir()
        second = await TunnelChannel.open(target, socket=SOCKET, relay=NO_RELAY)
        assert await echo(second.channel) == b"hello"
        await first.close()
        assert await echo(second.channel) == b"hello"
        await second.close()


async def test_many_that_reconnect_at_once_make_one_connection(host: Host, client_keys: ClientKeys) -> None:
    """Row 40, K48: no lock that could be broken or left behind; who comes first connects for all."""
    target = target_of(host, client_keys.ed25519)
    names = [f"/root/s{number}.sock" for number in range(10)]
    async with serving(host, names[0]):
        for name in names[1:]:
            on_disk(host, name).symlink_to(names[0])
        tunnels = [await TunnelChannel.open(target, socket=name, relay=NO_RELAY) for name in names]
        await asyncio.gather(*(echo(tunnel.channel) for tunnel in tunnels))
        await asyncio.to_thread(host.reboot)
        said = await asyncio.gather(*(_echo_within(tunnel, 10) for tunnel in tunnels))
        assert said == [b"hello"] * 10
        assert logins(host) == 2
        for tunnel in tunnels:
            await tunnel.close()
    await until(lambda: near_ends() == [], "near ends are left")
