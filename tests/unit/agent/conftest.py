"""Real processes to find and to end, and real drivers without an agent."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import airflow_provider
from airflow_provider.runtime.agent.jobs.jobdir import FileOrder, JobDirectory, Order, Report
from airflow_provider.runtime.agent.process import cgroup, processes
from airflow_provider.runtime.agent.process.sweep import end_job

# The directory that holds the package; as the agent does, without site-packages.
_IMPORT_ROOT = str(Path(airflow_provider.__file__).parents[1])
_DRIVER = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from airflow_provider.runtime.agent.driver.driver import main; {}main(sys.argv[2])"
)

Start = Callable[..., "subprocess.Popen[bytes]"]


def wait_for(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Wait for something that has no event to wait for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


@pytest.fixture
def marker() -> Iterator[str]:
    """A job marker of this test alone; nothing that carries it outlives the test."""
    value = f"test:{uuid.uuid4().hex}"
    yield value
    left = processes.marked(processes.JOB_MARKER, value)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes of the job are left"
    group = cgroup.find(value)
    if group is not None:
        end_job(value, grace=0, limit=10)
    assert group is None, "the control group of the job is left"


def need_groups() -> None:
    """Skip the test where no control groups can be had."""
    group = cgroup.create(f"probe:{os.getpid()}")
    if group is None:
        pytest.skip(f"no control groups (version 2) that this user may write: {cgroup.find_hierarchy()}")
    group.remove()


@pytest.fixture(params=["groups", "markers"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with control groups, and once more without."""
    way: str = request.param
    monkeypatch.setenv(cgroup.SWITCH, "on" if way == "groups" else "off")
    if way == "groups":
        need_groups()
    return way


@pytest.fixture
def start(marker: str) -> Iterator[Start]:
    """Start a bash command that carries the marker, in a session of its own; returns once it printed "ready"."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: str, *, marked: bool = True) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({processes.JOB_MARKER: marker} if marked else {})}
        process = subprocess.Popen(
            ["bash", "-c", command], stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start_driver(directory: JobDirectory, cluster: str, before: str = "") -> int:
    """Start the driver of a job in a session of its own, after some more Python code, and return its pidfd."""
    with open(directory.driver_log, "ab") as errors:
        child = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "utf8",
                "-I",
                "-S",
                "-c",
                _DRIVER.format(before),
                _IMPORT_ROOT,
                str(directory.path),
            ],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            cwd="/",
            env={**os.environ, processes.CLUSTER_MARKER: cluster},
        )
    handle = os.pidfd_open(child.pid)
    child.returncode = 0  # whoever has the pidfd collects it
    return handle


@dataclass
class DriverRun:
    """A job of a driver that nobody watches."""

    directory: JobDirectory
    handle: int
    reports: list[Report] = field(default_factory=list)

    @property
    def log(self) -> str:
        return self.directory.log.read_bytes().decode("utf-8", "replace")

    @property
    def report(self) -> Report:
        report = self.directory.report()
        assert report is not None, self.directory.driver_log.read_text()
        return report

    def pid(self) -> int:
        wait_for(self.directory.driver_pid, "the driver to say its pid")
        pid = self.directory.driver_pid()
        assert pid is not None
        return pid

    def send(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self.handle, number)

    def wait(self, seconds: float = 30.0) -> DriverRun:
        """Wait for the driver's end."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        assert poll.poll(seconds * 1000), f"the driver did not end in {seconds} s"
        return self

    def wait_for_log(self, text: str) -> None:
        wait_for(lambda: text in self.log, f"{text!r} in the log")


StartJob = Callable[..., DriverRun]


@pytest.fixture
def start_job(tmp_path: Path, marker: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartJob]:
    """Start a driver on a job."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    runs: list[DriverRun] = []

    def start(
        run: str = "",
        *,
        setup: str = "",
        variables: dict[str, str] | None = None,
        files: list[FileOrder] | None = None,
        grace: float = 5.0,
        home: Path | None = None,
        marker_suffix: str = "",
        before: str = "",
        **fields: object,
    ) -> DriverRun:
        (tmp_path / "logs").mkdir(exist_ok=True)
        directory = JobDirectory(tmp_path / f"job{len(runs)}", tmp_path / "logs" / f"{len(runs)}-a job")
        order = Order(
            marker + marker_suffix,
            setup,
            run,
            str(home or directory.path / "home"),
            files or [],
            grace,
            **fields,
        )  # type: ignore[arg-type]
        directory.create(order, variables or {})
        runs.append(DriverRun(directory, start_driver(directory, str(tmp_path), before)))
        return runs[-1]

    yield start
    for run in runs:
        if not select.select([run.handle], [], [], 0)[0]:
            signal.pidfd_send_signal(run.handle, signal.SIGKILL)
        os.waitid(os.P_PIDFD, run.handle, os.WEXITED)
        os.close(run.handle)


@pytest.fixture
def run_job(start_job: StartJob) -> StartJob:
    """Run a job to its end."""

    def run(*args: object, **kwargs: object) -> DriverRun:
        return start_job(*args, **kwargs).wait()

    return run


def python(code: str) -> str:
    """Return a shell command that runs Python code."""
    return f"{sys.executable} -c {shlex.quote(code)}"
