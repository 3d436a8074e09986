"""Hosts that stop answering without a word (K28): every wait has an end, and silence is noticed in the time set."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from airflow_provider.runtime.transport.ssh.channel import TunnelChannel
from airflow_provider.runtime.transport.ssh.command import CommandTimedOut
from airflow_provider.runtime.transport.ssh.errors import SshUnreachable
from airflow_provider.runtime.transport.ssh.links import open_link
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import HostSettings
from tests.integration.transport.rig import echo, exhaust, hurried, relay_command, serving, target_of, until

Hosts = Callable[[int], list[Host]]
MakeHost = Callable[[HostSettings], Host]
Vanish = Callable[[Host], None]

SOCKET = "/root/s.sock"
VANISH = [Host.silent_power_off, Host.freeze, Host.link_down]


async def seconds_until_broken(stream: grpc.aio.UnaryStreamCall[bytes, bytes]) -> float:
    begun = time.monotonic()
    with pytest.raises(grpc.RpcError) as broken:
        await exhaust(stream)
    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    return time.monotonic() - begun


@pytest.mark.parametrize("vanish", VANISH, ids=lambda vanish: vanish.__name__)
async def test_a_stream_breaks_when_its_host_is_silent_for_the_time_set(
    host: Host, client_keys: ClientKeys, vanish: Vanish
) -> None:
    """Asked for three seconds: a silent power-off, a frozen host, a pulled cable."""
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(
            hurried(target_of(host, client_keys.ed25519)), socket=SOCKET, relay="true"
        )
        drops = tunnel.channel.unary_stream("/test/Drip")(b"", timeout=60)
        await drops.read()
        await asyncio.to_thread(vanish, host)
        assert await seconds_until_broken(drops) <= 3.0
        begun = time.monotonic()
        with pytest.raises(grpc.RpcError):
            await echo(tunnel.channel, seconds=20)
        assert time.monotonic() - begun < 6, "one attempt to connect, and no more"
        await tunnel.close()


async def test_with_defaults_a_silent_power_off_is_noticed_within_ten_seconds(
    host: Host, client_keys: ClientKeys
) -> None:
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target_of(host, client_keys.ed25519), socket=SOCKET, relay="true")
        drops = tunnel.channel.unary_stream("/test/Drip")(b"", timeout=60)
        await drops.read()
        await asyncio.to_thread(host.silent_power_off)
        assert await seconds_until_broken(drops) <= 10.0
        await tunnel.close()


async def test_a_cable_that_is_plugged_in_again_in_time_breaks_nothing(
    host: Host, client_keys: ClientKeys
) -> None:
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(target_of(host, client_keys.ed25519), socket=SOCKET, relay="true")
        drops = tunnel.channel.unary_stream("/test/Drip")(b"", timeout=60)
        await drops.read()
        await asyncio.to_thread(host.link_down)
        await asyncio.sleep(2)
        await asyncio.to_thread(host.link_up)
        for _ in range(100):
            assert await drops.read() == b"drop"
        drops.cancel()
        await tunnel.close()


async def test_opening_a_link_to_a_frozen_host_ends(host: Host, client_keys: ClientKeys) -> None:
    """Its kernel takes connections, and nobody greets."""
    await asyncio.to_thread(host.freeze)
    begun = time.monotonic()
    with pytest.raises(SshUnreachable, match="says nothing"):
        await open_link(hurried(target_of(host, client_keys.ed25519)))
    assert time.monotonic() - begun < 3.5


async def test_a_command_on_a_host_that_freezes_ends(host: Host, client_keys: ClientKeys) -> None:
    link = await open_link(hurried(target_of(host, client_keys.ed25519)))
    running = asyncio.Event()
    call = asyncio.ensure_future(link.run("echo on; sleep 60", seconds=60, on_line=lambda _: running.set()))
    await running.wait()
    await asyncio.to_thread(host.freeze)
    begun = time.monotonic()
    assert (await call).exit_code is None
    assert time.monotonic() - begun < 3.2


async def test_a_command_that_a_frozen_host_does_not_start_ends(host: Host, client_keys: ClientKeys) -> None:
    """The channel does not open: the time of the command, or that of the link, whichever is over first."""
    link = await open_link(target_of(host, client_keys.ed25519))
    await asyncio.to_thread(host.freeze)
    with pytest.raises(CommandTimedOut, match=r"within 0\.5 s"):
        await link.run("true", seconds=0.5)


async def test_a_command_whose_link_dies_before_it_starts_says_so(
    host: Host, client_keys: ClientKeys
) -> None:
    link = await open_link(hurried(target_of(host, client_keys.ed25519)))
    await asyncio.to_thread(host.freeze)
    with pytest.raises(SshUnreachable, match="lost"):
        await link.run("true", seconds=30)
    assert link.is_lost


async def test_a_call_ends_at_its_deadline_when_the_agent_is_silent_behind_a_live_sshd(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    """The link is well, so it stays; what goes on above it decides (deadlines, the heartbeat of a follow)."""
    host = hosts(1)[0]
    target = target_of(host, client_keys.ed25519)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    place = host.disk.path / "root" / "mute.sock"
    place.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(say_nothing, place)
    tunnel = await TunnelChannel.open(target, socket="/root/mute.sock", relay="true")
    begun = time.monotonic()
    with pytest.raises(grpc.RpcError) as late:
        await echo(tunnel.channel, seconds=1)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 1.5
    link = await open_link(target)
    assert (await link.run("true", seconds=5)).exit_code == 0
    await tunnel.close()
    server.close()


async def test_a_frozen_jump_host_ends_what_goes_through_it(
    hosts: Hosts, host: Host, client_keys: ClientKeys
) -> None:
    last = hosts(1)[0]
    jump = hurried(target_of(host, client_keys.ed25519))
    target = hurried(target_of(last, client_keys.ed25519, jump=jump))
    async with serving(last, SOCKET):
        tunnel = await TunnelChannel.open(target, socket=SOCKET, relay="true")
        drops = tunnel.channel.unary_stream("/test/Drip")(b"", timeout=60)
        await drops.read()
        await asyncio.to_thread(host.freeze)
        assert await seconds_until_broken(drops) <= 3.2
        begun = time.monotonic()
        with pytest.raises(SshUnreachable):
            await open_link(target, seconds=4)
        assert time.monotonic() - begun < 4.5
        await asyncio.to_thread(host.thaw)
        await open_link(target)
        await tunnel.close()


async def test_a_host_behind_a_jump_host_that_is_off_leaves_nothing_open_at_the_jump_host(
    hosts: Hosts, host: Host, client_keys: ClientKeys
) -> None:
    """An attempt that is given up must not leave a channel behind that the jump host opens later."""
    jump = target_of(hosts(1)[0], client_keys.ed25519)
    target = replace(target_of(host, client_keys.ed25519, jump=jump), connect_timeout=0.5)
    await asyncio.to_thread(host.link_down)
    with pytest.raises(SshUnreachable):
        await open_link(target)
    await asyncio.to_thread(host.link_up)
    through = re.compile("Connection from .* on ")
    await until(lambda: through.search(host.sshd_log) is not None, "the jump host has not got through")
    ended = re.compile("Connection closed by|Connection from .* Broken pipe|Connection reset")
    await until(lambda: ended.search(host.sshd_log) is not None, "it holds the connection open")


async def test_a_relay_on_a_frozen_host_is_given_up(make_host: MakeHost, client_keys: ClientKeys) -> None:
    host = make_host(HostSettings(sshd_options={"AllowStreamLocalForwarding": "no"}))
    async with serving(host, SOCKET):
        tunnel = await TunnelChannel.open(
            hurried(target_of(host, client_keys.ed25519)),
            socket=SOCKET,
            relay=relay_command(host, SOCKET),
        )
        await echo(tunnel.channel)
        await asyncio.to_thread(host.freeze)
        begun = time.monotonic()
        with pytest.raises(grpc.RpcError):
            await echo(tunnel.channel, seconds=20)
        assert time.monotonic() - begun < 3.2
        await tunnel.close()
