"""A real skylet, SkyPilot's agent, on this machine: on a port and with a home of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_provider.runtime.agent.process import processes
from tests.interop.environment import peer_python

_START_SECONDS = 90.0
_DROPPED = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", processes.CLUSTER_MARKER}


class Skylet:
    """One skylet. Everything that runs with its home belongs to it and ends with it."""

    def __init__(self, home: Path) -> None:
        """Prepare a home.

        Args:
            home: An empty directory; the jobs database, logs and everything else of the skylet is below it.
        """
        self.home = home
        self.port = 0
        self.python = peer_python()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the skylet is not started"
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.home / "skylet.log").read_text()

    def start(self) -> None:
        """Start it and wait until it listens; again after ``stop`` it has the same jobs and another port.

        Raises:
            RuntimeError: it ended, or does not listen in time; with its log.
        """
        sky = self.home / ".sky"
        sky.mkdir(parents=True, exist_ok=True)
        (sky / "python_path").write_text(str(self.python))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        with open(self.home / "skylet.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self.python), "-m", "sky.skylet.skylet", "--port", str(self.port)],
                cwd=self.home,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the skylet does not start:\n{self.log[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, its drivers and their jobs, and check that none is left. Idempotent."""
        deadline = time.monotonic() + 30
        while left := self.processes():
            assert time.monotonic() < deadline, f"processes of the skylet do not end: {left}"
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self._process is not None:
                self._process.poll()
            time.sleep(0.02)
        if self._process is not None:
            self._process.wait(10)
            self._process = None

    def processes(self) -> set[int]:
        """Return the pids of all that runs with its home, the skylet's own among them."""
        return processes.marked("HOME", str(self.home))

    def environment(self) -> dict[str, str]:
        """Return the variables that programs of SkyPilot's need to be at home here."""
        kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        return {**kept, "HOME": str(self.home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}

    def run(self, script: str, args: Sequence[str] = (), *, timeout: float = 60) -> str:
        """Run a Python script with SkyPilot importable, at home here; return its output."""
        return run_in_peer(script, args, environment=self.environment(), timeout=timeout)


def run_in_peer(
    script: str,
    args: Sequence[str] = (),
    *,
    environment: dict[str, str] | None = None,
    timeout: float = 60,
) -> str:
    """Run a Python script with SkyPilot importable and return what it prints.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    done = subprocess.run(
        [str(peer_python()), "-c", script, *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the script failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
