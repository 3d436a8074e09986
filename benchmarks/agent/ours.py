"""Our agent for the time of a benchmark: a local cluster, and what is measured of its processes."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory
from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.client import JobRequest, JobState, JobStatus, LogBytes, Owner
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.client.base import Demand
from airflow_provider.runtime.infra.base import Choice
from airflow_provider.runtime.infra.local import LocalInfra
from airflow_provider.runtime.task import Candidate
from airflow_provider.runtime.transport.channel import UnixChannel
from benchmarks.agent.moments import ended

OWNER = Owner("benchmark", 1)
ANY_CHOICE = Choice(Candidate())
CPUS = 2


class Ours:
    """A local cluster with 2 CPUs, however many this machine has, and a client of it."""

    def __init__(self, directory: Path, client: AgentClient) -> None:
        self.directory = directory
        self.client = client

    @property
    def agent(self) -> psutil.Process:
        """The agent's process."""
        return psutil.Process(_pid(self.directory))

    @property
    def zygote(self) -> psutil.Process:
        """The process that it forks drivers from."""
        (child,) = self.agent.children()
        return child

    def connection(self) -> UnixChannel:
        """Return another connection to the agent."""
        return UnixChannel(self.directory / "agent", "agent.sock")

    async def submit(self, run: str, *, setup: str = "", cpus: float = 0.0) -> int:
        """Submit a job and return its id."""
        request = JobRequest("short", setup, run, envs={}, secrets={}, demand=Demand(cpus=cpus))
        return await self.client.submit(uuid.uuid4().hex, OWNER, request)

    async def log(self, job_id: int, *, offset: int | None = 0) -> AsyncIterator[bytes]:
        """Yield a job's log as it comes.

        Raises:
            RuntimeError: the job did not succeed.
        """
        async for message in await self.client.follow(job_id, OWNER, offset=offset):
            if isinstance(message, LogBytes):
                yield message.data
            elif isinstance(message, JobState) and message.status.terminal:
                _check(message)

    async def until(self, job_id: int, text: bytes) -> None:
        """Follow a job until its log holds a text."""
        stream = await self.client.follow(job_id, OWNER, offset=0)
        seen = b""
        try:
            async for message in stream:
                if isinstance(message, LogBytes):
                    seen += message.data
                    if text in seen:
                        return
        finally:
            await stream.close()
        raise RuntimeError(f"job {job_id} ended without {text!r}: {seen[-500:]!r}")

    async def end(self, job_id: int) -> JobState:
        """Wait for a job's end, without its log."""
        state = await self.client.status(job_id)
        async for message in await self.client.follow(job_id, OWNER, offset=state.log_size):
            if isinstance(message, JobState):
                state = message
        _check(state)
        return state

    async def cancel(self, job_id: int) -> None:
        """End a job."""
        await self.client.cancel(job_id, OWNER, limit=60)

    def driver(self, job_id: int) -> int:
        """Return the pid of a job's driver."""
        pid = JobDirectory(self.directory / "jobs" / str(job_id)).driver_pid()
        if not pid:
            raise RuntimeError(f"job {job_id} has no driver")
        return pid


@asynccontextmanager
async def cluster(infra: LocalInfra, name: str) -> AsyncIterator[Ours]:
    """A cluster that is there as long as the context."""
    handle = await infra.provision(name, ANY_CHOICE, quiet)
    directory = Path(handle.address["directory"])
    try:
        # An agent reads what its node has when it starts.
        (directory / "agent" / "node.json").write_text(json.dumps({"cpus": CPUS, "accelerators": {}}))
        pid = _pid(directory)
        os.kill(pid, signal.SIGTERM)
        await ended(pid)
        await infra.restart_agent(handle)
        client = await infra.connect(handle)
        try:
            await client.handshake()
            yield Ours(directory, client)
        finally:
            await client.close()
    finally:
        await infra.tear_down(name)
        if processes.marked(processes.CLUSTER_MARKER, str(directory)):
            raise RuntimeError(f"processes of cluster {name} are left")


async def quiet(_line: str) -> None:
    """Take progress lines and drop them."""


def _pid(directory: Path) -> int:
    return int((directory / "agent" / "agent.lock").read_text())


def _check(state: JobState) -> None:
    if state.status is not JobStatus.SUCCEEDED:
        raise RuntimeError(f"the benchmark's job ended {state}")
