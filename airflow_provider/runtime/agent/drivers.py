"""Drivers as the agent sees them: starting one, finding one that an earlier agent started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent import processes

if TYPE_CHECKING:
    from airflow_provider.runtime.agent.jobdir import JobDirectory

# The directory that holds the package, for a driver started without site-packages (-S saves half its start time).
_IMPORT_ROOT = str(Path(__file__).parents[3])
_DRIVER = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from airflow_provider.runtime.agent.driver import main; main(sys.argv[2])"
)
_LOOK_SECONDS = 0.02


def start_driver(directory: JobDirectory, cluster: str) -> int:
    """Start the driver of a job in a session of its own and return its pidfd."""
    with open(directory.driver_log, "ab") as errors:
        child = subprocess.Popen(
            [sys.executable, "-X", "utf8", "-I", "-S", "-c", _DRIVER, _IMPORT_ROOT, str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            cwd="/",
            env={**os.environ, processes.CLUSTER_MARKER: cluster},
        )
    handle = os.pidfd_open(child.pid)
    # The pidfd tells of its end and the exit code is in its report: Popen has nothing left to do.
    child.returncode = 0
    return handle


async def find_driver(directory: JobDirectory) -> int | None:
    """Return the pidfd of the live driver, None when there is none."""
    while True:
        try:
            lock = await asyncio.to_thread(directory.lock)
        except OSError:
            return None  # the job removed its own directory
        if lock is not None:
            os.close(lock)
            return None
        pid = directory.driver_pid()
        if pid:
            with suppress(ProcessLookupError):
                return os.pidfd_open(pid)
        # It has the lock and has not said its pid yet, or is gone and the kernel has not freed its lock.
        await asyncio.sleep(_LOOK_SECONDS)


def shut_out(directory: JobDirectory) -> int | None:
    """Make sure that no driver starts any more; return the descriptor to close in the end, None if one runs."""
    try:
        lock = directory.lock()
    except OSError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # no directory, so no driver can start in it
    if lock is not None:
        with suppress(OSError):
            directory.write_driver_pid(0)
    return lock


def last_line(path: Path) -> str:
    """Return ``": "`` and the last line of a file, or nothing when it has none."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1]}" if lines else ""
