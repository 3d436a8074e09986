"""What a caller hears when a method of a service raises: the right status code, and words that help."""

from __future__ import annotations

import functools
import logging
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from airflow_provider.runtime.agent.blobs import BadBlob, BrokenBlob, ChunksMissing
from airflow_provider.runtime.agent.jobs.job import Closing, Fenced, NeverFits, UnknownJob, WrongStatus
from airflow_provider.runtime.agent.lease import BadHold
from airflow_provider.runtime.wire.rpcs import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_LONGEST_WORDS = 600
"""What a status says travels as a header, in up to twelve bytes a character: clients refuse headers above 8 KiB."""

Method = TypeVar("Method", bound="Callable[..., Any]")


class BadRequest(Exception):
    """A field of the request has a value that makes no sense; the text names both."""


class OutOfRange(Exception):
    """The request asks for what lies beyond the end."""


class Missing(Exception):
    """The request needs something that is not here yet."""


_CODES: dict[type[Exception], grpc.StatusCode] = {
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    BadBlob: grpc.StatusCode.INVALID_ARGUMENT,
    DecodeError: grpc.StatusCode.INVALID_ARGUMENT,
    BadHold: grpc.StatusCode.INVALID_ARGUMENT,
    NeverFits: grpc.StatusCode.INVALID_ARGUMENT,
    OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    UnknownJob: grpc.StatusCode.NOT_FOUND,
    ChunksMissing: grpc.StatusCode.NOT_FOUND,
    Fenced: grpc.StatusCode.PERMISSION_DENIED,
    WrongStatus: grpc.StatusCode.FAILED_PRECONDITION,
    Missing: grpc.StatusCode.FAILED_PRECONDITION,
    BrokenBlob: grpc.StatusCode.DATA_LOSS,
    Closing: grpc.StatusCode.UNAVAILABLE,
}


def answering(method: Method) -> Method:
    """Make a method with one answer end with a status that says what went wrong, whatever it raises."""

    @functools.wraps(method)
    async def guarded(self: object, request: object, context: Any) -> object:
        try:
            _check(request)
            return await method(self, request, context)
        except Exception as error:
            await _answer(method.__name__, error, context)
            raise

    return cast("Method", guarded)


def streaming(method: Method) -> Method:
    """Do the same for a method that streams its answers."""

    @functools.wraps(method)
    async def guarded(self: object, request: object, context: Any) -> Any:
        answers = method(self, request, context)
        try:
            _check(request)
            async for answer in answers:
                yield answer
        except Exception as error:
            await _answer(method.__name__, error, context)
            raise
        finally:
            # At once, not when the garbage collector comes: it holds a descriptor and the lease.
            await answers.aclose()

    return cast("Method", guarded)


def _check(request: object) -> None:
    if isinstance(request, Malformed):
        raise BadRequest(request.reason)


async def _answer(what: str, error: Exception, context: Any) -> None:
    if isinstance(error, grpc.aio.AbortError):
        return  # the method's own answer
    code = _CODES.get(type(error))
    if code is not None:
        await context.abort(code, _short(str(error)))
    if isinstance(error, (OSError, sqlite3.OperationalError)):
        log.error("%s: %s", what, error)
        # A lock is let go sooner or later, so asking again helps; a full disk wants somebody's hand.
        code = grpc.StatusCode.UNAVAILABLE if "locked" in str(error) else grpc.StatusCode.RESOURCE_EXHAUSTED
        await context.abort(code, _short(f"{what}: {error}"))
    log.error("%s failed", what, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, _short(f"{what}: {type(error).__name__}: {error}"))


def _short(words: str) -> str:
    return words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…"
