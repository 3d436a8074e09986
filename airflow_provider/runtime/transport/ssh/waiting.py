"""Waiting for a time, and leaving nothing behind when the time is up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncssh

from airflow_provider.runtime.blocking import outlast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")
Session = TypeVar("Session")


class Channel(Protocol):
    """What can be done with a channel of an SSH connection, of whatever kind."""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until they can be sent."""
        ...

    def write_eof(self) -> None:
        """Say that no more is sent."""
        ...

    def pause_reading(self) -> None:
        """Take nothing more for now."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...

    def close(self) -> None:
        """Close it when everything is sent."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


Opened = TypeVar("Opened", bound=Channel)


async def within(
    seconds: float, work: Coroutine[Any, Any, Result], *, discard: Callable[[Result], object] | None = None
) -> Result:
    """Return what ``work`` returns; when the time is up, or the caller is cancelled, it is cancelled and waited for.

    Args:
        seconds: How long it may take.
        work: What is to be done.
        discard: Takes a result that nobody is there to take, as the caller was cancelled.

    Raises:
        TimeoutError: the time is up.
    """
    # Not asyncio.wait_for: before Python 3.12 that loses a cancellation, or a result, that comes at the wrong moment.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
    except asyncio.CancelledError:
        task.cancel()
        await outlast(task)
        if discard is not None and not task.cancelled() and task.exception() is None:
            discard(task.result())
        raise
    if not task.done():
        task.cancel()
        await outlast(task)
    if task.cancelled():
        raise TimeoutError(f"not done within {seconds:.1f} s")
    return task.result()


async def open_channel(opening: Coroutine[Any, Any, tuple[Opened, Session]]) -> None:
    """Wait for a channel to open; one that opens when nobody waits for it any more is closed.

    Raises:
        asyncssh.ChannelOpenError: the host refuses it, or the connection went.
    """
    task = asyncio.ensure_future(opening)
    await _opened(task)
    task.result()


class Way:
    """The way through a jump host: what ``asyncssh.connect`` needs of the connection to it, as its ``tunnel``.

    An attempt that is given up leaves no channel behind there.
    """

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self._connection = connection

    async def create_connection(
        self, session_factory: Callable[[], asyncssh.SSHTCPSession[bytes]], host: str, port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], asyncssh.SSHTCPSession[bytes]]:
        """Connect to a port, from the jump host.

        Raises:
            asyncssh.ChannelOpenError: the jump host refuses it, or does not get there.
        """
        task = asyncio.ensure_future(self._connection.create_connection(session_factory, host, port))
        await _opened(task)
        return task.result()


async def _opened(opening: asyncio.Task[tuple[Opened, Session]]) -> None:
    # Cancelling an opening would leave a channel behind that the host has opened and nobody knows of.
    try:
        await asyncio.wait({opening})
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Task[tuple[Opened, Session]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].abort()
