"""A real local cluster, and the questions that tests ask of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory
from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.client import (
    FollowStream,
    JobRequest,
    JobState,
    JobStatus,
    LogBytes,
    Owner,
)
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.infra.base import Choice, ClusterHandle
from airflow_provider.runtime.infra.local import LocalInfra
from airflow_provider.runtime.task import Candidate

OWNER = Owner("task-instance", 1)
ANY_CHOICE = Choice(Candidate())


async def quiet(line: str) -> None:
    """Take lines on progress and show them to nobody."""


async def eventually(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Wait for something that has no event to wait for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.01)


async def exited(pid: int, seconds: float = 10.0) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, gone.set)
    try:
        await asyncio.wait_for(gone.wait(), seconds)
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def job(run: str = "", **fields: object) -> JobRequest:
    """Return a request with defaults."""
    return JobRequest(**{"name": "test", "setup": "", "run": run, "envs": {}, "secrets": {}, **fields})  # type: ignore[arg-type]


@dataclass
class Seen:
    """What a follower saw."""

    states: list[JobState] = field(default_factory=list)
    log: bytearray = field(default_factory=bytearray)
    chunks: list[LogBytes] = field(default_factory=list)
    heartbeats: int = 0

    def take(self, message: object) -> None:
        if isinstance(message, LogBytes):
            self.chunks.append(message)
            self.log += message.data
        elif isinstance(message, JobState):
            self.states.append(message)
        else:
            self.heartbeats += 1

    @property
    def text(self) -> str:
        return self.log.decode("utf-8", "replace")

    @property
    def end(self) -> JobState:
        assert self.states, "no state was told"
        assert self.states[-1].status.terminal, f"the last state told is {self.states[-1]}"
        return self.states[-1]


class Cluster:
    """One cluster and a client of its agent."""

    def __init__(self, infra: LocalInfra, root: Path, handle: ClusterHandle, client: AgentClient) -> None:
        self.infra = infra
        self.root = root
        self.handle = handle
        self.client = client
        self.directory = root / handle.name

    @property
    def agent_pid(self) -> int:
        return int((self.directory / "agent" / "agent.lock").read_text())

    def job_directory(self, job_id: int) -> JobDirectory:
        (logs,) = self.directory.glob(f"sky_logs/{job_id}-*")
        return JobDirectory(self.directory / "jobs" / str(job_id), logs)

    def driver_pid(self, job_id: int) -> int:
        pid = self.job_directory(job_id).driver_pid()
        assert pid
        return pid

    def programs(self) -> list[tuple[int, str]]:
        """Return pid and command line of all that runs on the cluster."""
        return [
            (pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            for pid in self.processes()
        ]

    def processes(self) -> set[int]:
        """Return the pids of all that runs on the cluster."""
        return processes.marked(processes.CLUSTER_MARKER, str(self.directory))

    async def reconnect(self) -> AgentClient:
        await self.client.close()
        self.client = await self.infra.connect(self.handle)
        return self.client

    async def kill_agent(self) -> None:
        pid = self.agent_pid
        os.kill(pid, signal.SIGKILL)
        await exited(pid)

    async def restart_agent(self) -> None:
        """Start the agent again and connect to it."""
        await self.infra.restart_agent(self.handle)
        await self.reconnect()

    async def submit(
        self, run: str = "", *, key: str | None = None, owner: Owner = OWNER, **fields: object
    ) -> int:
        return await self.client.submit(key or os.urandom(8).hex(), owner, job(run, **fields))

    async def follow(self, job_id: int, *, offset: int | None = 0, owner: Owner = OWNER) -> FollowStream:
        return await self.client.follow(job_id, owner, offset=offset)

    async def follow_to_end(self, job_id: int, *, offset: int | None = 0, owner: Owner = OWNER) -> Seen:
        """Follow a job to its end."""
        seen = Seen()
        async for message in await self.follow(job_id, offset=offset, owner=owner):
            seen.take(message)
        return seen

    async def run(self, run: str = "", **fields: object) -> Seen:
        """Run a job to its end."""
        return await self.follow_to_end(await self.submit(run, **fields))  # type: ignore[arg-type]

    async def until_log(self, job_id: int, text: str, seconds: float = 15.0) -> None:
        """Wait until the job's log contains ``text``."""
        stream = await self.follow(job_id)
        seen = Seen()

        async def read() -> None:
            async for message in stream:
                seen.take(message)
                if text in seen.text:
                    return
            raise AssertionError(f"the job ended {seen.states[-1:]} without {text!r}: {seen.text[-500:]}")

        try:
            await asyncio.wait_for(read(), seconds)
        finally:
            await stream.close()

    async def until_status(self, job_id: int, *statuses: JobStatus, seconds: float = 15.0) -> JobState:
        """Wait until the job has one of the statuses."""
        stream = await self.follow(job_id)

        async def read() -> JobState:
            async for message in stream:
                if isinstance(message, JobState) and message.status in statuses:
                    return message
            raise AssertionError(f"the job ended without {statuses}")

        try:
            return await asyncio.wait_for(read(), seconds)
        finally:
            await stream.close()

    async def start(self, run: str, **fields: object) -> int:
        """Start a job and wait for the line "ready" in its log."""
        job_id = await self.submit(run, **fields)  # type: ignore[arg-type]
        await self.until_log(job_id, "ready")
        return job_id

    async def end_jobs(self) -> None:
        """End what a test left running, and check that only the agent is left."""
        await self.reconnect()
        for directory in (self.directory / "jobs").glob("*"):
            # Also a job whose first process has not started yet.
            await self.client.cancel(int(directory.name), Owner("end of the test", 1 << 40), limit=60)
        await self.client.close()
        # A driver says that all is over a moment before it is over itself. The agent and its zygote stay.
        await eventually(
            lambda: self.agent_pid in self.processes() and len(self.processes()) == 2,
            "the last process of a job to end",
        )

    async def remove(self) -> None:
        """Remove the cluster, and check that nothing of it is left."""
        await self.client.close()
        await self.infra.tear_down(self.handle.name)
        assert_gone(self.root, self.handle.name)


def assert_gone(root: Path, name: str) -> None:
    """Check that nothing of a cluster is left, nor of any other below the same root."""
    assert processes.marked(processes.CLUSTER_MARKER, str(root / name)) == set(), (
        "processes of the cluster are left"
    )
    left = sorted(root.rglob("*")) if root.exists() else []
    assert left == [], "files of the cluster are left"
