"""The interface of a task's log."""

from __future__ import annotations

from typing import Protocol


class Sink(Protocol):
    """Where the task's log goes."""

    async def output(self, text: str) -> None:
        """Write lines of the job, without the final newline."""
        ...

    async def say(self, message: str) -> None:
        """Write a line of the controller."""
        ...
