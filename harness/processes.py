"""Process groups that never outlive us: start, signal, stop, and prove that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil


class Component:
    """One program in a session of its own, its output in a file."""

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        # Seconds since the epoch: a heartbeat that is older belongs to an earlier process of that name.
        self.started_at = time.time()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=env["AIRFLOW_HOME"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must reach us alone: we stop the components in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the number of the signal that ended it."""
        return self._process.poll()

    def signal(self, number: signal.Signals, *, group: bool = True) -> None:
        """Send a signal to the process, and by default to its children too."""
        try:
            if group:
                os.killpg(self.pid, number)
            else:
                self._process.send_signal(number)
        except ProcessLookupError:
            return  # It ended meanwhile, which is what signals are for here.

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for its end; False if it still runs then."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_tail(self, lines: int = 25) -> str:
        """Return the last lines of what it printed."""
        return tail(self.log, lines)


def tail(path: Path, lines: int = 25) -> str:
    """Return the last lines of a text file, or a remark when there is none."""
    if not path.exists():
        return "(no log)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def stop_all(components: Iterable[Component], *, grace: float) -> None:
    """End components together: TERM, up to `grace` seconds (in all), then KILL for their whole groups."""
    alive = [component for component in components if component.exit_code is None]
    for component in alive:
        component.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for component in alive:
        component.wait(max(0.0, deadline - time.monotonic()))
    for component in alive:
        # Also when the leader is gone: its children may have stayed.
        component.signal(signal.SIGKILL)
        component.wait(10)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return live processes with an environment variable that holds this folder or a path in it."""
    found = []
    inside = f"{folder}/"
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            values = process.environ().values()
            zombie = process.status() == psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or another user's
        if not zombie and any(value == str(folder) or value.startswith(inside) for value in values):
            found.append(process)
    return found


def describe(processes: Iterable[psutil.Process]) -> str:
    """Return one line per process, for error messages."""
    lines = []
    for process in processes:
        try:
            lines.append(f"  {process.pid}: {' '.join(process.cmdline())[:150]}")
        except psutil.NoSuchProcess:
            continue
    return "\n".join(lines)


def kill_processes_of(folder: Path, *, timeout: float = 10) -> None:
    """KILL what `processes_of` finds until nothing is left; RuntimeError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while left := processes_of(folder):
        if time.monotonic() > deadline:
            raise RuntimeError(f"These processes of {folder} survive SIGKILL:\n{describe(left)}")
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1)
