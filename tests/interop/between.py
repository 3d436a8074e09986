"""A server between a client and a skylet that passes calls on, and does to them what networks do."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import grpc
import grpc.aio


class Between(grpc.GenericRpcHandler):
    """Passes every call on, unread. Methods are named as in ``QueueJob``.

    Attributes:
        calls: How often each method was called.
        lost_answers: How often from now on the answer to a method is lost: the call is carried out.
        lost_calls: How often from now on a method does not reach the skylet.
        failing: The status that calls of a method end with, without reaching the skylet.
        cut_after: After how many messages each stream breaks; 0: never.
        requests: The last request of each method.
    """

    def __init__(self, port: int) -> None:
        self._target = f"127.0.0.1:{port}"
        self.port = 0
        self.calls: Counter[str] = Counter()
        self.lost_answers: Counter[str] = Counter()
        self.lost_calls: Counter[str] = Counter()
        self.failing: dict[str, grpc.StatusCode] = {}
        self.cut_after = 0
        self.requests: dict[str, tuple[str, bytes]] = {}

    async def __aenter__(self) -> Between:
        self._channel = grpc.aio.insecure_channel(self._target)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(grace=None)
        await self._channel.close()

    async def repeat(self, name: str) -> None:
        """Make the last call of a method again, as if it had been under way until now."""
        path, request = self.requests[name]
        await self._channel.unary_unary(path)(request)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Route every method."""
        path = handler_call_details.method
        name = path.rpartition("/")[2]

        async def unary(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self.calls[name] += 1
            self.requests[name] = (path, request)
            await self._fail(name, context)
            answer: bytes = await self._channel.unary_unary(path)(request)
            if self.lost_answers[name] > 0:
                self.lost_answers[name] -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
            return answer

        async def stream(request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
            self.calls[name] += 1
            await self._fail(name, context)
            passed = 0
            async for message in self._channel.unary_stream(path)(request):
                if self.cut_after and passed == self.cut_after:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was cut")
                yield message
                passed += 1

        if name == "TailLogs":
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    async def _fail(self, name: str, context: grpc.aio.ServicerContext) -> None:
        if name in self.failing:
            await context.abort(self.failing[name], "as the test wants it")
        if self.lost_calls[name] > 0:
            self.lost_calls[name] -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the call was lost")
