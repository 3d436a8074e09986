"""Commands on real hosts: their input, output, end and limits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from airflow_provider.runtime.transport.ssh.command import CommandTimedOut, TooMuchOutput
from airflow_provider.runtime.transport.ssh.errors import SshRefused, SshUnreachable
from airflow_provider.runtime.transport.ssh.links import Link, open_link
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import HostSettings
from tests.integration.transport.rig import on_disk, target_of, until

Hosts = Callable[[int], list[Host]]
MakeHost = Callable[[HostSettings], Host]


@pytest.fixture
async def link(hosts: Hosts, client_keys: ClientKeys) -> AsyncIterator[Link]:
    link = await open_link(target_of(hosts(1)[0], client_keys.ed25519, user="worker"))
    yield link
    await link.close()


async def test_a_command_gives_its_outputs_and_its_exit_code(link: Link) -> None:
    done = await link.run("cat; echo oops >&2; exit 3", stdin=b"in\x00put", seconds=10)
    assert done == (3, b"in\x00put", b"oops\n")


async def test_a_command_that_a_signal_ended_has_no_exit_code(link: Link) -> None:
    assert (await link.run("kill -9 $$", seconds=10)).exit_code is None


async def test_input_may_be_drawn_from_what_blocks_without_holding_up_other_commands(link: Link) -> None:
    go_on = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"x" * 100_000
        go_on.wait(10)
        yield b"y" * 100_000

    slow = asyncio.ensure_future(link.run("wc -c", stdin=pieces(), seconds=20))
    await link.run("true", seconds=10)
    assert not slow.done()
    go_on.set()
    assert (await slow).stdout.strip() == b"200000"


async def test_input_is_drawn_no_faster_than_the_host_takes_it(link: Link) -> None:
    drawn = 0

    def pieces() -> Iterator[bytes]:
        nonlocal drawn
        for _ in range(1000):
            drawn += 64 * 1024
            yield b"x" * 64 * 1024

    writing = asyncio.ensure_future(link.run("sleep 0.5; wc -c", stdin=pieces(), seconds=30))
    await link.run("sleep 0.3", seconds=10)
    assert drawn < 8 * 1024 * 1024
    assert (await writing).stdout.strip() == b"%d" % (1000 * 64 * 1024)


async def test_what_the_input_raises_ends_the_command_and_is_raised(link: Link) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await link.run("cat", stdin=pieces(), seconds=10)


async def test_a_command_that_does_not_read_its_input_is_judged_by_its_exit_code(link: Link) -> None:
    done = await link.run("exit 5", stdin=(b"x" * 65536 for _ in range(1000)), seconds=10)
    assert done.exit_code == 5


async def test_lines_come_while_the_command_runs(link: Link, hosts: Hosts) -> None:
    lines: list[bytes] = []

    def on_line(line: bytes) -> None:
        lines.append(line)
        if line == b"one":
            on_disk(hosts(1)[0], "/tmp/go-on").touch()

    wait = "while ! [ -e /tmp/go-on ]; do sleep 0.01; done; rm -f /tmp/go-on"
    done = await link.run(f"echo one; {wait}; echo two; printf three", seconds=10, on_line=on_line)
    assert lines == [b"one", b"two", b"three"]
    assert done.stdout == b"one\ntwo\nthree"


async def test_what_taking_a_line_raises_ends_the_command_and_is_raised(link: Link) -> None:
    def on_line(line: bytes) -> None:
        raise ValueError(f"cannot use {line!r}")

    with pytest.raises(ValueError, match="cannot use b'one'"):
        await link.run("echo one; sleep 60", seconds=30, on_line=on_line)


async def test_a_command_that_writes_too_much_is_ended(link: Link) -> None:
    with pytest.raises(TooMuchOutput, match="more than 4 MiB"):
        await link.run("yes", seconds=10)
    with pytest.raises(TooMuchOutput, match="more than 4 MiB"):
        await link.run("yes >&2", seconds=10)


async def test_a_command_that_takes_too_long_is_ended_there_too(link: Link, hosts: Hosts) -> None:
    begun = time.monotonic()
    with pytest.raises(CommandTimedOut, match=r"within 0\.5 s: it is still running"):
        await link.run("echo $$ > /tmp/pid; exec sleep 60", seconds=0.5)
    assert time.monotonic() - begun < 1.5
    pid = on_disk(hosts(1)[0], "/tmp/pid").read_text().strip()
    ended = await link.run(f"while kill -0 {pid}; do sleep 0.01; done", seconds=10)
    assert ended.exit_code == 0


async def test_a_command_whose_caller_is_cancelled_is_ended_there_too(link: Link, hosts: Hosts) -> None:
    pid_file = on_disk(hosts(1)[0], "/tmp/pid")
    pid_file.unlink(missing_ok=True)
    call = asyncio.ensure_future(link.run("echo $$ > /tmp/pid; exec sleep 60", seconds=60))
    await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "it was not started")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    ended = await link.run(f"while kill -0 {int(pid_file.read_text())}; do sleep 0.01; done", seconds=10)
    assert ended.exit_code == 0


async def test_a_closed_link_runs_nothing_though_others_use_the_connection(link: Link, hosts: Hosts) -> None:
    other = await open_link(target_of(hosts(1)[0], hosts(1)[0]._keys.ed25519, user="worker"))
    await other.close()
    with pytest.raises(SshUnreachable, match="closed"):
        await other.run("true", seconds=10)
    assert (await link.run("true", seconds=10)).exit_code == 0


async def test_a_host_that_runs_no_commands_is_said_to_be_so(
    make_host: MakeHost, client_keys: ClientKeys
) -> None:
    host = make_host(HostSettings(sshd_options={"ForceCommand": "internal-sftp", "MaxSessions": "0"}))
    link = await open_link(target_of(host, client_keys.ed25519))
    with pytest.raises((SshRefused, CommandTimedOut)):
        await link.run("true", seconds=1)


async def test_a_connection_that_goes_ends_its_commands_without_an_exit_code(
    host: Host, client_keys: ClientKeys
) -> None:
    link = await open_link(target_of(host, client_keys.ed25519))
    begun = asyncio.Event()
    call = asyncio.ensure_future(link.run("echo begun; sleep 60", seconds=60, on_line=lambda _: begun.set()))
    await begun.wait()
    host.power_off()
    assert (await call) == (None, b"begun\n", b"")
