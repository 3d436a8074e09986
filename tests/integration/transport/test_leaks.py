"""What is left after links and tunnels were opened and closed many times, or never closed (K29)."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from airflow_provider.runtime.transport.ssh import process, shared
from airflow_provider.runtime.transport.ssh.channel import TunnelChannel
from airflow_provider.runtime.transport.ssh.command import CommandTimedOut
from airflow_provider.runtime.transport.ssh.errors import SshError, SshRefused
from airflow_provider.runtime.transport.ssh.links import open_link
from airflow_provider.runtime.transport.ssh.target import SshTarget
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import HostSettings
from tests.integration.transport.rig import (
    echo,
    open_things,
    proxy_command,
    serving,
    stranger,
    target_of,
    until,
)

MakeHost = Callable[[HostSettings], Host]

SOCKET = "/root/s.sock"


async def settled(before: dict[str, int]) -> None:
    """Wait until there is no more than before."""

    def is_flat() -> bool:
        gc.collect()
        now = open_things()
        return all(now[what] <= before[what] for what in before)

    await until(is_flat, f"{before} have become {open_things()}")


async def test_opening_and_closing_hundreds_of_times_with_failures_at_every_step_leaves_nothing(
    make_host: MakeHost, client_keys: ClientKeys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(shared, "REFUSAL_SECONDS", 0.0)
    # All that fails to log in comes from one address.
    host = make_host(HostSettings(sshd_options={"MaxStartups": "100"}))
    target = target_of(host, client_keys.ed25519)
    strange = stranger(host, client_keys)
    proxied = replace(target, proxy_command=proxy_command(host, tmp_path))
    broken_proxy = replace(target, proxy_command="exit 3")

    async def works() -> None:
        tunnel = await TunnelChannel.open(target, socket=SOCKET, relay="exit 1")
        await echo(tunnel.channel)
        await tunnel.close()

    async def is_refused() -> None:
        with pytest.raises(SshRefused):
            await open_link(strange)

    async def agent_is_down() -> None:
        tunnel = await TunnelChannel.open(target, socket="/root/none.sock", relay="exit 1")
        with pytest.raises(grpc.RpcError):
            await echo(tunnel.channel)
        await tunnel.close()

    async def times_out() -> None:
        link = await open_link(target)
        with pytest.raises(CommandTimedOut):
            await link.run("sleep 60", seconds=0.01)
        await link.close()

    async def is_cancelled() -> None:
        opening = asyncio.ensure_future(TunnelChannel.open(target, socket=SOCKET, relay="exit 1"))
        await asyncio.sleep(0.02)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)

    async def goes_through_a_proxy() -> None:
        link = await open_link(proxied)
        await link.run("true", seconds=10)
        await link.close()

    async def has_a_broken_proxy() -> None:
        with pytest.raises(SshError):
            await open_link(broken_proxy, seconds=0.1)

    async def is_forgotten() -> None:
        tunnel = await TunnelChannel.open(target, socket=SOCKET, relay="exit 1")
        await echo(tunnel.channel)
        await open_link(target)

    steps = [works, is_refused, agent_is_down, times_out, is_cancelled, goes_through_a_proxy]
    steps += [has_a_broken_proxy, is_forgotten]
    async with serving(host, SOCKET):
        for step in steps:
            await step()
        gc.collect()
        await until(lambda: _nothing_is_held(), "the first round is held")
        before = open_things()
        for _ in range(int(os.environ.get("LEAK_ROUNDS", "12"))):
            for step in steps:
                await step()
        await settled(before)
        await until(lambda: _nothing_is_held(), "something is held")


def _nothing_is_held() -> bool:
    side = process.ssh_side()
    return not (side.links._alive or side.links._turns or side.tunnels._tunnels)


FORGETFUL = """
import asyncio, sys
from airflow_provider.runtime.transport.ssh.channel import TunnelChannel
from airflow_provider.runtime.transport.ssh.links import open_link
from airflow_provider.runtime.transport.ssh.target import *

kept = []

