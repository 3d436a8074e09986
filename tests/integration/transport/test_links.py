"""Shared SSH connections to real hosts (K16, K47, K66, K96)."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider.runtime.transport.ssh import shared
from airflow_provider.runtime.transport.ssh.errors import SshRefused, SshUnreachable
from airflow_provider.runtime.transport.ssh.links import open_link
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import HostSettings
from tests.integration.transport.rig import logins, stranger, target_of, until

Hosts = Callable[[int], list[Host]]
MakeHost = Callable[[HostSettings], Host]


async def test_two_hundred_openers_share_one_connection_that_sshd_sees_once(
    make_host: MakeHost, client_keys: ClientKeys
) -> None:
    """K16: sshd with its defaults takes ten connections that are not logged in yet, and ten sessions."""
    host = make_host(HostSettings(sshd_options={"MaxStartups": "10:30:100", "MaxSessions": "10"}))

    async def one(number: int) -> bytes:
        link = await open_link(target_of(host, client_keys.ed25519))
        done = await link.run(f"echo {number}", seconds=60)
        await link.close()
        return done.stdout

    said = await asyncio.gather(*(one(number) for number in range(200)))
    assert said == [b"%d\n" % number for number in range(200)]
    assert logins(host) == 1


async def test_sixty_accounts_of_processes_get_in_though_sshd_drops_connections(
    make_host: MakeHost, client_keys: ClientKeys
) -> None:
    """K16: what other processes of ours would do: connections that cannot be shared, all at once."""
    host = make_host(HostSettings(sshd_options={"MaxStartups": "3:60:6", "LoginGraceTime": "20"}))
    target = target_of(host, client_keys.ed25519)
    # Each has a connection of its own, as targets that differ have.
    targets = [replace(target, connect_timeout=10 + number / 1000) for number in range(30)]
    links = await asyncio.gather(*(open_link(target, seconds=50) for target in targets))
    assert logins(host) == 30
    for link in links:
        await link.close()


async def test_calls_wait_for_a_session_where_sshd_has_no_more_of_them(
    make_host: MakeHost, client_keys: ClientKeys
) -> None:
    """K16: MaxSessions means wait, not failure."""
    host = make_host(HostSettings(sshd_options={"MaxSessions": "2"}))
    link = await open_link(target_of(host, client_keys.ed25519))
    done = await asyncio.gather(*(link.run("sleep 0.1", seconds=30) for _ in range(12)))
    assert {completed.exit_code for completed in done} == {0}


async def test_a_host_that_refuses_us_is_asked_once_and_not_in_a_loop(
    host: Host, client_keys: ClientKeys
) -> None:
    """K96: many hosts shut out for good who fails to log in again and again (fail2ban)."""
    for _ in range(20):
        with pytest.raises(SshRefused, match="does not let us in"):
            await open_link(stranger(host, client_keys))
    assert host.sshd_log.count("Connection from") == 1


async def test_a_hundred_users_that_come_and_go_log_in_once(host: Host, client_keys: ClientKeys) -> None:
    """K96: who comes within seconds of the last one finds the connection there."""
    for _ in range(100):
        link = await open_link(target_of(host, client_keys.ed25519))
        await link.close()
    assert logins(host) == 1


async def test_a_connection_that_nobody_uses_is_closed(
    host: Host, client_keys: ClientKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "LINGER_SECONDS", 0.1)
    link = await open_link(target_of(host, client_keys.ed25519))
    await link.close()
    await link.close()
    await until(lambda: "Disconnected from user root" in host.sshd_log, "sshd was not told")


def test_a_link_can_be_used_from_one_loop_after_another_and_from_several_threads(
    host: Host, client_keys: ClientKeys
) -> None:
    """K47: two asyncio.run in a row, and worker threads beside the main loop."""
    target = target_of(host, client_keys.ed25519)

    async def hello() -> bytes:
        link = await open_link(target)
        said = (await link.run("echo hello", seconds=10)).stdout
        await link.close()
        return said

    said = [asyncio.run(hello()), asyncio.run(hello())]
    threads = [threading.Thread(target=lambda: said.append(asyncio.run(hello()))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert said == [b"hello\n"] * 7
    assert logins(host) == 1


async def test_one_line_tells_of_a_connection_and_one_of_its_loss(
    host: Host, client_keys: ClientKeys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    link = await open_link(target_of(host, client_keys.ed25519))
    await link.run("true", seconds=10)
    host.power_off()
    await until(lambda: link.is_lost, "the loss is not noticed")
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == f"connected to {target_of(host, client_keys.ed25519)}"
    assert said[1].startswith(f"lost the connection to {host.name}")
    assert len(said) == 2


async def test_a_host_that_was_rebooted_is_connected_to_again(host: Host, client_keys: ClientKeys) -> None:
    target = target_of(host, client_keys.ed25519)
    link = await open_link(target)
    await asyncio.to_thread(host.reboot)
    await until(lambda: link.is_lost, "the loss is not noticed")
    with pytest.raises(SshUnreachable):
        await link.run("true", seconds=10)
    again = await open_link(target)
    assert (await again.run("cat /proc/sys/kernel/random/boot_id", seconds=10)).stdout.decode().strip() == (
        host.boot_id
    )
    await link.close()
    assert not again.is_lost


async def test_a_host_that_is_off_is_said_to_be_so_at_once(host: Host, client_keys: ClientKeys) -> None:
    """Row 16: the real reason, and row 15: within the time that was given."""
    await asyncio.to_thread(host.run, "kill $(cat /run/sshd.pid)")
    begun = time.monotonic()
    with pytest.raises(SshUnreachable, match="Connection refused"):
        await open_link(target_of(host, client_keys.ed25519))
    assert time.monotonic() - begun < 1


async def test_the_time_that_is_given_is_the_time_that_is_taken(host: Host, client_keys: ClientKeys) -> None:
    """Row 15: one deadline, whatever is tried until then."""
    await asyncio.to_thread(host.freeze)
    begun = time.monotonic()
    with pytest.raises(SshUnreachable, match="within 2 s"):
        await open_link(target_of(host, client_keys.ed25519), seconds=2)
    assert 1.9 < time.monotonic() - begun < 2.5


async def test_hosts_behind_a_jump_host_share_one_connection_to_it(
    hosts: Hosts, make_host: MakeHost, client_keys: ClientKeys
) -> None:
    """K66: of MaxSessions 2 there, none is used up."""
    bastion = make_host(HostSettings(sshd_options={"MaxSessions": "2"}))
    jump = target_of(bastion, client_keys.ed25519)
    behind = [target_of(host, client_keys.ed25519, jump=jump) for host in hosts(3)]
    links = await asyncio.gather(*(open_link(target) for target in behind))
    done = await asyncio.gather(*(link.run("hostname", seconds=10) for link in links))
    assert [completed.stdout.decode().strip() for completed in done] == [host.name for host in hosts(3)]
    assert logins(bastion) == 1
    await links[0].close()
    assert (await links[1].run("true", seconds=10)).exit_code == 0


async def test_two_jump_hosts_in_a_row(hosts: Hosts, client_keys: ClientKeys) -> None:
    """K66."""
    first, second, last = hosts(3)
    jump = target_of(first, client_keys.ed25519)
    jump = target_of(second, client_keys.ecdsa, user="worker", jump=jump)
    link = await open_link(target_of(last, client_keys.ed25519, jump=jump))
    done = await link.run("echo $SSH_CONNECTION", seconds=10)
    assert done.stdout.decode().split()[0] == second.address


async def test_a_jump_host_that_restarts_is_a_reconnect(
    hosts: Hosts, host: Host, client_keys: ClientKeys
) -> None:
    """K66: bastion restarts."""
    jump = target_of(host, client_keys.ed25519)
    target = target_of(hosts(1)[0], client_keys.ed25519, jump=jump)
    link = await open_link(target)
    await asyncio.to_thread(host.reboot)
    await until(lambda: link.is_lost, "the loss is not noticed")
    again = await open_link(target)
    assert (await again.run("echo there", seconds=10)).stdout == b"there\n"


def test_a_forked_child_makes_a_connection_of_its_own_and_leaves_the_parents_alone(
    host: Host, client_keys: ClientKeys
) -> None:
    """K29."""
    target = target_of(host, client_keys.ed25519)

    async def hello() -> bytes:
        link = await open_link(target)
        said = (await link.run("echo hello", seconds=10)).stdout
        await link.close()
        return said

    assert asyncio.run(hello()) == b"hello\n"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if asyncio.run(hello()) == b"hello\n" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(hello()) == b"hello\n"
    assert logins(host) == 2
