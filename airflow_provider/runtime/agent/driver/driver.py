"""Runs one cluster job: unpack, setup, run, flush, sweep, report. Outlives the agent that started it.

The job writes straight into the log file, so neither a dead agent nor a dead driver loses a line.

What this module imports stands between a submit and the job's first line: the least that does it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.driver import outcome
from airflow_provider.runtime.agent.driver.outcome import JobFailed
from airflow_provider.runtime.agent.driver.stages import Stages
from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory, Report
from airflow_provider.runtime.agent.process import cgroup, children
from airflow_provider.runtime.agent.process.children import Cancelled
from airflow_provider.runtime.agent.process.sweep import end_own_job

if TYPE_CHECKING:
    from airflow_provider.runtime.agent.jobs.jobdir import Order

_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_LIMIT_SECONDS = 60.0
_LINGER_SECONDS = 1.0
"""How long processes that the script left may finish by themselves (`tee` in a process substitution, for one)."""
_REPORT_TRIES = 10


class Driver:
    """One run of one job."""

    def __init__(self, directory: JobDirectory, order: Order) -> None:
        self._directory = directory
        self._order = order
        self._home = Path(order.home)
        self._workdir = self._home / "sky_workdir"
        self._log = os.open(directory.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        variables = directory.take_variables()
        # The last that may go wrong is done: from here on, `run` removes the group again.
        self._group = cgroup.create(order.marker)
        self._stages = Stages(
            directory=directory,
            order=order,
            variables=variables,
            group=self._group,
            log=self._log,
        )
        self._report = Report(status="PENDING", started_at=time.time())

    def run(self) -> None:
        """Run the job to its end and write the final report."""
        final = self._run()
        if end_own_job(
            self._order.marker,
            self._group,
            grace=self._order.grace_seconds,
            limit=self._order.grace_seconds + _SWEEP_LIMIT_SECONDS,
        ):
            self._stages.say("some processes of the job could not be killed")
        if self._order.program:
            # It may hold secrets: those that SkyPilot makes hold their job's variables. Not before the end of what
            # reads it.
            with suppress(OSError):
                Path(self._order.program).unlink()
        self._write(final._replace(ended_at=time.time()))

    def _run(self) -> Report:
        try:
            return self._program() if self._order.program else self._scripts()
        except JobFailed as failure:
            children.linger(_LINGER_SECONDS)
            return self._report._replace(
                status=failure.status, reason=failure.reason, exit_codes=failure.exit_codes
            )
        except Cancelled:
            return self._report._replace(status="CANCELLED", reason="cancelled")
        except Exception as error:
            traceback.print_exc()
            return self._report._replace(status="FAILED_DRIVER", reason=_driver_failed(error))

    def _scripts(self) -> Report:
        if self._order.git:
            self._tell(status="SETTING_UP")
        self._deliver()
        if self._order.setup:
            self._tell(status="SETTING_UP")
            begin = self._directory.log_size()
            try:
                self._stages.script("setup", self._order.setup, failed="FAILED_SETUP")
            finally:
                _copy(self._log, begin, self._directory)
        self._tell(status="RUNNING", started_at=time.time())
        with suppress(OSError):  # for people who look for it, and no reason to fail
            # On one node, run's log is the log of all: what other ranks would have written is not to be told apart.
            (self._directory.tasks / "run.log").symlink_to("../run.log")
        if self._order.run:
            self._run_and_flush()
        children.linger(_LINGER_SECONDS)
        output = outcome.read_output(self._directory.output_file)
        return self._report._replace(status="SUCCEEDED", exit_codes=(0,), output=output)

    def _run_and_flush(self) -> None:
        """Run the user's commands, and see to it that what they wrote to cached mounts arrives, failed or not."""
        try:
            self._stages.script("run", self._order.run, failed="FAILED")
        except JobFailed as failure:
            not_flushed = self._flush()
            if not_flushed:
                raise JobFailed(
                    failure.status, f"{failure.reason}; {not_flushed}", failure.exit_codes
                ) from failure
            raise
        not_flushed = self._flush()
        if not_flushed:
            raise JobFailed("FAILED", f"run ended with exit code 0, but {not_flushed}", (0,))

    def _flush(self) -> str:
        """Return what went wrong, nothing when all is uploaded or there is no cached mount."""
        if not (self._home / ".sky" / "rclone_log").is_dir():
            return ""
        from airflow_provider.runtime.agent.driver import mounts  # hardly any job has one

        found = mounts.find(self._home)
        if not found:
            return ""
        # Something that the script left behind may be about to write.
        children.linger(_LINGER_SECONDS)
        try:
            mounts.flush(found, limit=self._order.flush_seconds, pause=children.pause, say=self._stages.say)
        except mounts.FlushFailed as error:
            return str(error)
        return ""

    def _program(self) -> Report:
        self._deliver()
        self._tell(status="RUNNING", started_at=time.time())
        code = self._stages.program(self._program_said)
        children.linger(_LINGER_SECONDS)
        try:
            said = outcome.read_said(self._directory.program_report_file)
        except outcome.Unreadable as error:
            self._stages.say(f"the program's report {error}; its exit code decides")
            said = None
        if said is None or said.status in outcome.INTERIM:
            said = outcome.Said("SUCCEEDED", (0,), "")
        codes = said.exit_codes or (outcome.shell_code(code),)
        if said.status != "SUCCEEDED":
            raise JobFailed(said.status, said.reason or f"the program reported {said.status}", codes)
        if code != 0:
            raise JobFailed("FAILED", outcome.describe("the program", code), (outcome.shell_code(code),))
        if any(codes):
            raise JobFailed("FAILED", f"the program reported success with exit codes {list(codes)}", codes)
        output = outcome.read_output(self._directory.output_file)
        return self._report._replace(status="SUCCEEDED", exit_codes=codes, reason=said.reason, output=output)

    def _program_said(self) -> None:
        """Take over what the program says while it runs; what it says in the end is looked at in the end."""
        with suppress(outcome.Unreadable):
            said = outcome.read_said(self._directory.program_report_file)
            if said is not None and said.status in outcome.INTERIM and said.status != self._report.status:
                self._tell(status=said.status)

    def _deliver(self) -> None:
        """Bring what the job needs: its home and working directory, a repository, files.

        Raises:
            JobFailed: something cannot be brought.
            Cancelled: the agent asked for the job's end.
        """
        self._home.mkdir(exist_ok=True)
        if not self._order.root:
            self._workdir.mkdir(exist_ok=True)
        if self._order.git or self._order.files or not self._workdir.is_dir():
            from airflow_provider.runtime.agent.driver.delivery import Delivery  # most jobs have none

            Delivery(directory=self._directory, order=self._order, stages=self._stages).run()

    def _tell(self, *, status: str, started_at: float | None = None) -> None:
        self._report = self._report._replace(status=status, started_at=started_at or self._report.started_at)
        with suppress(OSError):  # a full disk ends the job when the job itself says so
            self._directory.write_report(self._report)

    def _write(self, report: Report) -> None:
        """Write the last report, on a full disk in the place of what is not needed any more."""
        for left in reversed(range(_REPORT_TRIES)):
            try:
                return self._directory.write_report(report)
            except OSError:
                if left == 0:
                    raise
            self._stages.make_room()
            time.sleep(0.1)


