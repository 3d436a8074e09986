"""Connections to hosts that do not answer, that are behind others, or that a command leads to."""

from __future__ import annotations

import asyncio
import shlex
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider.runtime.transport.ssh.config import target_from_config
from airflow_provider.runtime.transport.ssh.connect import connect
from airflow_provider.runtime.transport.ssh.errors import (
    HostKeyRefused,
    SshRefused,
    SshUnreachable,
)
from airflow_provider.runtime.transport.ssh.target import HostKeys
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import HostSettings
from tests.integration.transport.attempts import (
    PATIENCE,
    Hosts,
    MakeHost,
    connected,
    echo,
    left_of_attempts,
    poll,
    refusal,
    target,
)

# Nobody answers.


async def test_a_closed_port_and_an_unknown_name_are_said_at_once(hosts: Hosts) -> None:
    [host] = hosts(1)
    began = time.monotonic()
    assert "Connection refused" in await refusal(target(host, port=23), SshUnreachable)
    unknown = target(host, host="no-such-host.invalid")
    assert "the name 'no-such-host.invalid' is not known" in await refusal(unknown, SshUnreachable)
    assert time.monotonic() - began < PATIENCE


async def test_k28_a_dead_or_frozen_host_costs_the_timeout_and_no_more(
    host: Host, client_keys: ClientKeys
) -> None:
    to = target(host, client_keys.ed25519, connect_timeout=0.5)
    await asyncio.to_thread(host.freeze)
    began = time.monotonic()
    assert "says nothing within 0.5 s" in await refusal(to, SshUnreachable)
    await asyncio.to_thread(host.thaw)
    await asyncio.to_thread(host.link_down)
    middle = time.monotonic()
    assert "within 0.5 s" in await refusal(to, SshUnreachable)
    assert 0.4 < middle - began < 0.5 + PATIENCE / 2
    assert 0.4 < time.monotonic() - middle < 0.5 + PATIENCE / 2


