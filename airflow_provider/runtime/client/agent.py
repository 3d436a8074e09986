"""The client of our own agent."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from airflow_provider.runtime.blocking import run_blocking
from airflow_provider.runtime.client.base import (
    AgentFailed,
    ClientError,
    Heartbeat,
    JobRequest,
    JobState,
    JobStatus,
    LinkLost,
    LogBytes,
    NoSuchJob,
    Owner,
    RequestRefused,
)
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import BinaryIO

    from airflow_provider.runtime.transport.channel import UnixChannel

_CALL_SECONDS = 10.0
_SILENCE_SECONDS = 10.0
"""A follow stream that says nothing, not even a heartbeat, for so long is dead."""
_BLOB_CHUNK_BYTES = 1 << 20
_LOST_STATUS = "Internal error from Core"
"""What grpcio says when a call ends during a write: the status that the other side gave is lost then."""

_KINDS = {"directory": pb.Files.DIRECTORY, "file": pb.Files.FILE}

_ERRORS: dict[grpc.StatusCode, type[ClientError] | type[Superseded]] = {
    grpc.StatusCode.UNAVAILABLE: LinkLost,
    grpc.StatusCode.DEADLINE_EXCEEDED: LinkLost,
    grpc.StatusCode.CANCELLED: LinkLost,
    grpc.StatusCode.PERMISSION_DENIED: Superseded,
    grpc.StatusCode.NOT_FOUND: NoSuchJob,
    grpc.StatusCode.INVALID_ARGUMENT: RequestRefused,
    grpc.StatusCode.OUT_OF_RANGE: RequestRefused,
    grpc.StatusCode.UNIMPLEMENTED: RequestRefused,
}


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        kind = _ERRORS.get(error.code(), AgentFailed)
        raise kind(f"{what}: {error.code().name} {error.details() or ''}".rstrip()) from error
    except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
        raise LinkLost(f"{what}: the channel is closed") from error


class AgentFollowStream:
    """One open Follow call."""

    def __init__(self, call: grpc.aio.StreamStreamCall[pb.FollowRequest, pb.FollowResponse]) -> None:
        self._call = call
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[LogBytes | JobState | Heartbeat]:
        """Yield what the agent sends; see FollowStream."""
        with _translated("follow"):
            while True:
                try:
                    message = await asyncio.wait_for(self._call.read(), _SILENCE_SECONDS)
                except asyncio.TimeoutError:
                    raise LinkLost(f"follow: nothing heard for {_SILENCE_SECONDS:.0f} s") from None
                except asyncio.CancelledError:
                    if self._closed:  # the call was cancelled, not the task that reads it
                        raise LinkLost("follow: the stream is closed") from None
                    raise
                if not isinstance(message, pb.FollowResponse):
                    return
                if message.HasField("log"):
                    yield LogBytes(message.log.offset, message.log.data)
                elif message.HasField("state"):
                    state = _job_state(message.state)
                    yield state
                    if state.status.terminal:
                        await self._call.done_writing()  # the agent keeps the stream open until we are done
                        return
                else:
                    yield Heartbeat()

    async def acknowledge(self, offset: int) -> None:
        """See FollowStream."""
        with _translated("acknowledge"):
            await self._call.write(pb.FollowRequest(acknowledged=offset))

    async def close(self) -> None:
        """See FollowStream."""
        self._closed = True
        self._call.cancel()


class AgentClient:
    """A ClusterClient over one channel. Owns the channel."""

    def __init__(self, channel: UnixChannel) -> None:
        self._transport = channel
        self._channel = channel.channel

    async def handshake(self, *, lease_seconds: float = 0.0) -> str:
        """See ClusterClient."""
        with _translated("handshake"):
            answer = await rpcs.HANDSHAKE.unary(self._channel)(
                pb.HandshakeRequest(lease_seconds=lease_seconds), timeout=_CALL_SECONDS
            )
        if answer.protocol_version != rpcs.PROTOCOL_VERSION:
            raise RequestRefused(
                f"handshake: the agent ({answer.agent_version}) speaks protocol {answer.protocol_version}, "
                f"this side {rpcs.PROTOCOL_VERSION}"
            )
        return answer.instance

    async def send_files(
        self,
        digest: str,
        size: int,
        read: Callable[[], BinaryIO],
        progress: Callable[[int], None] = lambda sent: None,
    ) -> None:
        """See ClusterClient."""
        with _translated("send files"):
            have = await rpcs.STAT_BLOB.unary(self._channel)(
                pb.StatBlobRequest(digest=digest), timeout=_CALL_SECONDS
            )
            if have.complete:
                return
            file = await run_blocking(read)
            try:
                await run_blocking(file.seek, have.received)
                await self._upload(
                    file, pb.PutBlobStart(digest=digest, size=size, offset=have.received), progress
                )
            finally:
                await run_blocking(file.close)

    async def _upload(self, file: BinaryIO, start: pb.PutBlobStart, progress: Callable[[int], None]) -> None:
        call = rpcs.PUT_BLOB.upload(self._channel)(None)
        sent = start.offset
        try:
            with suppress(
                asyncio.InvalidStateError
            ):  # the agent said its last word already, which is read below
                await call.write(pb.PutBlobRequest(start=start))
                while data := await run_blocking(file.read, _BLOB_CHUNK_BYTES):
                    # Each piece has the deadline, not the whole: how long that takes depends on its size.
                    await asyncio.wait_for(call.write(pb.PutBlobRequest(data=data)), _SILENCE_SECONDS)
                    sent += len(data)
                    progress(sent)
                await call.done_writing()
            if (await call).received != start.size:
                raise AgentFailed(f"send files: the archive has {sent} bytes, {start.size} were announced")
        except grpc.aio.AioRpcError as error:
            if error.details() == _LOST_STATUS:
                raise AgentFailed("send files: the agent broke it off; its log says why") from error
            raise
        except asyncio.TimeoutError:
            raise LinkLost(f"send files: the agent took nothing for {_SILENCE_SECONDS:.0f} s") from None
        finally:
            call.cancel()

    async def submit(self, key: str, owner: Owner, job: JobRequest) -> int:
        """See ClusterClient."""
        try:
            request = _submit_request(key, owner, job)
        except (KeyError, TypeError, ValueError) as error:
            # Halves of characters, for one. The error itself may show a secret.
            raise RequestRefused(
                f"submit: the job cannot be put into a message ({type(error).__name__})"
            ) from None
        with _translated("submit"):
            answer = await rpcs.SUBMIT.unary(self._channel)(request, timeout=_CALL_SECONDS)
        return answer.job_id

    async def status(self, job_id: int) -> JobState:
        """See ClusterClient."""
        with _translated("status"):
            return _job_state(
                await rpcs.STATUS.unary(self._channel)(pb.StatusRequest(job_id=job_id), timeout=_CALL_SECONDS)
            )

    async def follow(self, job_id: int, owner: Owner, *, offset: int | None) -> AgentFollowStream:
        """See ClusterClient."""
        with _translated("follow"):
            call = rpcs.FOLLOW.duplex(self._channel)(None)
            start = pb.FollowStart(job_id=job_id, owner=_owner(owner), offset=offset)
            try:
                await asyncio.wait_for(call.write(pb.FollowRequest(start=start)), _CALL_SECONDS)
            except asyncio.TimeoutError:
                raise LinkLost(f"follow: the agent took nothing for {_CALL_SECONDS:.0f} s") from None
        return AgentFollowStream(call)

    async def cancel(self, job_id: int, owner: Owner, *, limit: float) -> JobState:
        """See ClusterClient."""
        with _translated("cancel"):
            return _job_state(
                await rpcs.CANCEL.unary(self._channel)(
                    pb.CancelRequest(job_id=job_id, owner=_owner(owner)), timeout=limit
                )
            )

    async def close(self) -> None:
        """See ClusterClient."""
        await self._transport.close()


def _owner(owner: Owner) -> pb.Owner:
    return pb.Owner(id=owner.id, generation=owner.generation)


def _submit_request(key: str, owner: Owner, job: JobRequest) -> pb.SubmitRequest:
    return pb.SubmitRequest(
        key=key,
        owner=_owner(owner),
        job=pb.JobSpec(
            name=job.name,
            setup=job.setup,
            run=job.run,
            envs=job.envs,
            secrets=job.secrets,
            files=[
                pb.Files(digest=tree.digest, kind=_KINDS[tree.kind], destination=tree.destination)
                for tree in job.files
            ],
            grace_seconds=job.grace_seconds,
        ),
    )


def _job_state(state: pb.JobState) -> JobState:
    return JobState(
        job_id=state.job_id,
        status=JobStatus(pb.JobStatus.Name(state.status)),
        exit_codes=tuple(state.exit_codes),
        reason=state.reason,
        output=state.output if state.HasField("output") else None,
        submitted_at=state.submitted_at,
        started_at=state.started_at,
        ended_at=state.ended_at,
        log_size=state.log_size,
    )
