"""One job as the agent holds it in memory, and what becomes of it with its driver's word or without."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory, Report
    from airflow_provider.runtime.agent.jobs.table import JobRow


class Fenced(Exception):
    """The caller's generation is older than the one that owns the job."""


class UnknownJob(Exception):
    """No job has that id."""


class WrongStatus(Exception):
    """The job's status does not allow what was asked for."""


class NeverFits(Exception):
    """The node cannot run the job, now or ever."""


class Closing(Exception):
    """The agent is ending and takes no more jobs."""


class Changed:
    """Wakes every waiter at a change; a waiter that comes later waits for the next one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event of the next change: take it before looking, wait on it after."""
        return self._event


@dataclass(eq=False)
class Job:
    """One job in memory: its stored row, its directory, and who waits for its changes."""

    row: JobRow
    directory: JobDirectory
    changed: Changed = field(default_factory=Changed)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the status is terminal."""
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a transition is decided and stored, so that each sees the one before."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the driver's report is read and taken over."""
    driver: int | None = None
    """pidfd of the live driver."""
    launched: bool = False
    """Whether its driver is being started, or was."""
    kill: bool = False
    """Whether its processes are to be killed without a grace period."""
    verdict: str = ""
    """Why it is failed by us, whatever its driver may still say."""
    followers: int = 0
    """How many want to know of new lines in its log."""

    unsaved: bool = False
    """Whether the table does not have the present row yet."""

    def signal_driver(self, *numbers: signal.Signals) -> None:
        """Send signals to the driver, if there is one."""
        for number in numbers:
            if self.driver is not None:
                with suppress(ProcessLookupError):  # its end is about to be noticed
                    signal.pidfd_send_signal(self.driver, number)


def reported(row: JobRow, report: Report) -> JobRow | None:
    """Return the row after the driver's report, None when it changes nothing."""
    if row.status == "CANCELLING":
        if not report.ended_at:
            return None
        # Who asked for the end gets it confirmed, also when the job was faster.
        return replace(row, status="CANCELLED", reason="cancelled", ended_at=report.ended_at)
    after = replace(
        row,
        status=report.status,
        exit_codes=list(report.exit_codes),
        reason=report.reason,
        output=report.output,
        started_at=report.started_at,
        ended_at=report.ended_at,
    )
    if report.status == "CANCELLED":
        # By a signal that was not ours: the machine shuts down, or somebody meddled.
        return failed(after, "the job's driver was told to end from outside", report.ended_at)
    return after


def without_report(row: JobRow, reason: str) -> JobRow:
    """Return the row of a job whose driver died without a last word."""
    if row.status == "CANCELLING":
        return replace(row, status="CANCELLED", reason="cancelled", ended_at=time.time())
    return failed(row, reason)


def failed(row: JobRow, reason: str, ended_at: float = 0.0) -> JobRow:
    """Return the row of a job that ends as FAILED_DRIVER."""
    return replace(row, status="FAILED_DRIVER", reason=reason, ended_at=ended_at or time.time())
