"""The Airflow task log as the sink of a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class TaskLogSink:
    """Writes to the logger of an operator or trigger.

    Args:
        logger: Returns the logger (a structlog one, in Airflow 3).
    """

    def __init__(self, logger: Callable[[], Any]) -> None:
        self._logger = logger

    async def output(self, text: str) -> None:
        """Write lines of the job as one record, from a thread: a slow log must not block the event loop."""
        await self._logger().ainfo(text)

    async def say(self, message: str) -> None:
        """Write a line of the controller."""
        await self._logger().ainfo(message)