def _copy(log: int, begin: int, directory: JobDirectory) -> None:
    """Give setup a log of its own: the bytes that came since ``begin``. That it cannot be had is no reason to fail."""
    with suppress(OSError):
        source = os.open(directory.log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            target = os.open(
                directory.tasks / "setup.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
            )
            try:
                end = os.fstat(log).st_size
                while begin < end and (sent := os.sendfile(target, source, begin, end - begin)):
                    begin += sent
            finally:
                os.close(target)
        finally:
            os.close(source)


def _driver_failed(error: Exception) -> str:
    return f"the job's driver failed: {type(error).__name__}: {error}"


def main(path: str) -> None:
    """Run the job of the directory ``path``; do nothing when another driver already runs or ran it.

    Raises:
        OSError: not even a report can be written; whoever started the driver must account for the job.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, children.SIGNALS)
    # An ignored SIGCHLD, which survives exec, would make children vanish without an exit code.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    directory = JobDirectory(Path(path))
    lock = directory.lock()
    if lock is None or directory.driver_pid() is not None:
        return
    directory.write_driver_pid(os.getpid())
    # Orphans of the job become our children, so descent finds them even without the marker.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        order = directory.order()
        driver = Driver(JobDirectory(directory.path, Path(order.logs) if order.logs else None), order)
    except Exception as error:
        # Nothing of the job has begun yet. An order that cannot be read, for one.
        traceback.print_exc()
        directory.variables_file.unlink(missing_ok=True)
        now = time.time()
        directory.write_report(
            Report("FAILED_DRIVER", reason=_driver_failed(error), started_at=now, ended_at=now)
        )
        return
    driver.run()


if __name__ == "__main__":
    main(sys.argv[1])
