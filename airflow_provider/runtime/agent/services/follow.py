"""Follow: a job's log and states, pushed as they happen, as fast as the reader takes them."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.guard import BadRequest, OutOfRange
from airflow_provider.runtime.agent.jobs.job import Fenced, Job
from airflow_provider.runtime.agent.jobs.jobdir import open_regular
from airflow_provider.runtime.agent.services.answers import check_owner, job_state
from airflow_provider.runtime.agent.waiting import happens
from airflow_provider.runtime.wire import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from airflow_provider.runtime.agent.jobs.jobs import Jobs
    from airflow_provider.runtime.agent.lease import Lease

# Large enough to carry 150 MB/s, small enough to keep a slow reader's share of memory small.
_CHUNK_BYTES = 256 * 1024
_HEARTBEAT_SECONDS = 5.0
_GATHER_SECONDS = 0.05
"""At least so long between two pieces of a log that grows: each costs the same, whether it holds one line or many."""


class Following:
    """Serves follow streams."""

    def __init__(self, jobs: Jobs, lease: Lease) -> None:
        self._jobs = jobs
        self._lease = lease

    async def follow(self, requests: AsyncIterator[pb.FollowRequest]) -> AsyncIterator[pb.FollowResponse]:
        """Stream what the first request asks for, taking acknowledgements meanwhile."""
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("start"):
            raise BadRequest("a follow stream begins with `start`")
        start = first.start
        check_owner(start.owner)
        job = await self._jobs.get(start.job_id)
        await self._jobs.own(job, start.owner.id, start.owner.generation)
        offset = start.offset if start.HasField("offset") else job.row.acknowledged
        size = job.directory.log_size()
        if not start.HasField("offset"):
            offset = min(offset, size)  # the job may have truncated its own log
        if not 0 <= offset <= size:
            raise OutOfRange(f"offset {offset} of a log of {size} bytes")
        acknowledgements = asyncio.create_task(self._take_acknowledgements(job, start.owner, requests))
        try:
            with self._lease.held(), self._jobs.following(job):
                async for response in self._stream(job, start.owner, offset):
                    yield response
                # The reader may still be at work on what was sent, and acknowledging it: it ends the stream.
                await acknowledgements
        finally:
            acknowledgements.cancel()

    async def _stream(self, job: Job, owner: pb.Owner, offset: int) -> AsyncIterator[pb.FollowResponse]:
        told = ""
        sent = 0.0
        # Not in a thread: a caller that leaves meanwhile would leave the descriptor open.
        handle = _open(job.directory.log)
        try:
            while True:
                change = job.changed.next()
                if owner.generation < job.row.generation:
                    raise Fenced("a later owner took the job over")
                # The terminal state is looked at before the log: all of the log was written before it was set.
                terminal = job.row.terminal
                if not terminal and job.row.status != told:
                    told = job.row.status
                    yield pb.FollowResponse(state=job_state(job))
                data = await asyncio.to_thread(os.pread, handle, _CHUNK_BYTES, offset)
                if data:
                    yield pb.FollowResponse(log=pb.LogChunk(offset=offset, data=data))
                    offset += len(data)
                    sent = time.monotonic()
                    continue
                if terminal:
                    yield pb.FollowResponse(state=job_state(job))
                    return
                if await happens(change, _HEARTBEAT_SECONDS):
                    await happens(job.over, sent + _GATHER_SECONDS - time.monotonic())
                else:
                    yield pb.FollowResponse(heartbeat=pb.Heartbeat())
        finally:
            os.close(handle)

    async def _take_acknowledgements(
        self, job: Job, owner: pb.Owner, requests: AsyncIterator[pb.FollowRequest]
    ) -> None:
        async for request in requests:
            if owner.generation >= job.row.generation:
                await self._jobs.acknowledge(job, min(request.acknowledged, job.directory.log_size()))


def _open(log: Path) -> int:
    try:
        return open_regular(log)
    except OSError:  # removed by its own job, or something else in its place: nothing to show
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
