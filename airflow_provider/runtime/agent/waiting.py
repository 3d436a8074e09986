"""Waiting with a limit, without ever losing a cancellation.

``asyncio.wait_for`` may lose one that comes together with what it waits for, until Python 3.12: a stream whose reader has
left would go on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

Result = TypeVar("Result")


async def within(seconds: float | None, work: Awaitable[Result]) -> Result:
    """Return what ``work`` returns; it is cancelled when it takes longer, and when the caller is cancelled.

    Raises:
        asyncio.TimeoutError: it took longer than ``seconds`` (None: no limit).
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, for so many seconds at most; return whether it was."""
    try:
        await within(seconds, event.wait())
    except asyncio.TimeoutError:
        return False
    return True
