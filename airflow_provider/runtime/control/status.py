"""Statuses of a managed task and of a chain."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Status(str, Enum):
    """Status of a managed task, with SkyPilot's names."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    FAILED_SETUP = "FAILED_SETUP"
    FAILED_PRECHECKS = "FAILED_PRECHECKS"
    FAILED_NO_RESOURCE = "FAILED_NO_RESOURCE"
    FAILED_CONTROLLER = "FAILED_CONTROLLER"

    @property
    def terminal(self) -> bool:
        """Whether the task has ended for good."""
        return self not in _LIVE

    @property
    def failed(self) -> bool:
        """Whether the task has ended in a failure."""
        return self.value.startswith("FAILED")


_LIVE = frozenset({Status.PENDING, Status.STARTING, Status.RUNNING, Status.RECOVERING, Status.CANCELLING})


def chain_status(tasks: Sequence[Status]) -> Status:
    """Return the status of a chain: that of its first failed task, else of its first live one.

    When all have ended and none failed: CANCELLED if any was cancelled, else SUCCEEDED.
    """
    for status in tasks:
        if status.failed:
            return status
    for status in tasks:
        if not status.terminal:
            return status
    return Status.CANCELLED if Status.CANCELLED in tasks else Status.SUCCEEDED
