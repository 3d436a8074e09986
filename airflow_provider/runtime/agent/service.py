"""The agent's gRPC service: requests in, calls to the jobs, replies and streams out."""

from __future__ import annotations

import asyncio
import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakValueDictionary

import grpc

from airflow_provider.runtime.agent.blobs import BadBlob, Blobs, BrokenBlob
from airflow_provider.runtime.agent.guard import answering, streaming
from airflow_provider.runtime.agent.job import Closing, Fenced, Job, UnknownJob
from airflow_provider.runtime.agent.jobdir import FileOrder, Order
from airflow_provider.runtime.agent.jobs import DEFAULT_GRACE_SECONDS, Jobs
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire.rpcs import PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.protobuf.message import Message

    from airflow_provider.runtime.agent.lease import Lease

    Context = grpc.aio.ServicerContext[Message, Message]

FEATURES = ("submit", "follow", "cancel", "blobs", "lease")

# Large enough to carry 150 MB/s, small enough to keep a slow reader's share of memory small.
_CHUNK_BYTES = 256 * 1024
_HEARTBEAT_SECONDS = 2.0
_DRAIN_SECONDS = 1.0
_GATHER_SECONDS = 0.05
"""At least so long between two pieces of a log that grows: each costs the same, whether it holds one line or many."""

_FILE_KINDS = {pb.Files.DIRECTORY: "directory", pb.Files.FILE: "file"}


class AgentService:
    """One method per RPC of the table in ``wire/rpcs.py``."""

    def __init__(
        self, *, jobs: Jobs, blobs: Blobs, lease: Lease, version: str, instance: str, boot_id: str
    ) -> None:
        self._jobs = jobs
        self._blobs = blobs
        self._lease = lease
        self._version = version
        self._instance = instance
        self._boot_id = boot_id
        self._receiving: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @answering
    async def handshake(self, request: pb.HandshakeRequest, context: Context) -> pb.HandshakeResponse:
        """Say who we are; the first call of every client."""
        if not 0 <= request.lease_seconds < math.inf:
            await _abort(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"lease_seconds is {request.lease_seconds}: a number from 0 on is needed",
            )
        self._lease.renew(request.lease_seconds)
        return pb.HandshakeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_version=self._version,
            features=FEATURES,
            instance=self._instance,
            boot_id=self._boot_id,
            pid=os.getpid(),
        )

    @answering
    async def submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitResponse:
        """Accept a job, once per key."""
        self._lease.renew()
        await _check_submit(request, context)
        spec = request.job
        try:
            files = [
                FileOrder(
                    archive=str(self._blobs.path(item.digest)),
                    kind=_FILE_KINDS[item.kind],
                    destination=item.destination,
                )
                for item in spec.files
            ]
        except BadBlob as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"files: {error}")
        for item in spec.files:
            if not await asyncio.to_thread(os.path.exists, self._blobs.path(item.digest)):
                await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"blob {item.digest} is not here")
        grace = spec.grace_seconds if spec.HasField("grace_seconds") else DEFAULT_GRACE_SECONDS
        try:
            job, created = await self._jobs.submit(
                key=request.key,
                name=spec.name,
                owner_id=request.owner.id,
                generation=request.owner.generation,
                grace_seconds=grace,
                order=lambda marker, home: Order(
                    marker=marker,
                    setup=spec.setup,
                    run=spec.run,
                    home=home,
                    files=files,
                    grace_seconds=grace,
                ),
                variables={**spec.envs, **spec.secrets},
            )
        except Fenced as error:
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        except Closing as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.SubmitResponse(job_id=job.row.job_id, created=created)

    @answering
    async def status(self, request: pb.StatusRequest, context: Context) -> pb.JobState:
        """Return a job's state."""
        self._lease.renew()
        return _state(await self._find(request.job_id, context))

    @answering
    async def cancel(self, request: pb.CancelRequest, context: Context) -> pb.JobState:
        """End a job and return its state once nothing of it is left. Repeating the call is safe."""
        self._lease.renew()
        if not 0 <= request.grace_seconds < math.inf:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, _bad_grace("", request.grace_seconds))
        job = await self._find(request.job_id, context)
        await self._own(job, request.owner, context)
        grace = request.grace_seconds if request.HasField("grace_seconds") else None
        await self._jobs.cancel(job, grace)
        await self._jobs.ended(job)
        return _state(job)

    @streaming
    async def follow(
        self, requests: AsyncIterator[pb.FollowRequest], context: Context
    ) -> AsyncIterator[pb.FollowResponse]:
        """Stream a job's log and state changes; ends after the last byte and the terminal state."""
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("start"):
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "a follow stream begins with `start`")
        start = first.start
        job = await self._find(start.job_id, context)
        await self._own(job, start.owner, context)
        offset = start.offset if start.HasField("offset") else job.row.acknowledged
        size = job.directory.log_size()
        if not start.HasField("offset"):
            offset = min(offset, size)  # the job may have truncated its own log
        if not 0 <= offset <= size:
            await _abort(context, grpc.StatusCode.OUT_OF_RANGE, f"offset {offset} of a log of {size} bytes")
        acknowledgements = asyncio.create_task(self._take_acknowledgements(job, start.owner, requests))
        try:
            with self._lease.held():
                async for response in self._stream(job, start.owner, offset, context):
                    yield response
                # The reader may still be at work on what was sent, and acknowledging it: it ends the stream.
                await acknowledgements
        finally:
            acknowledgements.cancel()

    async def _stream(
        self, job: Job, owner: pb.Owner, offset: int, context: Context
    ) -> AsyncIterator[pb.FollowResponse]:
        told = ""
        sent = 0.0
        # Not in a thread: a caller that leaves meanwhile would leave the descriptor open.
        handle = _open(job.directory.log)
        try:
            while True:
                change = job.changed.next()
                if owner.generation < job.row.generation:
                    await _abort(
                        context, grpc.StatusCode.PERMISSION_DENIED, "a later owner took the job over"
                    )
                # The terminal state is looked at before the log: all of the log was written before it was set.
                terminal = job.row.terminal
                if not terminal and job.row.status != told:
                    told = job.row.status
                    yield pb.FollowResponse(state=_state(job))
                data = await asyncio.to_thread(os.pread, handle, _CHUNK_BYTES, offset)
                if data:
                    yield pb.FollowResponse(log=pb.LogChunk(offset=offset, data=data))
                    offset += len(data)
                    sent = time.monotonic()
                    continue
                if terminal:
                    yield pb.FollowResponse(state=_state(job))
                    return
                try:
                    await asyncio.wait_for(change.wait(), _HEARTBEAT_SECONDS)
                except asyncio.TimeoutError:
                    yield pb.FollowResponse(heartbeat=pb.Heartbeat())
                    continue
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(job.over.wait(), sent + _GATHER_SECONDS - time.monotonic())
        finally:
            os.close(handle)

    async def _take_acknowledgements(
        self, job: Job, owner: pb.Owner, requests: AsyncIterator[pb.FollowRequest]
    ) -> None:
        async for request in requests:
            if owner.generation >= job.row.generation:
                await self._jobs.acknowledge(job, min(request.acknowledged, job.directory.log_size()))

    @answering
    async def stat_blob(self, request: pb.StatBlobRequest, context: Context) -> pb.StatBlobResponse:
        """Say how much of a blob is here."""
        self._lease.renew()
        try:
            received = await asyncio.to_thread(self._blobs.received, request.digest)
        except BadBlob as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return pb.StatBlobResponse(received=received.bytes, complete=received.complete)

    @answering
    async def put_blob(
        self, requests: AsyncIterator[pb.PutBlobRequest], context: Context
    ) -> pb.PutBlobResponse:
        """Receive a blob from the given offset on; what arrived of a broken transfer is kept."""
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("start"):
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "a blob begins with `start`")
        start = first.start
        try:
            self._blobs.path(start.digest)
            # One sender at a time: what a second one brings is the same bytes.
            async with self._receiving.setdefault(start.digest, asyncio.Lock()):
                if (await asyncio.to_thread(self._blobs.received, start.digest)).complete:
                    async for _ in requests:
                        self._lease.renew()
                    return pb.PutBlobResponse(received=start.size)
                size = await asyncio.to_thread(self._blobs.append, start.digest, start.offset, b"")
                async for request in requests:
                    self._lease.renew()
                    size = await asyncio.to_thread(self._blobs.append, start.digest, size, request.data)
                    if size > start.size:
                        raise BadBlob(f"blob {start.digest} has more than the {start.size} bytes announced")
                if size == start.size:
                    await asyncio.to_thread(self._blobs.finish, start.digest)
        except (BadBlob, BrokenBlob, OSError) as error:
            await _drain(requests)
            if isinstance(error, OSError):
                raise
            code = (
                grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, BadBlob) else grpc.StatusCode.DATA_LOSS
            )
            await _abort(context, code, str(error))
        return pb.PutBlobResponse(received=size)

    async def _find(self, job_id: int, context: Context) -> Job:
        try:
            return self._jobs.get(job_id)
        except UnknownJob as error:
            await _abort(context, grpc.StatusCode.NOT_FOUND, str(error))

    async def _own(self, job: Job, owner: pb.Owner, context: Context) -> None:
        if not owner.id:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "owner.id is empty")
        try:
            await self._jobs.own(job, owner.id, owner.generation)
        except Fenced as error:
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, str(error))


