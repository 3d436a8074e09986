"""`AirflowInstance`: a whole Airflow in a temporary folder, on loopback ports, gone without trace afterwards."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from harness.config import airflow_env
from harness.processes import Component, kill_processes_of, stop_all, tail
from harness.rest import AirflowApi
from harness.waiting import poll

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")

# Key of each component in the answer of /monitor/health; the API server is healthy if it answers at all.
_HEALTH_KEYS = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}


class AirflowError(RuntimeError):
    """Airflow did not start, or a component ended on its own. Says which and shows the end of its log."""


class AirflowInstance:
    """A real Airflow: API server and UI, scheduler with LocalExecutor, DAG processor, triggerer, SQLite.

    Each component is a process of its own that can be killed and started again. Nothing listens on other than
    loopback addresses.

    Use it as a context manager: entering starts everything and waits until it is healthy; leaving ends every
    process that belongs to it, jobs on local clusters included, and removes the home folder.

    Args:
        dags_folder: where the DAG files are; by default an empty folder in the home.
        quick: pick up new DAG files and start tasks faster than a usual set-up would.
        extra_env: more environment variables for all processes, such as `AIRFLOW__SECTION__OPTION`.
        start_timeout: seconds until everything must be healthy.
    """

    def __init__(
        self,
        *,
        dags_folder: Path | None = None,
        quick: bool = False,
        extra_env: Mapping[str, str] | None = None,
        start_timeout: float = 120,
    ) -> None:
        # Resolved: processes are found by this path, and some would report the real one.
        self.home = Path(tempfile.mkdtemp(prefix="airflow-")).resolve()
        self.dags_folder = dags_folder or self.home / "dags"
        self.env = airflow_env(self.home, self.dags_folder, quick=quick, extra=extra_env or {})
        self.base_url = self.env["AIRFLOW__API__BASE_URL"]
        self.api = AirflowApi(self.base_url)
        self.logs = self.home / "component-logs"
        self._start_timeout = start_timeout
        self._components: dict[str, Component] = {}

    # ---- life

    def __enter__(self) -> Self:
        try:
            self.home.joinpath("dags").mkdir(exist_ok=True)
            self.logs.mkdir()
            self._migrate()
            self.start_missing()
        except BaseException:  # Ctrl-C too
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, grace: float = 4) -> None:
        """End every process (after `grace` seconds by force) and remove the home folder. May be called again.

        Ctrl-C is held back meanwhile: it could only leave something behind, and this ends soon anyway.
        """
        with _interrupts_ignored():
            self.api.close()
            stop_all(self._components.values(), grace=grace)
            self._components.clear()
            kill_processes_of(self.home)
            if self.home.exists():
                shutil.rmtree(self.home)

    # ---- components

    def start(self, name: str) -> None:
        """Start a component that was killed, and wait until it is healthy again."""
        component = self._components.get(name)
        if component is not None and component.exit_code is None:
            raise AirflowError(f"{name} already runs with pid {component.pid}.")
        self._launch(name)
        self._wait_healthy([name])

    def start_missing(self) -> None:
        """Start every component that does not run, all at the same time."""
        missing = [name for name in COMPONENTS if name not in self._names_running()]
        for name in missing:
            self._launch(name)
        if missing:
            self._wait_healthy(missing)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL, *, group: bool = True) -> None:
        """Send a signal to a component, by default with its children as a lost machine would, and await its end.

        Args:
            name: one of `COMPONENTS`.
            number: SIGKILL: gone at once. SIGTERM: asked to stop, as at a deployment.
            group: False: the main process alone.
        """
        component = self._running(name)
        component.signal(number, group=group)
        if not component.wait(30):
            raise AirflowError(f"{name} still runs 30 s after {number.name}.\n{component.log_tail()}")
        if group:
            component.signal(signal.SIGKILL)  # children that the main process did not wait for
        del self._components[name]  # It does not run because we wanted so, which is no error.

    def pid(self, name: str) -> int:
        """Return the process id of a running component's main process."""
        return self._running(name).pid

    def component_log(self, name: str) -> str:
        """Return all that a component has printed."""
        return self._log_file(name).read_text(errors="replace")

    def _running(self, name: str) -> Component:
        component = self._components.get(name)
        if component is None or component.exit_code is not None:
            raise AirflowError(f"{name} does not run; running: {self._names_running()}.")
        return component

    def _names_running(self) -> list[str]:
        return [name for name, component in self._components.items() if component.exit_code is None]

    def _log_file(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _launch(self, name: str) -> None:
        command = [sys.executable, "-m", "airflow", name]
        if name in ("scheduler", "triggerer"):
            # Their log servers would listen on every interface, and the API server finds the files on the disk.
            command.append("--skip-serve-logs")
        self._components[name] = Component(name, command, env=self.env, log=self._log_file(name))

    def _migrate(self) -> None:
        log = self._log_file("db-migrate")
        with log.open("wb") as output:
            done = subprocess.run(
                [sys.executable, "-m", "airflow", "db", "migrate"],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=self._start_timeout,
                check=False,
            )
        if done.returncode != 0:
            raise AirflowError(f"airflow db migrate exited {done.returncode}:\n{tail(log)}")

    # ---- health

    def _wait_healthy(self, names: Sequence[str]) -> None:
        waiting = list(names)

        def healthy() -> bool:
            self._check_alive()
            health = self.api.health()
            waiting[:] = [name for name in waiting if not self._is_healthy(name, health)]
            return not waiting

        try:
            poll(healthy, timeout=self._start_timeout, what=lambda: f"{', '.join(waiting)} to be healthy")
        except TimeoutError as error:
            tails = "\n".join(f"---- {name}\n{tail(self._log_file(name))}" for name in waiting)
            raise AirflowError(f"{error}\n{tails}") from None

    def _check_alive(self) -> None:
        for name, component in self._components.items():
            if component.exit_code is not None:
                raise AirflowError(f"{name} ended with {component.exit_code}:\n{component.log_tail()}")

    def _is_healthy(self, name: str, health: Mapping[str, Mapping[str, str | None]] | None) -> bool:
        if health is None:
            return False
        if name not in _HEALTH_KEYS:
            return True
        key = _HEALTH_KEYS[name]
        report = health.get(key, {})
        beat = report.get(f"latest_{key}_heartbeat")
        started = self._components[name].started_at
        # Airflow calls a killed component healthy for as long as its last heartbeat is young.
        return report.get("status") == "healthy" and beat is not None and _seconds(beat) >= started


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Hold back the signals that end programs; only for what ends soon by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread gets them, and only there may they be held back.
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
