"""This machine as an SSH host: an account's directory on it, and the operations that are asked of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import google.protobuf
import grpc
import typing_extensions

import airflow_provider
from airflow_provider.runtime.agent.host.operations import operate
from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.transport.channel import UnixChannel
from tests.integration.agents import Agent

RUNTIMES = ("r1", "r2")


def install_runtime(directory: Path) -> None:
    """Put all that an agent imports into a directory, as links."""
    directory.mkdir(parents=True)
    for module in (airflow_provider, grpc):
        assert module.__file__ is not None
        package = Path(module.__file__).parent
        (directory / package.name).symlink_to(package)
    (directory / "google").symlink_to(Path(google.protobuf.__file__).parents[1])
    (directory / "typing_extensions.py").symlink_to(typing_extensions.__file__)


@asynccontextmanager
async def this_host() -> AsyncIterator[ThisHost]:
    """Give a host, and remove all that a test left on it."""
    # A short path, as a socket's has to be.
    directory = await asyncio.to_thread(tempfile.mkdtemp, prefix="host-")
    host = ThisHost(Path(directory))
    try:
        yield host
    finally:
        await host.clean()
        await asyncio.to_thread(shutil.rmtree, directory)


class ThisHost:
    """One account's directory and a lease of this machine, both below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.base = directory / "base"
        self.lease = directory / "lease"
        self.home.mkdir()
        for name in RUNTIMES:
            install_runtime(self.base / "runtime" / name)
        self.place = {"base": str(self.base), "lease_directory": str(self.lease)}
        self.agents: list[Agent] = []

    def wish(self, **fields: object) -> dict[str, object]:
        """Return the arguments of ``up``."""
        return {
            **self.place,
            "name": "train",
            "instance": "i1",
            "site": "airflow one",
            "lease_seconds": 600,
            "runtime": "r1",
            **fields,
        }

    def ask(self, operation: str, **arguments: object) -> Any:
        """Return the answer of an operation in this process."""
        answer = operate(operation, {**self.place, **arguments})
        assert "ok" in answer, answer
        return answer["ok"]

    def problem(self, operation: str, **arguments: object) -> tuple[str, str]:
        """Return cause and remedy of an operation that cannot be done."""
        answer = operate(operation, {**self.place, **arguments})
        assert set(answer) == {"problem", "remedy"}, answer
        return str(answer["problem"]), str(answer["remedy"])

    def up(self, **fields: object) -> Any:
        return self.ask("up", **self.wish(**fields))

    def down(self, instance: str | None = None, name: str = "train") -> Any:
        return self.ask("down", name=name, instance=instance)

    def probe(self, instance: str | None = None, name: str = "train") -> Any:
        return self.ask("probe", name=name, instance=instance)

    async def begin(self, operation: str, **arguments: object) -> asyncio.subprocess.Process:
        """Start an operation as a process of its own, as over SSH."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c"),
            "import sys; sys.path.insert(0, sys.argv.pop(1)); "
            "from airflow_provider.runtime.agent.host.__main__ import main; sys.exit(main())",
            *(str(self.base / "runtime" / "r1"), operation),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            cwd="/",
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({**self.place, **arguments}).encode())
        process.stdin.close()
        return process

    async def ask_elsewhere(self, operation: str, **arguments: object) -> Any:
        """Return the answer of an operation in a process of its own."""
        process = await self.begin(operation, **arguments)
        output, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, (output, errors)
        return json.loads(output)["ok"]

    def agent(self, answer: Any) -> Agent:
        """Return the agent of a cluster that is up."""
        made = Agent(Path(answer["root"]))
        made._unix = UnixChannel(made.root / "agent", "agent.sock")
        self.agents.append(made)
        return made

    def left(self) -> list[str]:
        """Return what is there of clusters and of the lease."""
        found = [*self.base.glob("clusters/*"), *self.base.glob("clusters/.*"), *self.lease.glob("*")]
        return sorted(str(path) for path in found)

    def processes(self, root: str) -> set[int]:
        return processes.marked(processes.CLUSTER_MARKER, root)

    def users_of(self, runtime: str) -> list[int]:
        """Return the pids of the processes that were started from an installed runtime."""
        directory = str(self.base / "runtime" / runtime)
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if directory in self.command_line(pid)]

    def command_line(self, pid: int) -> list[str]:
        """Return the words of a process's command; none when it is gone."""
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            return []

    async def clean(self) -> None:
        """End everything that is left, whatever the test did."""
        for agent in self.agents:
            await agent.close()
        for root in self.base.glob("clusters/*"):
            left = processes.end(
                lambda root=root: processes.members([], processes.CLUSTER_MARKER, str(root)),  # type: ignore[misc]
                grace=0,
                limit=10,
            )
            assert not left
