"""A server that answers as a test says: for what a real skylet does too rarely, too late or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
from google.protobuf.message import Message

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
