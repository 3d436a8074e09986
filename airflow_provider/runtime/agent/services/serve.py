"""serve.v1: services and pools, which this agent does not run; each call is told so instead of being unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from airflow_provider.runtime.wire import serve_pb2 as pb

    Context = grpc.aio.ServicerContext[Message, Message]


class ServeService:
    """One method per RPC of ``SERVE_RPCS`` in ``wire/rpcs.py``; each answers UNIMPLEMENTED."""

    async def get_service_status(
        self, request: pb.GetServiceStatusRequest, context: Context
    ) -> pb.GetServiceStatusResponse:
        """Refuse."""
        await _refuse(context, "GetServiceStatus")

    async def add_version(self, request: pb.AddVersionRequest, context: Context) -> pb.AddVersionResponse:
        """Refuse."""
        await _refuse(context, "AddVersion")

    async def terminate_services(
        self, request: pb.TerminateServicesRequest, context: Context
    ) -> pb.TerminateServicesResponse:
        """Refuse."""
        await _refuse(context, "TerminateServices")

    async def terminate_replica(
        self, request: pb.TerminateReplicaRequest, context: Context
    ) -> pb.TerminateReplicaResponse:
        """Refuse."""
        await _refuse(context, "TerminateReplica")

    async def wait_service_registration(
        self, request: pb.WaitServiceRegistrationRequest, context: Context
    ) -> pb.WaitServiceRegistrationResponse:
        """Refuse."""
        await _refuse(context, "WaitServiceRegistration")

    async def update_service(
        self, request: pb.UpdateServiceRequest, context: Context
    ) -> pb.UpdateServiceResponse:
        """Refuse."""
        await _refuse(context, "UpdateService")


async def _refuse(context: Context, call: str) -> NoReturn:
    await context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{call}: this agent runs jobs; it has no controller and no load balancer of services and pools",
    )
    raise AssertionError("abort() always raises")
