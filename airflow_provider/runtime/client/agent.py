"""The client of our own agent."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from airflow_provider.runtime.agent.waiting import within
from airflow_provider.runtime.client.autostop import autostop_request
from airflow_provider.runtime.client.base import (
    Autostop,
    Heartbeat,
    JobRequest,
    JobState,
    JobStatus,
    LinkLost,
    LogBytes,
    ManagedTask,
    Owner,
    RequestRefused,
)
from airflow_provider.runtime.client.calls import CALL_SECONDS, ask_once, translated
from airflow_provider.runtime.client.sending import Sending
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import autostop_pb2 as autostop_pb
from airflow_provider.runtime.wire import rpcs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import BinaryIO

    from airflow_provider.runtime.client.base import FileProgress
    from airflow_provider.runtime.client.calls import Transport

_SILENCE_SECONDS = 12.0
"""A follow stream that says nothing, not even a heartbeat, for so long is dead."""

_KINDS = {"directory": pb.Files.DIRECTORY, "file": pb.Files.FILE}


class AgentFollowStream:
    """One open Follow call."""

    def __init__(self, call: grpc.aio.StreamStreamCall[pb.FollowRequest, pb.FollowResponse]) -> None:
        self._call = call
        self._closed = False
        self._silent = False
        self._listening_since: float | None = None

    async def __aiter__(self) -> AsyncIterator[LogBytes | JobState | Heartbeat]:
        """Yield what the agent sends; see FollowStream."""
        with translated("follow"), self._watched():
            while True:
                message = await self._read()
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

    async def _read(self) -> pb.FollowResponse | object:
        self._listening_since = asyncio.get_running_loop().time()
        try:
            return await self._call.read()
        except asyncio.CancelledError:
            if self._silent:
                raise LinkLost(f"follow: nothing heard for {_SILENCE_SECONDS:.0f} s") from None
            if self._closed:  # the call was cancelled, not the task that reads it
                raise LinkLost("follow: the stream is closed") from None
            raise
        finally:
            self._listening_since = None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End the call when we have listened in vain for too long: one timer, whatever comes how often."""
        self._watch(_SILENCE_SECONDS)
        try:
            yield
        finally:
            self._timer.cancel()

    def _watch(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        since = now if self._listening_since is None else self._listening_since
        left = since + _SILENCE_SECONDS - now
        if left > 0:
            self._watch(left)
        else:
            self._silent = True
            self._call.cancel()

    async def acknowledge(self, offset: int) -> None:
        """See FollowStream."""
        with translated("acknowledge"):
            await self._call.write(pb.FollowRequest(acknowledged=offset))

    async def close(self) -> None:
        """See FollowStream."""
        self._closed = True
        self._call.cancel()


class AgentClient:
    """A ClusterClient over one channel. Owns the channel.

    Each call is made once: whether to try again is the controller's decision, made on evidence.
    """

    def __init__(self, channel: Transport) -> None:
        self._transport = channel
        self._channel = channel.channel

    async def handshake(self, *, lease_seconds: float = 0.0) -> str:
        """See ClusterClient."""
        answer = await ask_once(
            self._channel, rpcs.HANDSHAKE, pb.HandshakeRequest(lease_seconds=lease_seconds)
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
        progress: Callable[[FileProgress], None] = lambda done: None,
    ) -> None:
        """See ClusterClient."""
        await Sending(self._channel, digest=digest, size=size, read=read, progress=progress).run()

    async def submit(self, key: str, owner: Owner, job: JobRequest) -> int:
        """See ClusterClient."""
        try:
            request = _submit_request(key, owner, job)
        except (KeyError, TypeError, ValueError) as error:
            # Halves of characters, for one. The error itself may show a secret.
            raise RequestRefused(
                f"submit: the job cannot be put into a message ({type(error).__name__})"
            ) from None
        return (await ask_once(self._channel, rpcs.SUBMIT, request)).job_id

    async def status(self, job_id: int) -> JobState:
        """See ClusterClient."""
        return _job_state(await ask_once(self._channel, rpcs.STATUS, pb.StatusRequest(job_id=job_id)))

    async def jobs(self, *, all: bool = False) -> list[JobState]:
        """See ClusterClient."""
        found: list[JobState] = []
        request = pb.ListJobsRequest(all=all)
        while True:
            page = await ask_once(self._channel, rpcs.LIST_JOBS, request)
            found += [_job_state(state) for state in page.jobs]
            if not page.more:
                return found
            request = pb.ListJobsRequest(all=all, before=page.jobs[-1].job_id)

    async def follow(self, job_id: int, owner: Owner, *, offset: int | None) -> AgentFollowStream:
        """See ClusterClient."""
        with translated("follow"):
            call = rpcs.FOLLOW.duplex(self._channel)(None)
            start = pb.FollowStart(job_id=job_id, owner=_owner(owner), offset=offset)
            try:
                await within(CALL_SECONDS, call.write(pb.FollowRequest(start=start)))
            except asyncio.TimeoutError:
                raise LinkLost(f"follow: the agent took nothing for {CALL_SECONDS:.0f} s") from None
        return AgentFollowStream(call)

    async def cancel(self, job_id: int, owner: Owner, *, limit: float) -> JobState:
        """See ClusterClient."""
        request = pb.CancelRequest(job_id=job_id, owner=_owner(owner))
        return _job_state(await ask_once(self._channel, rpcs.CANCEL, request, seconds=limit))

    async def set_autostop(self, autostop: Autostop) -> None:
        """See ClusterClient."""
        await ask_once(self._channel, rpcs.SET_AUTOSTOP, autostop_request(autostop))

    async def autostopping(self) -> bool:
        """See ClusterClient."""
        request = autostop_pb.IsAutostoppingRequest()
        return (await ask_once(self._channel, rpcs.IS_AUTOSTOPPING, request)).is_autostopping

    async def hold(self, holder: str, seconds: float) -> float:
        """Keep the cluster for ``holder`` for so many seconds, neither idle nor ended by its lease; 0 lets it go.

        Returns:
            The seconds that the cluster now lives without another word.
        """
        return (
            await ask_once(self._channel, rpcs.LEASE, pb.LeaseRequest(holder=holder, seconds=seconds))
        ).left

    async def health(self) -> pb.NodeHealthResponse:
        """Return how the nodes are, what is taken of them, and what autostop and lease are about to do."""
        return await ask_once(self._channel, rpcs.NODE_HEALTH, pb.NodeHealthRequest())

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
            demand=pb.Demand(
                cpus=job.demand.cpus, memory=job.demand.memory, accelerators=job.demand.accelerators
            ),
            managed=None if job.managed is None else _managed(job.managed),
            git=None if job.git is None else pb.GitSource(url=job.git.url, ref=job.git.ref),
            node_ips=job.node_ips,
        ),
    )


def _managed(task: ManagedTask) -> pb.ManagedTask:
    return pb.ManagedTask(
        job_id=task.job_id,
        job_name=task.job_name,
        task_id=task.task_id,
        task_name=task.task_name,
        user=task.user,
        workspace=task.workspace,
        attempt=task.attempt,
        infra=task.infra,
        resources=task.resources,
        metadata=task.metadata,
    )


def _job_state(state: pb.JobState) -> JobState:
    return JobState(
        job_id=state.job_id,
        status=_status(state.status),
        exit_codes=tuple(state.exit_codes),
        reason=state.reason,
        output=state.output if state.HasField("output") else None,
        submitted_at=state.submitted_at,
        started_at=state.started_at,
        ended_at=state.ended_at,
        log_size=state.log_size,
        name=state.name,
    )


def _status(status: pb.JobStatus) -> JobStatus:
    try:
        return JobStatus(pb.JobStatus.Name(status))
    except ValueError:
        # Guessing whether such a job has ended could end or repeat it.
        raise RequestRefused(
            f"the agent tells of job status {status}, which this version does not know: upgrade the provider"
        ) from None
