"""Drivers as the agent sees them: starting one, finding one that an earlier agent started."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.driver.zygote import ask
from airflow_provider.runtime.agent.jobs.jobdir import read_file
from airflow_provider.runtime.agent.process import processes

if TYPE_CHECKING:
    from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory

# The directory that holds the package, for a process started without site-packages (-S saves half its start time).
_IMPORT_ROOT = str(Path(__file__).parents[4])
_ZYGOTE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from airflow_provider.runtime.agent.driver.zygote import main; main(int(sys.argv[2]))"
)
_LOOK_SECONDS = 0.02
_FREE_SECONDS = 2.0
"""How long a lock may be held by nobody that can be found."""


class Drivers:
    """Starts drivers. They outlive this object, the agent, and the process that forks them.

    Args:
        cluster: What the environment of all that is started carries, see ``processes.CLUSTER_MARKER``.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._channel: socket.socket | None = None
        self._zygote: subprocess.Popen[bytes] | None = None
        # One at a time: question and answer alternate on the socket.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drivers")

    async def warm_up(self) -> None:
        """Be ready to start a driver at once."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def start(self, directory: JobDirectory) -> int:
        """Start the driver of a job in a session of its own and return its pidfd.

        Raises:
            OSError: it cannot be started.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._start, str(directory.path)
        )

    def close(self) -> None:
        """Start no more. Blocking; idempotent."""
        self._thread.shutdown()
        self._drop()

    def _start(self, path: str) -> int:
        try:
            return ask(self._open(), path)
        except EOFError:
            # Killed, by mistake or for want of memory. Another one; a driver that the dead one started meanwhile has
            # the job's lock, so that a second one ends by itself.
            self._drop()
        try:
            return ask(self._open(), path)
        except EOFError as error:
            self._drop()
            raise OSError(str(error)) from error

    def _open(self) -> socket.socket:
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._zygote = subprocess.Popen(
                    [
                        *(sys.executable, "-X", "utf8", "-I", "-S", "-c", _ZYGOTE),
                        *(_IMPORT_ROOT, str(theirs.fileno())),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    cwd="/",
                    env={**os.environ, processes.CLUSTER_MARKER: self._cluster},
                )
            self._channel = ours
        return self._channel

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()  # which it takes for its end
            self._channel = None
        if self._zygote is not None:
            self._zygote.wait()
            self._zygote = None


async def find_driver(directory: JobDirectory) -> int | None:
    """Return the pidfd of the live driver, None when there is none."""
    deadline = time.monotonic() + _FREE_SECONDS
    while time.monotonic() < deadline:
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
    return None  # something else took the lock: a process of the job, say, that opened all it could find


def shut_out(directory: JobDirectory) -> int | None:
    """Make sure that no driver starts any more; return the descriptor to close in the end, None if one runs."""
    try:
        lock = directory.lock()
    except OSError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # no directory, so no driver can start in it
    pid = directory.driver_pid()
    if lock is None and pid is not None and not (pid and Path(f"/proc/{pid}").exists()):
        lock = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # whoever has it, it is not the driver
    if lock is not None:
        with suppress(OSError):
            directory.write_driver_pid(0)
    return lock


def last_line(path: Path) -> str:
    """Return ``": "`` and the last line of a file, or nothing when it has none."""
    try:
        lines = read_file(path, tail=True).strip().splitlines()
    except (OSError, ValueError):
        return ""
    return f": {lines[-1]}" if lines else ""
