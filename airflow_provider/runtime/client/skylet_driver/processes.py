"""Finding and ending the processes of a job."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOB_MARKER = "MANAGED_JOBS_JOB"
"""Environment variable that every process of one job carries."""

SWEEP_LIMIT_SECONDS = 60.0
"""How long after SIGKILL something may live on before it is given up."""


def descendants() -> set[int]:
    """Return the live processes below this one."""
    parents: dict[int, int] = {}
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                parents[pid] = int(parent)
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new and pid not in found}
        found |= new
    return found


def marked(value: str) -> set[int]:
    """Return the processes whose environment carries this marker."""
    wanted = f"{JOB_MARKER}={value}".encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.add(pid)
    return found


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def sweep(find: Callable[[], set[int]], *, grace: float, wait: Callable[[float], object]) -> bool:
    """End all that ``find`` finds: SIGTERM, after ``grace`` seconds SIGKILL; True when something does not die.

    Args:
        find: Returns what is left.
        grace: Seconds.
        wait: Called with seconds between two looks.
    """
    begun = time.monotonic()
    told: set[int] = set()
    while True:
        found = find()
        if not found:
            return False
        passed = time.monotonic() - begun
        if passed > grace + SWEEP_LIMIT_SECONDS:
            return True
        for pid in found if passed >= grace else found - told:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if passed >= grace else signal.SIGTERM)
        told |= found
        wait(0.05)