async def _abort(context: Context, code: grpc.StatusCode, details: str) -> NoReturn:
    await context.abort(code, details)
    raise AssertionError("abort() always raises")


async def _drain(requests: AsyncIterator[pb.PutBlobRequest]) -> None:
    """Read on for a while: a client that is told of an error in the middle of a write does not get the reason."""

    async def read() -> None:
        async for _ in requests:
            pass

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), _DRAIN_SECONDS)


async def _check_submit(request: pb.SubmitRequest, context: Context) -> None:
    """Refuse what no process could be started with, naming the field."""
    problem = ""
    if not request.key:
        problem = "key is empty"
    elif not request.owner.id:
        problem = "owner.id is empty"
    elif not 0 <= request.job.grace_seconds < math.inf:
        problem = _bad_grace("job.", request.job.grace_seconds)
    else:
        for field, variables in (("envs", request.job.envs), ("secrets", request.job.secrets)):
            for name, value in variables.items():
                if not name or "=" in name or "\0" in name + value:
                    problem = f"job.{field}[{name!r}]: empty names, '=' in names and NUL are not possible"
        for item in request.job.files:
            if "\0" in item.destination or not item.destination.startswith(("/", "~/")):
                problem = f"job.files: destination {item.destination!r} is neither absolute nor below ~/"
            elif item.kind not in _FILE_KINDS:
                problem = f"job.files: kind {item.kind} of {item.destination} is not known"
    if problem:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)


def _bad_grace(where: str, seconds: float) -> str:
    return f"{where}grace_seconds is {seconds}: a number from 0 on is needed"


def _open(log: Path) -> int:
    try:
        return os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # removed by its own job: nothing to show
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _state(job: Job) -> pb.JobState:
    row = job.row
    return pb.JobState(
        job_id=row.job_id,
        status=row.status,
        exit_codes=row.exit_codes,
        reason=row.reason,
        output=row.output,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        log_size=job.directory.log_size(),
    )
