"""What a controller does with a cluster, without the controller: provision, submit, follow."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from airflow_provider.runtime.client import JobRequest, JobState, JobStatus, LogBytes, Owner
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.client.base import Demand
from airflow_provider.runtime.control.follower import Follower
from airflow_provider.runtime.infra.base import Choice, ClusterHandle
from airflow_provider.runtime.infra.ssh.infra import SshInfra
from airflow_provider.runtime.task import Candidate

OWNER = Owner("benchmark", 1)
ANY_CHOICE = Choice(Candidate())


class Lines:
    """A sink that keeps what a job prints."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._times: list[float] = []

    @property
    def first_at(self) -> float:
        """When the first of it came, in the time of ``time.perf_counter``."""
        if not self._times:
            raise RuntimeError("the job printed nothing")
        return self._times[0]

    async def output(self, text: str) -> None:
        """Keep it."""
        self.texts.append(text)
        self._times.append(time.perf_counter())

    async def say(self, message: str) -> None:
        """Drop the controller's own lines."""


async def provision(infra: SshInfra, name: str, previous: ClusterHandle | None = None) -> ClusterHandle:
    """Return a cluster with a running agent; ``previous``: the one that is there."""
    return await infra.provision(name, ANY_CHOICE, quiet, previous=previous)


async def submit(client: AgentClient, run: str) -> int:
    """Submit a job that takes nothing of its node, and return its id."""
    request = JobRequest("short", "", run, envs={}, secrets={}, demand=Demand(cpus=0.0))
    return await client.submit(uuid.uuid4().hex, OWNER, request)


async def follow(client: AgentClient, job_id: int, lines: Lines) -> JobState:
    """Follow a job to its end as the controller does and return how it ended."""
    async for event in Follower(job_id, lines).events(client, OWNER):
        if isinstance(event, JobState) and event.status.terminal:
            return event
    raise RuntimeError("the stream ended before the job did")


def check(state: JobState) -> None:
    """Raise RuntimeError unless the job succeeded."""
    if state.status is not JobStatus.SUCCEEDED:
        raise RuntimeError(f"the benchmark's job ended {state}")


async def log(client: AgentClient, job_id: int) -> AsyncIterator[bytes]:
    """Yield a job's log as it comes, as bytes."""
    async for message in await client.follow(job_id, OWNER, offset=0):
        if isinstance(message, LogBytes):
            yield message.data
        elif isinstance(message, JobState) and message.status.terminal:
            check(message)


@asynccontextmanager
async def cluster(infra: SshInfra, name: str) -> AsyncIterator[AgentClient]:
    """A client of a cluster that is there as long as the context."""
    handle = await provision(infra, name)
    client = await infra.connect(handle)
    try:
        yield client
    finally:
        await client.close()
        await infra.tear_down(name, handle)


async def quiet(_line: str) -> None:
    """Take progress lines and drop them."""
