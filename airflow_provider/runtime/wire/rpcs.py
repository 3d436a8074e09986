"""One table of RPCs that drives both sides: stubs on the client, handlers on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from airflow_provider.runtime.wire import agent_pb2 as pb

if TYPE_CHECKING:
    import grpc.aio

PROTOCOL_VERSION = 1
"""Version of the agent protocol; grows when a change would be misread by an older peer."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


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

HANDSHAKE = Rpc(_AGENT, "Handshake", pb.HandshakeRequest, pb.HandshakeResponse)
SUBMIT = Rpc(_AGENT, "Submit", pb.SubmitRequest, pb.SubmitResponse)
STATUS = Rpc(_AGENT, "Status", pb.StatusRequest, pb.JobState)
FOLLOW = Rpc(_AGENT, "Follow", pb.FollowRequest, pb.FollowResponse, client_streams=True, server_streams=True)
CANCEL = Rpc(_AGENT, "Cancel", pb.CancelRequest, pb.JobState)
STAT_BLOB = Rpc(_AGENT, "StatBlob", pb.StatBlobRequest, pb.StatBlobResponse)
PUT_BLOB = Rpc(_AGENT, "PutBlob", pb.PutBlobRequest, pb.PutBlobResponse, client_streams=True)

AGENT_RPCS = (HANDSHAKE, SUBMIT, STATUS, FOLLOW, CANCEL, STAT_BLOB, PUT_BLOB)

_HANDLER_KINDS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def handlers(implementation: object) -> grpc.GenericRpcHandler[Message, Message]:
    """Return the generic handler that routes every agent RPC to the method of its name.

    Raises:
        AttributeError: ``implementation`` lacks a method of the table.
    """
    table = {
        rpc.name: _HANDLER_KINDS[rpc.client_streams, rpc.server_streams](
            getattr(implementation, rpc.method),
            request_deserializer=rpc.request.FromString,
            response_serializer=rpc.response.SerializeToString,
        )
        for rpc in AGENT_RPCS
    }
    return grpc.method_handlers_generic_handler(_AGENT, table)