async def test_an_address_that_is_dead_leaves_time_for_the_next(
    hosts: Hosts, client_keys: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    [host] = hosts(1)
    prefix = host.address.rpartition(".")[0]
    dead = f"{prefix}.250"
    loop = asyncio.get_running_loop()

    async def two_addresses(name: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in (dead, host.address)]

    monkeypatch.setattr(loop, "getaddrinfo", two_addresses)
    async with connected(
        target(host, client_keys.ed25519, host="two.example.com", connect_timeout=4.0)
    ) as opened:
        assert await echo(opened.connection) == "done\n"


async def test_a_host_with_too_many_starting_connections_is_understood(
    make_host: MakeHost, client_keys: ClientKeys
) -> None:
    host = await asyncio.to_thread(make_host, HostSettings(sshd_options={"MaxStartups": "1:100:1"}))
    reader, writer = await asyncio.open_connection(host.address, host.port)
    await reader.readline()
    assert "MaxStartups" in await refusal(target(host, client_keys.ed25519), SshUnreachable)
    writer.close()
    await writer.wait_closed()


async def test_a_connection_to_a_host_that_vanishes_ends_within_the_limit(
    host: Host, client_keys: ClientKeys
) -> None:
    async with connected(target(host, client_keys.ed25519, silence_limit=1.0)) as opened:
        assert await echo(opened.connection) == "done\n"
        await asyncio.to_thread(host.silent_power_off)
        began = time.monotonic()
        await asyncio.wait_for(opened.connection.wait_closed(), 1.0 + PATIENCE / 2)
        assert time.monotonic() - began > 0.3
        assert opened.ended_because


async def test_the_socket_is_quick_and_impatient(hosts: Hosts, client_keys: ClientKeys) -> None:
    [host] = hosts(1)
    async with connected(target(host, client_keys.ed25519, silence_limit=3.0)) as opened:
        sock = opened.connection.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000


async def test_an_attempt_that_is_called_off_at_any_moment_leaves_nothing(
    make_host: MakeHost, client_keys: ClientKeys
) -> None:
    host = await asyncio.to_thread(make_host, HostSettings(sshd_options={"MaxStartups": "1000"}))
    to = target(host, client_keys.ed25519)
    async with connected(to):
        pass
    before = left_of_attempts()
    for turns in (*range(60), *range(60, 400, 10)):
        attempt = asyncio.create_task(connect(to))
        for _ in range(turns):
            await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.wait([attempt], timeout=PATIENCE)
        if not attempt.cancelled():
            (await attempt).connection.abort()
    await poll(lambda: left_of_attempts() == before)


async def test_an_attempt_at_a_frozen_host_can_be_called_off(host: Host, client_keys: ClientKeys) -> None:
    await asyncio.to_thread(host.freeze)
    before = left_of_attempts()
    attempt = asyncio.create_task(connect(target(host, client_keys.ed25519)))
    await poll(lambda: left_of_attempts()[0] > before[0])
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await poll(lambda: left_of_attempts() == before)


# Through another host, or a command.


async def test_a_host_behind_another(hosts: Hosts, client_keys: ClientKeys) -> None:
    bastion, inner = hosts(2)
    way = target(bastion, client_keys.ed25519)
    to = target(inner, client_keys.rsa, jump=way)
    with pytest.raises(ValueError, match="give the connection to that"):
        await connect(to)
    async with connected(way) as outer:
        async with connected(to, tunnel=outer.connection) as opened:
            assert (await opened.connection.run("hostname")).stdout == f"{inner.name}\n"
        said = await refusal(replace(to, port=23), SshUnreachable, tunnel=outer.connection)
        assert f"not reached from the jump host {way}" in said
        assert await echo(outer.connection) == "done\n"


async def test_a_configured_way_over_two_hosts(hosts: Hosts, client_keys: ClientKeys, tmp_path: Path) -> None:
    outer, inner, last = hosts(3)
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text("".join(each.known_hosts for each in (outer, inner, last)))
    config = tmp_path / "config"
    config.write_text(
        f"Host outer\n  HostName {outer.address}\n  User {outer.user}\n  IdentityFile {client_keys.rsa.path}\n"
        f"Host inner\n  HostName {inner.address}\n  ProxyJump outer\n"
        f"Host last\n  HostName {last.address}\n  ProxyJump inner\n"
        f"Host *\n  User root\n  IdentityFile {client_keys.ed25519.path}\n  UserKnownHostsFile {known_hosts}\n"
    )
    to = target_from_config("last", [str(config)])
    assert to.jump is not None
    assert to.jump.jump is not None
    async with (
        connected(to.jump.jump) as first,
        connected(to.jump, tunnel=first.connection) as second,
        connected(to, tunnel=second.connection) as third,
    ):
        said = [(await each.connection.run("hostname; id -un")).stdout for each in (first, second, third)]
    assert said == [f"{outer.name}\n{outer.user}\n", f"{inner.name}\nroot\n", f"{last.name}\nroot\n"]


async def test_a_bastion_that_forbids_forwarding_is_named(
    hosts: Hosts, make_host: MakeHost, client_keys: ClientKeys
) -> None:
    [inner] = hosts(1)
    strict = await asyncio.to_thread(make_host, HostSettings(sshd_options={"AllowTcpForwarding": "no"}))
    way = target(strict, client_keys.ed25519)
    async with connected(way) as outer:
        to = target(inner, client_keys.ed25519, jump=way)
        assert "AllowTcpForwarding" in await refusal(to, SshRefused, tunnel=outer.connection)


async def test_a_dead_host_behind_another_costs_the_timeout(
    hosts: Hosts, host: Host, client_keys: ClientKeys
) -> None:
    [bastion] = hosts(1)
    way = target(bastion, client_keys.ed25519)
    async with connected(way) as outer:
        await asyncio.to_thread(host.freeze)
        to = target(host, client_keys.ed25519, jump=way, connect_timeout=0.5)
        assert "within 0.5 s" in await refusal(to, SshUnreachable, tunnel=outer.connection)
        assert await echo(outer.connection) == "done\n"


async def test_k29_a_proxy_command_leads_to_the_host_and_ends_with_the_connection(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    bastion, inner = hosts(2)
    command = shlex.join(bastion.ssh_command("-W", f"{inner.address}:22"))
    before = left_of_attempts()
    async with connected(target(inner, client_keys.ed25519, proxy_command=command)) as opened:
        assert (await opened.connection.run("hostname")).stdout == f"{inner.name}\n"
        assert len(left_of_attempts()[2]) == len(before[2]) + 1
    await poll(lambda: left_of_attempts() == before)


async def test_a_proxy_command_that_fails_is_quoted(hosts: Hosts, client_keys: ClientKeys) -> None:
    [host] = hosts(1)
    failing = target(host, client_keys.ed25519, proxy_command="sh -c 'echo no way >&2; exit 7'")
    said = await refusal(failing, SshUnreachable)
    assert "the proxy command ended" in said
    assert said.endswith("The proxy command said: no way; exit code 7")
    silent = replace(failing, proxy_command="sleep 1000", connect_timeout=0.3)
    assert "says nothing within 0.3 s" in await refusal(silent, SshUnreachable)
    stubborn = replace(
        failing, proxy_command="sh -c 'trap \"\" TERM HUP; sleep 1000 & wait'", connect_timeout=0.3
    )
    assert "says nothing within 0.3 s" in await refusal(stubborn, SshUnreachable)


async def test_a_proxy_command_may_speak_after_it_has_closed_its_output(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    [host] = hosts(1)
    slow = "sh -c 'exec 0<&- 1>&-; sleep 0.1; echo too late >&2'"
    assert "too late" in await refusal(target(host, client_keys.ed25519, proxy_command=slow), SshUnreachable)


async def test_a_proxy_command_ends_when_the_host_key_is_refused(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    bastion, inner = hosts(2)
    command = shlex.join(bastion.ssh_command("-W", f"{inner.address}:22"))
    stranger = HostKeys(pinned=tuple(bastion.disk.host_keys))
    to = target(inner, client_keys.ed25519, proxy_command=command, host_keys=stranger)
    assert "expected" in await refusal(to, HostKeyRefused)
