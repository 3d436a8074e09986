"""A server that answers as a test says: for what a real skylet does too rarely, too late or not at all."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
from google.protobuf.message import Message

from airflow_provider.runtime.client.skylet import USER
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from airflow_provider.runtime.wire.rpcs import Rpc

Answer = Callable[[Message, grpc.aio.ServicerContext], Awaitable[Message]]
Stream = Callable[[Message, grpc.aio.ServicerContext], AsyncIterator[Message]]


class ScriptedSkylet(grpc.GenericRpcHandler):
    """Answers the calls that it has answers for; others are UNIMPLEMENTED.

    Attributes:
        calls: How often each method was called.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.port = 0
        self._answers: dict[str, tuple[Rpc[Message, Message], Answer | Stream]] = {}

    def on(self, rpc: Rpc, answer: Answer | Stream) -> None:  # type: ignore[type-arg]
        """Answer an RPC."""
        self._answers[rpc.path] = (rpc, answer)

    def always(self, rpc: Rpc, message: Message) -> None:  # type: ignore[type-arg]
        """Answer an RPC with the same message each time."""

        async def answer(request: Message, context: grpc.aio.ServicerContext) -> Message:
            return message

        self.on(rpc, answer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        found = self._answers.get(handler_call_details.method)
        self.calls[handler_call_details.method.rpartition("/")[2]] += 1
        if found is None:
            return None
        rpc, answer = found
        kind = (
            grpc.unary_stream_rpc_method_handler
            if rpc.server_streams
            else grpc.unary_unary_rpc_method_handler
        )
        return kind(
            answer,
            request_deserializer=rpc.request.FromString,
            response_serializer=rpc.response.SerializeToString,
        )

    async def __aenter__(self) -> ScriptedSkylet:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(grace=None)


def info(
    status: pb.JobStatus,
    *,
    job_id: int = 1,
    pid: int = 9,
    key: str = "k",
    generation: int = 3,
    end: object = None,
    started: bool = True,
) -> pb.JobInfo:
    ours = {"key": key, "generation": generation, "grace_seconds": 0.0, **({"end": end} if end else {})}
    return pb.JobInfo(
        job_id=job_id,
        status=status,
        username=USER,
        pid=pid,
        submitted_at=1796050373.40377,
        start_at=1796050374.25 if started else -1.0,
        metadata=json.dumps({"managed_jobs": ours}),
    )


def has(server: ScriptedSkylet, *jobs: pb.JobInfo) -> None:
    """Give the skylet these jobs."""
    server.always(rpcs.GET_JOB_QUEUE, pb.GetJobQueueResponse(jobs=jobs))
    statuses = {job.job_id: job.status for job in jobs}
    server.always(rpcs.GET_JOB_STATUS, pb.GetJobStatusResponse(job_statuses=statuses))


def takes_janitors(server: ScriptedSkylet) -> list[pb.QueueJobRequest]:
    """Let the skylet take what cleans up, as job 2; return what it gets."""
    queued: list[pb.QueueJobRequest] = []

    async def queue(request: pb.QueueJobRequest, context: object) -> pb.QueueJobResponse:
        queued.append(request)
        return pb.QueueJobResponse()

    server.always(rpcs.ADD_JOB, pb.AddJobResponse(job_id=2))
    server.on(rpcs.QUEUE_JOB, queue)  # type: ignore[arg-type]
    return queued


def tells(server: ScriptedSkylet, *messages: pb.TailLogsResponse, more: bool = False) -> None:
    """Make TailLogs tell these messages, and with ``more`` nothing else for ever."""

    async def tail(request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[pb.TailLogsResponse]:
        for message in messages:
            yield message
        if more:
            await asyncio.Event().wait()

    server.on(rpcs.TAIL_LOGS, tail)


BEGIN = pb.TailLogsResponse(log_line="Waiting for task resources on 1 node.\n")