async def main(address, key, pinned, proxy):
    target = SshTarget("h", address, "root", identities=(Identity("key", path=key),),
        host_keys=HostKeys(pinned=(pinned,)), proxy_command=proxy or None)
    kept.append(await open_link(target))
    tunnel = await TunnelChannel.open(target, socket="/root/s.sock", relay="true")
    kept.append(tunnel)
    drops = tunnel.channel.unary_stream("/test/Drip")(b"")
    await drops.read()
    running = asyncio.ensure_future(kept[0].run("sleep 60", seconds=60))
    await asyncio.sleep(0.1)
    print("ready", flush=True)

asyncio.run(main(*sys.argv[1:]))
print("over", flush=True)
"""


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxy command"])
async def test_a_program_that_forgets_to_close_ends_at_once_and_leaves_nothing(
    host: Host, client_keys: ClientKeys, proxied: bool, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    proxy = proxy_command(host, tmp_path) if proxied else ""
    arguments = [host.address, str(client_keys.ed25519.path), host.disk.host_keys[0], proxy]
    async with serving(host, SOCKET):
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-X",
            "dev",
            "-c",
            FORGETFUL,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        )
        assert program.stdout is not None
        assert program.stderr is not None
        said = b""
        while b"over" not in said:
            line = await program.stdout.readline()
            assert line, (await program.stderr.read()).decode()
            said += line
        begun = time.monotonic()
        assert await program.wait() == 0, (await program.stderr.read()).decode()
        assert time.monotonic() - begun < 2
        complaints = (await program.stderr.read()).decode()
        assert "Traceback" not in complaints, complaints
    assert not list((tmp_path / "tmp").iterdir()), "the near ends are removed"
    assert not [line for line in _commands() if str(tmp_path) in line]


def _commands() -> list[str]:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()


async def test_what_a_killed_process_left_is_removed_by_the_next_one(
    host: Host, client_keys: ClientKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [host.address, str(client_keys.ed25519.path), host.disk.host_keys[0], ""]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with serving(host, SOCKET):
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            FORGETFUL.replace(
                'print("ready"', 'print("ready", flush=True); await asyncio.sleep(60); print("x"'
            ),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        assert program.stdout is not None
        assert await program.stdout.readline() == b"ready\n"
        (theirs,) = _names(tmp_path)
        target: SshTarget = target_of(host, client_keys.ed25519)
        first = await TunnelChannel.open(target, socket=SOCKET, relay="true")
        assert len(_names(tmp_path)) == 2, "what a live process has is left alone"
        program.kill()
        await program.wait()
        await first.close()
        process._end()
        monkeypatch.setattr(process, "_current", None)
        second = await TunnelChannel.open(target, socket=SOCKET, relay="true")
        assert theirs not in _names(tmp_path)
        assert len(_names(tmp_path)) == 1
        await second.close()


def _names(folder: Path) -> list[str]:
    return os.listdir(folder)


def test_a_name_server_that_does_not_answer_holds_up_nobodys_end() -> None:
    program = (
        "import asyncio, socket, time\n"
        "from airflow_provider.runtime.transport.ssh.errors import SshUnreachable\n"
        "from airflow_provider.runtime.transport.ssh.links import open_link\n"
        "from airflow_provider.runtime.transport.ssh.target import SshTarget\n"
        "socket.getaddrinfo = lambda *_, **__: time.sleep(30)\n"
        "try:\n"
        "    asyncio.run(open_link(SshTarget('h', 'h.example', 'u'), seconds=0.2))\n"
        "except SshUnreachable as error:\n"
        "    print(error)\n"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "no connection within 0.2 s" in done.stdout
    assert time.monotonic() - begun < 6, "most of it is importing"


def test_importing_makes_no_thread() -> None:
    program = (
        "import threading\n"
        "import airflow_provider.runtime.transport.ssh.channel\n"
        "import airflow_provider.runtime.transport.ssh.links\n"
        "print([thread.name for thread in threading.enumerate()])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['MainThread']\n"
