"""The services of a cluster's agent as raw calls: what a client that is not ours can send, and what it gets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from typing import NamedTuple, TypeAlias, TypeVar

import grpc.aio
import pytest

from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.clusters import Cluster

Answer = TypeVar("Answer")

INIT, PENDING, SETTING_UP, RUNNING = 1, 2, 3, 4
FAILED_DRIVER, SUCCEEDED, FAILED, FAILED_SETUP, CANCELLED = 5, 6, 7, 8, 9

REPORT = """
import json, os, sys, time
def report(**said):
    path = os.environ["MANAGED_JOBS_REPORT"]
    with open(path + ".part", "w") as file:
        json.dump(said, file)
    os.replace(path + ".part", path)
"""
"""What a program begins with that reports more than its exit code."""


Stream: TypeAlias = "grpc.aio.UnaryStreamCall[pb.TailLogsRequest, pb.TailLogsResponse]"


class Tail(NamedTuple):
    """What TailLogs sent."""

    text: str
    exit_code: int


class Wire:
    """The agent of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def channel(self) -> grpc.aio.Channel:
        return self.cluster.client._channel

    async def add(
        self,
        name: str | None = "test",
        *,
        user: str = "somebody",
        timestamp: str | None = None,
        resources: str = "1x[CPU:0.5]",
        metadata: str = "",
    ) -> pb.AddJobResponse:
        """Add a job; each with a run timestamp of its own unless one is given."""
        request = pb.AddJobRequest(
            job_name=name,
            username=user,
            run_timestamp=os.urandom(8).hex() if timestamp is None else timestamp,
            resources_str=resources,
            metadata=metadata,
        )
        return await rpcs.ADD_JOB.unary(self.channel)(request, timeout=10)

    async def queue(self, added: pb.AddJobResponse, program: str | None, **fields: object) -> None:
        """Queue a job that was added, as SkyPilot's client does."""
        values: dict[str, object] = {
            "job_id": added.job_id,
            "codegen": program,
            "remote_log_dir": added.log_dir,
            "script_path": f"~/.sky/sky_app/sky_job_{added.job_id}",
        }
        request = pb.QueueJobRequest(**{**values, **fields})  # type: ignore[arg-type]
        await rpcs.QUEUE_JOB.unary(self.channel)(request, timeout=10)

    async def program(self, program: str, **fields: object) -> int:
        """Add and queue a program; return the job's id."""
        added = await self.add(**fields)  # type: ignore[arg-type]
        await self.queue(added, program)
        return added.job_id

    async def running(self, program: str = "", **fields: object) -> int:
        """Start a program that goes on until it is ended, and wait until it runs."""
        job_id = await self.program(f"{program}\nimport time; time.sleep(600)", **fields)
        await self.until(job_id, RUNNING)
        return job_id

    async def status(self, job_id: int) -> int:
        request = pb.GetJobStatusRequest(job_ids=[job_id])
        return (await rpcs.GET_JOB_STATUS.unary(self.channel)(request, timeout=10)).job_statuses[job_id]

    async def until(self, job_id: int, *statuses: int, seconds: float = 20.0) -> int:
        """Wait for one of the statuses and return it."""
        deadline = time.monotonic() + seconds
        while (status := await self.status(job_id)) not in statuses:
            assert time.monotonic() < deadline, f"waited for {statuses}, the job is {status}"
            await asyncio.sleep(0.01)
        return status

    async def ended(self, job_id: int) -> int:
        """Wait for the job's end and return its status."""
        return await self.until(job_id, FAILED_DRIVER, SUCCEEDED, FAILED, FAILED_SETUP, CANCELLED)

    async def jobs(self, *, all_jobs: bool = True, user: str | None = None) -> list[pb.JobInfo]:
        request = pb.GetJobQueueRequest(all_jobs=all_jobs, user_hash=user)
        return list((await rpcs.GET_JOB_QUEUE.unary(self.channel)(request, timeout=10)).jobs)

    async def job(self, job_id: int) -> pb.JobInfo:
        (found,) = [job for job in await self.jobs() if job.job_id == job_id]
        return found

    async def cancel(self, *job_ids: int, **fields: object) -> list[int]:
        request = pb.CancelJobsRequest(job_ids=job_ids, **fields)  # type: ignore[arg-type]
        answer = await rpcs.CANCEL_JOBS.unary(self.channel)(request, timeout=30)
        return list(answer.cancelled_job_ids)

    async def exit_codes(self, job_id: int | None = None) -> list[int]:
        request = pb.GetJobExitCodesRequest(job_id=job_id)
        return list((await rpcs.GET_JOB_EXIT_CODES.unary(self.channel)(request, timeout=10)).exit_codes)

    def tailing(
        self, job_id: int | None = None, *, follow: bool = True, tail: int = 0, tail_offset: int = 0
    ) -> Stream:
        request = pb.TailLogsRequest(job_id=job_id, follow=follow, tail=tail, tail_offset=tail_offset)
        return rpcs.TAIL_LOGS.download(self.channel)(request)

    async def tail(
        self, job_id: int | None = None, *, follow: bool = True, tail: int = 0, tail_offset: int = 0
    ) -> Tail:
        """Read a log to its end, and check that the exit code comes alone and last."""
        return await read(self.tailing(job_id, follow=follow, tail=tail, tail_offset=tail_offset))


async def read(stream: Stream, seconds: float = 60.0) -> Tail:
    """Read TailLogs to its end, and check that the exit code comes alone and last."""
    *texts, last = await messages(stream, seconds)
    assert last.log_line == ""
    assert all(message.log_line and not message.exit_code for message in texts)
    return Tail("".join(message.log_line for message in texts), last.exit_code)


async def messages(stream: Stream, seconds: float = 60.0) -> list[pb.TailLogsResponse]:
    """Read TailLogs to its end."""

    async def collect() -> list[pb.TailLogsResponse]:
        found = []
        while isinstance(message := await stream.read(), pb.TailLogsResponse):
            found.append(message)
        return found

    return await asyncio.wait_for(collect(), seconds)


async def read_until(stream: Stream, text: str, seconds: float = 20.0) -> str:
    """Read TailLogs until its text ends with ``text``; return all of it."""
    seen = ""

    async def look() -> None:
        nonlocal seen
        while isinstance(message := await stream.read(), pb.TailLogsResponse):
            seen += message.log_line
            if seen.endswith(text):
                return
        raise AssertionError(f"the log ended without {text!r}: {seen[-500:]}")

    await asyncio.wait_for(look(), seconds)
    return seen


def finished(status: str, text: str = "") -> str:
    """Return a log's text followed by what TailLogs says of the end."""
    return f"{text}Job finished (status: {status}).\n"


async def refusal(call: Awaitable[Answer]) -> tuple[str, str]:
    """Return the name of the status code and the words with which a call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value.code().name, failure.value.details() or ""
