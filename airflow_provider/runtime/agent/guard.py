"""What a caller hears when a method of the service fails in a way that it did not foresee."""

from __future__ import annotations

import functools
import logging
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

Method = TypeVar("Method", bound="Callable[..., Any]")


def answering(method: Method) -> Method:
    """Make a method with one answer end with a status that says what went wrong, whatever it raises."""

    @functools.wraps(method)
    async def guarded(self: object, request: object, context: Any) -> object:
        try:
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
            async for answer in answers:
                yield answer
        except Exception as error:
            await _answer(method.__name__, error, context)
            raise
        finally:
            # At once, not when the garbage collector comes: it holds a descriptor and the lease.
            await answers.aclose()

    return cast("Method", guarded)


async def _answer(what: str, error: Exception, context: Any) -> None:
    if isinstance(error, grpc.aio.AbortError):
        return  # the method's own answer
    if isinstance(error, (OSError, sqlite3.OperationalError)):
        log.error("%s: %s", what, error)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}: {error}")
    log.error("%s failed", what, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"{what}: {type(error).__name__}: {error}")
