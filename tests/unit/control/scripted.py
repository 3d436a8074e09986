"""The outermost edge by script: a cluster's client and infra that do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import BinaryIO

from airflow_provider.runtime.client.base import (
    FileProgress,
    Heartbeat,
    JobRequest,
    JobState,
    JobStatus,
    LinkLost,
    LogBytes,
    Owner,
)
from airflow_provider.runtime.infra.base import Choice, ClusterHandle, Health, Probe
from airflow_provider.runtime.task import TaskSpec

Said = LogBytes | JobState | Heartbeat | Exception | asyncio.Event

RUNNING = JobState(1, JobStatus.RUNNING)
SUCCEEDED = JobState(1, JobStatus.SUCCEEDED, (0,))
FAILED = JobState(1, JobStatus.FAILED, (3,), "exit code 3")
CANCELLED = JobState(1, JobStatus.CANCELLED, (), "cancelled")
BREAK = LinkLost("reset by peer")


class ScriptedStream:
    """Says what the script has: an exception is raised, an event is waited for."""

    def __init__(self, script: Sequence[Said]) -> None:
        self.script = list(script)
        self.acknowledged: list[int] = []
        self.acknowledging: list[Exception] = []
        self.closed = False
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[LogBytes | JobState | Heartbeat]:
        for said in self.script:
            self.taken += 1
            if isinstance(said, asyncio.Event):
                await said.wait()
            elif isinstance(said, Exception):
                raise said
            else:
                yield said

    async def acknowledge(self, offset: int) -> None:
        if self.acknowledging:
            raise self.acknowledging.pop(0)
        self.acknowledged.append(offset)

    async def close(self) -> None:
        self.closed = True


class ScriptedClient:
    """A client with one script for each Follow call; what is not given succeeds."""

    def __init__(self, *streams: Sequence[Said], instance: str = "one") -> None:
        self.scripts = list(streams)
        self.streams: list[ScriptedStream] = []
        self.offsets: list[int | None] = []
        self.submitted: list[tuple[str, Owner, JobRequest]] = []
        self.cancelled = 0
        self.closed = 0
        self.instance = instance
        self.errors: dict[str, list[Exception]] = {}
        self.progress: list[FileProgress] = []

    def _maybe_fail(self, call: str) -> None:
        if self.errors.get(call):
            raise self.errors[call].pop(0)

    async def handshake(self, *, lease_seconds: float = 0.0) -> str:
        self._maybe_fail("handshake")
        return self.instance

    async def send_files(
        self,
        digest: str,
        size: int,
        read: Callable[[], BinaryIO],
        progress: Callable[[FileProgress], None] = lambda done: None,
    ) -> None:
        self._maybe_fail("send_files")
        for done in self.progress:
            progress(done)

    async def submit(self, key: str, owner: Owner, job: JobRequest) -> int:
        self._maybe_fail("submit")
        self.submitted.append((key, owner, job))
        return 1

    async def status(self, job_id: int) -> JobState:
        raise AssertionError("nobody polls")

    async def follow(self, job_id: int, owner: Owner, *, offset: int | None) -> ScriptedStream:
        self._maybe_fail("follow")
        self.offsets.append(offset)
        self.streams.append(ScriptedStream(self.scripts.pop(0)))
        return self.streams[-1]

    async def cancel(self, job_id: int, owner: Owner, *, limit: float) -> JobState:
        self._maybe_fail("cancel")
        self.cancelled += 1
        return CANCELLED

    async def close(self) -> None:
        self.closed += 1


class ScriptedInfra:
    """One cluster, which is as well as ``health`` says; the last value stays."""

    name = "scripted"

    def __init__(self, client: ScriptedClient) -> None:
        self.client = client
        self.health: list[Health | Exception] = [Health.ALIVE]
        self.errors: dict[str, list[BaseException]] = {}
        self.calls: list[str] = []
        self.intends: str | None = None
        self.previous: list[ClusterHandle | None] = []
        self.torn_down: list[ClusterHandle | None] = []
        self.waits: list[float] = []
        self.hold: dict[str, asyncio.Event] = {}
        self.reached = asyncio.Event()

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.hold:
            self.reached.set()
            await self.hold[name].wait()
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    def choose(self, task: TaskSpec) -> Choice:
        if self.errors.get("choose"):
            raise self.errors["choose"].pop(0)
        return Choice(task.resources.candidates[0])

    async def provision(
        self,
        name: str,
        choice: Choice,
        say: Callable[[str], Awaitable[None]],
        *,
        previous: ClusterHandle | None = None,
        intend: Callable[[ClusterHandle], Awaitable[None]] | None = None,
    ) -> ClusterHandle:
        self.previous.append(previous)
        if intend is not None and self.intends is not None:
            await intend(ClusterHandle("scripted", name, self.intends, {}))
        await self._call("provision")
        return ClusterHandle("scripted", name, "one", {})

    async def wait_for_room(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(seconds)

    async def connect(self, handle: ClusterHandle) -> ScriptedClient:
        await self._call("connect")
        return self.client

    async def probe(self, handle: ClusterHandle) -> Probe:
        await self._call("probe")
        health = self.health.pop(0) if len(self.health) > 1 else self.health[0]
        if isinstance(health, Exception):
            raise health
        return Probe(health, f"the script says {health.value}")

    async def restart_agent(self, handle: ClusterHandle) -> None:
        await self._call("restart_agent")

    async def tear_down(self, name: str, handle: ClusterHandle | None) -> None:
        self.torn_down.append(handle)
        await self._call("tear_down")


class Lines:
    """A sink that keeps everything; ``gate`` holds it back, ``errors`` are raised one by one."""

    def __init__(self) -> None:
        self.records: list[str] = []
        self.said: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.writing = asyncio.Event()
        self.errors: list[Exception] = []

    @property
    def lines(self) -> list[str]:
        return [line for record in self.records for line in record.split("\n")]

    async def output(self, text: str) -> None:
        self.writing.set()
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.records.append(text)

    async def say(self, message: str) -> None:
        self.said.append(message)


async def until(true: Callable[[], bool]) -> None:
    """Wait for what no event tells."""
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited 5 s in vain")
