"""Jobs of tests on a skylet, and what one sees of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from airflow_provider.runtime.client import ClusterClient, JobRequest, JobState, JobStatus, LogBytes, Owner

OWNER = Owner("task-instance", 7)


def new_key() -> str:
    return uuid.uuid4().hex


def job(run: str, **fields: object) -> JobRequest:
    """Return a request with defaults."""
    values = {"name": "test", "setup": "", "run": run, "envs": {}, "secrets": {}, "grace_seconds": 0.5}
    return JobRequest(**{**values, **fields})  # type: ignore[arg-type]


class Seen:
    """What a follower saw."""

    def __init__(self) -> None:
        self.states: list[JobState] = []
        self.log = b""
        self.begin: int | None = None
        self.heartbeats = 0

    def take(self, message: object) -> None:
        if isinstance(message, LogBytes):
            if self.begin is None:
                self.begin = message.offset
            assert message.offset == self.begin + len(self.log), "bytes are missing or come twice"
            self.log += message.data
        elif isinstance(message, JobState):
            self.states.append(message)
        else:
            self.heartbeats += 1

    @property
    def text(self) -> str:
        return self.log.decode()

    @property
    def end(self) -> JobState:
        assert self.states[-1].status.terminal, f"the last state told is {self.states[-1]}"
        return self.states[-1]


async def follow(client: ClusterClient, job_id: int, *, offset: int = 0, until: str | None = None) -> Seen:
    """Follow a job to its end, or until its log holds a text."""
    seen = Seen()
    stream = await client.follow(job_id, OWNER, offset=offset)
    try:
        async for message in stream:
            seen.take(message)
            if until is not None and until in seen.text:
                return seen
    finally:
        await stream.close()
    assert until is None, f"the job ended {seen.end} without {until!r}: {seen.text[-500:]}"
    assert seen.end
    return seen


async def run(client: ClusterClient, text: str, **fields: object) -> Seen:
    """Run a job to its end."""
    return await follow(client, await client.submit(new_key(), OWNER, job(text, **fields)))


async def eventually(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Wait for something that has no event to wait for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.02)


async def running(client: ClusterClient, job_id: int, seconds: float = 60.0) -> None:
    """Wait until the skylet says that a job runs: its driver has SkyPilot's library then."""
    stream = await client.follow(job_id, OWNER, offset=0)

    async def read() -> None:
        async for message in stream:
            if isinstance(message, JobState) and message.status is JobStatus.RUNNING:
                return
        raise AssertionError("the job ended without having run")

    try:
        await asyncio.wait_for(read(), seconds)
    finally:
        await stream.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
