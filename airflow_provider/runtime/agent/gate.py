"""What a cluster that ends takes no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio

from airflow_provider.runtime.wire import rpcs

if TYPE_CHECKING:
    from google.protobuf.message import Message

    Context = grpc.aio.ServicerContext[bytes, Message]
    _Handler = grpc.GenericRpcHandler[bytes, Message]
else:
    _Handler = grpc.GenericRpcHandler

_REFUSED = frozenset(
    rpc.path for rpc in (rpcs.SUBMIT, rpcs.ADD_JOB, rpcs.QUEUE_JOB, rpcs.LEASE, rpcs.SET_AUTOSTOP)
)


class Gate(_Handler):
    """Answers calls that ask for a longer life with UNAVAILABLE once it is closed; registered before the services.

    From the moment at which the end is decided: a job that is accepted while hooks run would be ended after them.
    """

    def __init__(self) -> None:
        self._why = ""

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return bool(self._why)

    def close(self, why: str) -> None:
        """Refuse from now on."""
        self._why = why

    def open(self, why: str) -> None:
        """Let calls through again, unless it was closed for another reason meanwhile."""
        if self._why == why:
            self._why = ""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, Message] | None:
        """Return the handler that refuses, None to leave the call to the services."""
        if self._why and handler_call_details.method in _REFUSED:
            return grpc.unary_unary_rpc_method_handler(self._refuse)
        return None

    async def _refuse(self, request: bytes, context: Context) -> Message:
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"the cluster is ending: {self._why}")
        raise AssertionError("abort() always raises")
