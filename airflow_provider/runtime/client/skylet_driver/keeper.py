"""Writing the fate of a job into SkyPilot's jobs database."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TRIES = 10


class Keeper:
    """SkyPilot's job library, used as the drivers that SkyPilot generates use it."""

    def __init__(self, job_id: int, metadata: dict[str, Any]) -> None:
        self._id = job_id
        self._metadata = metadata
        self._library: Any = importlib.import_module("sky.skylet.job_lib")
        self._call(importlib.import_module("sky.skylet.autostop_lib").set_last_active_time_to_now)

    def status(self, name: str) -> None:
        """Say that the job is set up or runs, unless it has ended: a cancel came first."""
        if not self._has_ended(self._library.get_status(self._id)):
            if name == "RUNNING":
                self._call(self._library.set_job_started, self._id)
            else:
                self._call(self._library.set_status, self._id, self._library.JobStatus[name])
        self._call(self._library.scheduler.schedule_step)

    def end(self, end: dict[str, Any]) -> None:
        """Write the last word; a job that has ended in the database keeps its status, see ``_has_ended``."""
        # Clusters older than the function are not told: their client waits its limit for this word, and goes on.
        if hasattr(self._library, "update_job_metadata"):
            told = {"managed_jobs": {**self._metadata, "end": end}}
            self._call(self._library.update_job_metadata, self._id, told)
        if end["exit_codes"]:
            self._call(self._library.set_exit_codes, self._id, end["exit_codes"])
        self._call(self._set_final, end["status"])
        self._call(self._library.scheduler.schedule_step)

    def _set_final(self, name: str) -> None:
        # SkyPilot's setter lets a late word overwrite an earlier one; what a cancel holds is this lock.
        locks = importlib.import_module("filelock")
        with locks.FileLock(self._library._get_lock_path(self._id)):
            status = self._library.get_status_no_lock(self._id)
            if status is None or self._has_ended(status):
                return
            if name == "CANCELLED":  # told to end, but by no cancel: the machine shuts down, for one
                name = "FAILED_DRIVER"
            if name == "FAILED_SETUP" and status.is_terminal():
                # SkyPilot's setter lets this one status alone overwrite none that has an end.
                self._library._set_status_no_lock(self._id, self._library.JobStatus.SETTING_UP)
            self._library._set_status_no_lock(self._id, self._library.JobStatus[name])

    def _has_ended(self, status: Any) -> bool:
        """Return whether the database has the job's fate.

        FAILED_DRIVER is no fate while we live to say this: SkyPilot's look at the processes misses a driver that has
        just been started, as its command line is empty for a moment.
        """
        return status is not None and status.is_terminal() and status.name != "FAILED_DRIVER"

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call the library, several times when it must be: its database may be locked."""
        for left in reversed(range(_TRIES)):
            try:
                function(*arguments)
                return
            except Exception as error:
                if left == 0:
                    raise
                print(f"{function.__name__}: {error}; once more", flush=True)
                time.sleep(0.5)
