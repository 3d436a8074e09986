"""How calls are made: deadlines, what a status code means, what may be repeated."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio

from airflow_provider.runtime.client.base import (
    AgentFailed,
    ClientError,
    LinkLost,
    NoSuchJob,
    RequestRefused,
)
from airflow_provider.runtime.errors import Superseded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.wire.rpcs import Request, Response, Rpc

CALL_SECONDS = 10.0
"""Deadline of a call that answers from what the other side knows."""

_TRY_SECONDS = 5.0
"""Deadline of one try of a read: a connection that died unseen costs this, not the whole limit."""

LOST_STATUS = "Internal error from Core"
"""What grpcio says when a call ends during a write: the status that the other side gave is lost then."""

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
_AGAIN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class Transport(Protocol):
    """A channel and what must be closed with it."""

    channel: grpc.aio.Channel

    async def close(self) -> None:
        """Close it. Idempotent."""
        ...


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn gRPC's errors into ours; ``what`` is the call, for the message.

    UNKNOWN and INTERNAL say that the other side failed, never that it does not know the call.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        # A status that is lost was most likely lost with the link; where it was not, the next call meets it again.
        kind = LinkLost if error.details() == LOST_STATUS else _ERRORS.get(error.code(), AgentFailed)
        raise kind(f"{what}: {error.code().name} {error.details() or ''}".rstrip()) from error
    except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
        raise LinkLost(f"{what}: the channel is closed") from error


async def ask_once(
    channel: grpc.aio.Channel,
    rpc: Rpc[Request, Response],
    request: Request,
    *,
    seconds: float = CALL_SECONDS,
) -> Response:
    """Make a unary call, one time. For calls that change something.

    Raises:
        ClientError: it failed; after LinkLost and AgentFailed it may have been done all the same.
    """
    with translated(rpc.name):
        return await rpc.unary(channel)(request, timeout=seconds)


async def ask(
    channel: grpc.aio.Channel,
    rpc: Rpc[Request, Response],
    request: Request,
    *,
    seconds: float = CALL_SECONDS,
) -> Response:
    """Make a unary call until it succeeds, for ``seconds`` at most. For calls that may be made any number of times.

    Raises:
        ClientError: what the last try met.
    """
    deadline = time.monotonic() + seconds
    pause = 0.05
    with translated(rpc.name):
        while True:
            left = deadline - time.monotonic()
            try:
                return await rpc.unary(channel)(request, timeout=max(0.0, min(left, _TRY_SECONDS)))
            except grpc.aio.AioRpcError as error:
                pause = min(1.0, pause * 1.6) * random.uniform(0.6, 1.4)  # noqa: S311 - no secret hangs on it
                if error.code() not in _AGAIN or time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
