"""The Airflow task log as the sink of a controller."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 30.0
_BLIND_WAIT_SECONDS = 2.0


class TaskLogSink:
    """Writes to the logger of an operator or trigger.

    Args:
        logger: Returns the logger (a structlog one, in Airflow 3).
    """

    def __init__(self, logger: Callable[[], Any]) -> None:
        self._logger = logger

    async def output(self, text: str) -> None:
        """Write lines of the job as one record; ``ainfo`` writes in a thread, so a slow log blocks no event loop."""
        await self._logger().ainfo(text)

    async def say(self, message: str) -> None:
        """Write a line of the controller."""
        await self._logger().ainfo(message)


async def drained(logger: Any) -> None:
    """Wait until the triggerer's supervisor has taken all that was written to ``logger``.

    Records go to it through a socket of their own, 4 KiB a turn, while the news that a trigger has ended take another
    one, overtake them, and close the log file: the last lines of a chatty job would be lost.
    """
    file = getattr(getattr(logger.bind(), "_logger", None), "_file", None)
    try:
        handle = file.fileno()  # type: ignore[union-attr]  # None and files without a descriptor are caught below
        _unread(handle)
    except (AttributeError, OSError, ValueError):
        # Not the socket that we know (another Airflow, a terminal): wait for as long as a full buffer takes.
        await asyncio.sleep(_BLIND_WAIT_SECONDS)
        return
    for _ in range(int(_PATIENCE_SECONDS / _LOOK_SECONDS)):
        if _unread(handle) == 0:
            return
        await asyncio.sleep(_LOOK_SECONDS)  # a socket tells nobody that its reader has caught up


def _unread(handle: int) -> int:
    """Return how many bytes of a socket its reader has not taken yet."""
    answer = fcntl.ioctl(handle, termios.TIOCOUTQ, b"\0\0\0\0")
    return int(struct.unpack("i", answer)[0])
