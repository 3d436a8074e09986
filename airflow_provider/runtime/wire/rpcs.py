"""One table of RPCs that drives both sides: stubs on the client, handlers on the server.

The method path names SkyPilot's packages, the messages are our own: only the path and the field numbers travel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from airflow_provider.runtime.wire import agent_pb2 as agent
from airflow_provider.runtime.wire import autostop_pb2 as autostop
from airflow_provider.runtime.wire import jobs_pb2 as jobs
from airflow_provider.runtime.wire import managed_jobs_pb2 as managed_jobs
from airflow_provider.runtime.wire import serve_pb2 as serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import grpc.aio

PROTOCOL_VERSION = 1
"""Version of the agent protocol; grows when a change would be misread by an older peer."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True)
class Malformed:
    """Stands for a request whose bytes are no message of its type: gRPC itself would answer UNKNOWN."""

    reason: str


@dataclass(frozen=True)
class Rpc(Generic[Request, Response]):
    """One remote procedure: its place on the wire and its message types."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]
    client_streams: bool = False
    server_streams: bool = False

    @property
    def path(self) -> str:
        """Full method path, e.g. ``/package.Service/Name``."""
        return f"/{self.service}/{self.name}"

    @property
    def method(self) -> str:
        """Name of the Python method that serves it, e.g. ``put_blob`` for ``PutBlob``."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")

    def unary(self, channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[Request, Response]:
        """Return a callable for a unary-unary RPC on ``channel``."""
        return channel.unary_unary(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )

    def download(self, channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamMultiCallable[Request, Response]:
        """Return a callable for a unary-stream RPC on ``channel``."""
        return channel.unary_stream(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )

    def upload(self, channel: grpc.aio.Channel) -> grpc.aio.StreamUnaryMultiCallable[Request, Response]:
        """Return a callable for a stream-unary RPC on ``channel``."""
        return channel.stream_unary(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )

    def duplex(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[Request, Response]:
        """Return a callable for a stream-stream RPC on ``channel``."""
        return channel.stream_stream(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )


_AGENT = "airflow_managed_jobs.agent.v1.Agent"

HANDSHAKE = Rpc(_AGENT, "Handshake", agent.HandshakeRequest, agent.HandshakeResponse)
SUBMIT = Rpc(_AGENT, "Submit", agent.SubmitRequest, agent.SubmitResponse)
STATUS = Rpc(_AGENT, "Status", agent.StatusRequest, agent.JobState)
LIST_JOBS = Rpc(_AGENT, "ListJobs", agent.ListJobsRequest, agent.ListJobsResponse)
FOLLOW = Rpc(
    _AGENT, "Follow", agent.FollowRequest, agent.FollowResponse, client_streams=True, server_streams=True
)
CANCEL = Rpc(_AGENT, "Cancel", agent.CancelRequest, agent.JobState)
STAT_BLOB = Rpc(_AGENT, "StatBlob", agent.StatBlobRequest, agent.StatBlobResponse)
MISSING_CHUNKS = Rpc(_AGENT, "MissingChunks", agent.MissingChunksRequest, agent.MissingChunksResponse)
PUT_CHUNKS = Rpc(_AGENT, "PutChunks", agent.PutChunksRequest, agent.PutChunksResponse, client_streams=True)
PUT_BLOB = Rpc(_AGENT, "PutBlob", agent.PutBlobRequest, agent.PutBlobResponse)
LEASE = Rpc(_AGENT, "Lease", agent.LeaseRequest, agent.LeaseResponse)
NODE_HEALTH = Rpc(_AGENT, "NodeHealth", agent.NodeHealthRequest, agent.NodeHealthResponse)

AGENT_RPCS = (
    HANDSHAKE,
    SUBMIT,
    STATUS,
    LIST_JOBS,
    FOLLOW,
    CANCEL,
    STAT_BLOB,
    MISSING_CHUNKS,
    PUT_CHUNKS,
    PUT_BLOB,
    LEASE,
    NODE_HEALTH,
)

_AUTOSTOP = "autostop.v1.AutostopService"

SET_AUTOSTOP = Rpc(_AUTOSTOP, "SetAutostop", autostop.SetAutostopRequest, autostop.SetAutostopResponse)
IS_AUTOSTOPPING = Rpc(
    _AUTOSTOP, "IsAutostopping", autostop.IsAutostoppingRequest, autostop.IsAutostoppingResponse
)

AUTOSTOP_RPCS = (SET_AUTOSTOP, IS_AUTOSTOPPING)

_JOBS = "jobs.v1.JobsService"

ADD_JOB = Rpc(_JOBS, "AddJob", jobs.AddJobRequest, jobs.AddJobResponse)
QUEUE_JOB = Rpc(_JOBS, "QueueJob", jobs.QueueJobRequest, jobs.QueueJobResponse)
UPDATE_STATUS = Rpc(_JOBS, "UpdateStatus", jobs.UpdateStatusRequest, jobs.UpdateStatusResponse)
GET_JOB_QUEUE = Rpc(_JOBS, "GetJobQueue", jobs.GetJobQueueRequest, jobs.GetJobQueueResponse)
CANCEL_JOBS = Rpc(_JOBS, "CancelJobs", jobs.CancelJobsRequest, jobs.CancelJobsResponse)
FAIL_ALL_IN_PROGRESS_JOBS = Rpc(
    _JOBS, "FailAllInProgressJobs", jobs.FailAllInProgressJobsRequest, jobs.FailAllInProgressJobsResponse
)
TAIL_LOGS = Rpc(_JOBS, "TailLogs", jobs.TailLogsRequest, jobs.TailLogsResponse, server_streams=True)
GET_JOB_STATUS = Rpc(_JOBS, "GetJobStatus", jobs.GetJobStatusRequest, jobs.GetJobStatusResponse)
GET_JOB_SUBMITTED_TIMESTAMP = Rpc(
    _JOBS,
    "GetJobSubmittedTimestamp",
    jobs.GetJobSubmittedTimestampRequest,
    jobs.GetJobSubmittedTimestampResponse,
)
GET_JOB_ENDED_TIMESTAMP = Rpc(
    _JOBS, "GetJobEndedTimestamp", jobs.GetJobEndedTimestampRequest, jobs.GetJobEndedTimestampResponse
)
GET_LOG_DIRS_FOR_JOBS = Rpc(
    _JOBS, "GetLogDirsForJobs", jobs.GetLogDirsForJobsRequest, jobs.GetLogDirsForJobsResponse
)
GET_JOB_EXIT_CODES = Rpc(_JOBS, "GetJobExitCodes", jobs.GetJobExitCodesRequest, jobs.GetJobExitCodesResponse)
SET_JOB_INFO_WITHOUT_JOB_ID = Rpc(
    _JOBS,
    "SetJobInfoWithoutJobId",
    jobs.SetJobInfoWithoutJobIdRequest,
    jobs.SetJobInfoWithoutJobIdResponse,
)

JOBS_RPCS = (
    ADD_JOB,
    QUEUE_JOB,
    UPDATE_STATUS,
    GET_JOB_QUEUE,
    CANCEL_JOBS,
    FAIL_ALL_IN_PROGRESS_JOBS,
    TAIL_LOGS,
    GET_JOB_STATUS,
    GET_JOB_SUBMITTED_TIMESTAMP,
    GET_JOB_ENDED_TIMESTAMP,
    GET_LOG_DIRS_FOR_JOBS,
    GET_JOB_EXIT_CODES,
    SET_JOB_INFO_WITHOUT_JOB_ID,
)

_MANAGED_JOBS = "managed_jobs.v1.ManagedJobsService"

GET_VERSION = Rpc(
    _MANAGED_JOBS, "GetVersion", managed_jobs.GetVersionRequest, managed_jobs.GetVersionResponse
)
GET_JOB_TABLE = Rpc(
    _MANAGED_JOBS, "GetJobTable", managed_jobs.GetJobTableRequest, managed_jobs.GetJobTableResponse
)
GET_ALL_JOB_IDS_BY_NAME = Rpc(
    _MANAGED_JOBS,
    "GetAllJobIdsByName",
    managed_jobs.GetAllJobIdsByNameRequest,
    managed_jobs.GetAllJobIdsByNameResponse,
)
CANCEL_MANAGED_JOBS = Rpc(
    _MANAGED_JOBS, "CancelJobs", managed_jobs.CancelJobsRequest, managed_jobs.CancelJobsResponse
)
STREAM_LOGS = Rpc(
    _MANAGED_JOBS,
    "StreamLogs",
    managed_jobs.StreamLogsRequest,
    managed_jobs.StreamLogsResponse,
    server_streams=True,
)

MANAGED_JOBS_RPCS = (
    GET_VERSION,
    GET_JOB_TABLE,
    GET_ALL_JOB_IDS_BY_NAME,
    CANCEL_MANAGED_JOBS,
    STREAM_LOGS,
)

_SERVE = "serve.v1.ServeService"

GET_SERVICE_STATUS = Rpc(
    _SERVE, "GetServiceStatus", serve.GetServiceStatusRequest, serve.GetServiceStatusResponse
)
ADD_VERSION = Rpc(_SERVE, "AddVersion", serve.AddVersionRequest, serve.AddVersionResponse)
TERMINATE_SERVICES = Rpc(
    _SERVE, "TerminateServices", serve.TerminateServicesRequest, serve.TerminateServicesResponse
)
TERMINATE_REPLICA = Rpc(
    _SERVE, "TerminateReplica", serve.TerminateReplicaRequest, serve.TerminateReplicaResponse
)
WAIT_SERVICE_REGISTRATION = Rpc(
    _SERVE,
    "WaitServiceRegistration",
    serve.WaitServiceRegistrationRequest,
    serve.WaitServiceRegistrationResponse,
)
UPDATE_SERVICE = Rpc(_SERVE, "UpdateService", serve.UpdateServiceRequest, serve.UpdateServiceResponse)

SERVE_RPCS = (
    GET_SERVICE_STATUS,
    ADD_VERSION,
    TERMINATE_SERVICES,
    TERMINATE_REPLICA,
    WAIT_SERVICE_REGISTRATION,
    UPDATE_SERVICE,
)

_HANDLER_KINDS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def handlers(
    rpcs: Iterable[Rpc[Any, Any]],  # each row has messages of its own
    implementation: object,
) -> grpc.GenericRpcHandler[Message, Message]:
    """Return the generic handler that routes each RPC of one service to the implementation's method of its name.

    Raises:
        AttributeError: ``implementation`` lacks a method of the table.
    """
    table = {
        rpc.name: _HANDLER_KINDS[rpc.client_streams, rpc.server_streams](
            getattr(implementation, rpc.method),
            request_deserializer=rpc.request.FromString if rpc.client_streams else _reader(rpc.request),
            response_serializer=rpc.response.SerializeToString,
        )
        for rpc in rpcs
    }
    (service,) = {rpc.service for rpc in rpcs}
    return grpc.method_handlers_generic_handler(service, table)


def _reader(request: type[Message]) -> Callable[[bytes], Message | Malformed]:
    def read(data: bytes) -> Message | Malformed:
        try:
            return request.FromString(data)
        except DecodeError as error:
            return Malformed(str(error))

    return read
