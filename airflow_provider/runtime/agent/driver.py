"""Runs one cluster job: unpack, setup, run, sweep, report. Outlives the agent that started it.

The job writes straight into the log file, so neither a dead agent nor a dead driver loses a line. All signals are
taken synchronously (blocked, then waited for): there is no moment at which a cancel can be missed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from airflow_provider.runtime.agent import processes
from airflow_provider.runtime.agent.jobdir import MAX_OUTPUT_BYTES, JobDirectory, Order, Report, write_private
from airflow_provider.runtime.agent.shell import unseen_failures, write_script

_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
_SWEEP_LIMIT_SECONDS = 60.0

# Set by rank and node, so they are the driver's to say; everything else comes with the order.
_ONE_NODE = {"SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NUM_NODES": "1"}


class _Cancelled(Exception):
    """The agent asked for the job's end."""


class _JobFailed(Exception):
    """The job cannot go on: ``status`` and the words for the user."""

    def __init__(self, status: str, reason: str, exit_codes: list[int] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.exit_codes = exit_codes or []


class Driver:
    """One run of one job."""

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._order: Order = directory.order()
        self._variables = directory.take_variables()
        self._home = Path(self._order.home)
        self._workdir = self._home / "sky_workdir"
        self._log = os.open(directory.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._report = Report(status="PENDING", started_at=time.time())

    def run(self) -> None:
        """Run the job to its end and write the final report."""
        try:
            self._unpack()
            if self._order.setup:
                self._tell(status="SETTING_UP")
                self._stage("setup", self._order.setup, "FAILED_SETUP")
            self._tell(status="RUNNING", started_at=time.time())
            if self._order.run:
                self._stage("run", self._order.run, "FAILED")
            final = replace(self._report, status="SUCCEEDED", exit_codes=[0], output=self._output())
        except _JobFailed as failure:
            final = replace(
                self._report, status=failure.status, reason=failure.reason, exit_codes=failure.exit_codes
            )
        except _Cancelled:
            final = replace(self._report, status="CANCELLED", reason="cancelled")
        left = self._sweep(grace=self._order.grace_seconds)
        if left:
            self._say(f"{len(left)} process(es) could not be killed: {sorted(p.pid for p in left)}")
        self._directory.write_report(replace(final, ended_at=time.time()))

    def _unpack(self) -> None:
        self._workdir.mkdir(parents=True, exist_ok=True)
        if not self._order.files:
            return
        from airflow_provider.runtime.agent.unpack import UnpackError, unpack  # tarfile is slow to import

        for file in self._order.files:
            self._check_cancel()
            try:
                unpack(Path(file.archive), self._place(file.destination), kind=file.kind)
            except (OSError, UnpackError) as error:
                raise _JobFailed("FAILED_SETUP", f"cannot unpack {file.destination}: {error}") from error

    def _place(self, destination: str) -> Path:
        if destination == "~" or destination.startswith("~/"):
            return self._home / destination[2:]
        return Path(destination)

    def _stage(self, name: str, text: str, failed: str) -> None:
        self._check_cancel()
        failures = self._directory.failures_file
        failures.unlink(missing_ok=True)
        script, prologue = write_script(self._directory.path, name, text, failures)
        code = self._bash(script, {**self._environment(), "BASH_ENV": str(prologue)})
        if code != 0:
            raise _JobFailed(failed, _describe(name, code), [_shell_code(code)])
        warning = unseen_failures(failures)
        if warning:
            self._say(f"{name}: {warning}")

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **_ONE_NODE,
            **self._variables,
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_SETUP_NODE_RANK": "0",
            "SKYPILOT_SETUP_NODE_IPS": _ONE_NODE["SKYPILOT_NODE_IPS"],
            "SKYPILOT_INTERNAL_JOB_ID": self._directory.path.name,
            "TASK_OUTPUT_FILE": str(self._directory.output_file),
            "PYTHONUNBUFFERED": "1",
            "HOME": str(self._home),
            "PWD": str(self._workdir),
            processes.JOB_MARKER: self._order.marker,
            processes.CLUSTER_MARKER: os.environ[processes.CLUSTER_MARKER],
        }

    def _bash(self, script: Path, environment: dict[str, str]) -> int:
        """Run a script to its end and return its wait code (negative: the number of the signal that ended it)."""
        try:
            child = subprocess.Popen(
                ["/bin/bash", str(script)],
                env=environment,
                cwd=self._workdir,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                preexec_fn=_unblock,
            )
        except OSError as error:
            # Most often E2BIG: a single variable of 128 KiB or more, or all of them together too large.
            raise _JobFailed("FAILED_SETUP", f"cannot start bash: {error}") from error
        while True:
            code = _reap(child.pid)
            if code is not None:
                child.returncode = code  # it is reaped: Popen must not wait for that pid again
                return code
            if signal.sigwaitinfo(_SIGNALS).si_signo == signal.SIGTERM:
                raise _Cancelled

    def _check_cancel(self) -> None:
        if signal.SIGTERM in signal.sigpending():
            raise _Cancelled

    def _sweep(self, *, grace: float) -> set[processes.Process]:
        """End whatever the job left running, in whatever session."""

        def find() -> set[processes.Process]:
            return processes.members([os.getpid()], processes.JOB_MARKER, self._order.marker)

        return processes.end(find, grace=grace, limit=grace + _SWEEP_LIMIT_SECONDS, reap=_reap_orphans)

    def _output(self) -> str | None:
        """Return the JSON that the job wrote, checked: a job whose result would be lost has not succeeded."""
        try:
            with open(self._directory.output_file, "rb") as file:
                data = file.read(MAX_OUTPUT_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(data) > MAX_OUTPUT_BYTES:
            size = self._directory.output_file.stat().st_size
            raise _JobFailed(
                "FAILED",
                f"TASK_OUTPUT_FILE holds {size} bytes, {MAX_OUTPUT_BYTES} at most. "
                "Write large results to storage and their address to the file.",
                [0],
            )
        try:
            text = data.decode("utf-8")
            json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise _JobFailed("FAILED", f"TASK_OUTPUT_FILE does not hold valid JSON: {error}", [0]) from error
        return text

    def _tell(self, *, status: str, started_at: float | None = None) -> None:
        self._report = replace(self._report, status=status, started_at=started_at or self._report.started_at)
        self._directory.write_report(self._report)

    def _say(self, text: str) -> None:
        """Add a line of ours to the job's log."""
        os.write(self._log, f"[managed job] {text}\n".encode())


def _reap(wanted: int | None) -> int | None:
    """Collect all children that ended (orphans of the job are ours to collect) and return the wanted one's code."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == wanted:
            found = os.waitstatus_to_exitcode(status)


def _reap_orphans() -> None:
    _reap(None)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _describe(stage: str, code: int) -> str:
    if code < 0:
        return f"{stage} was killed by {signal.Signals(-code).name} (exit code {128 - code})"
    if code > 128:
        try:
            return f"{stage} failed with exit code {code} ({signal.Signals(code - 128).name} in the last command)"
        except ValueError:
            pass  # a code above 128 that is no signal's
    return f"{stage} failed with exit code {code}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def main(path: str) -> None:
    """Run the job of the directory ``path``; do nothing when another driver already runs or ran it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    directory = JobDirectory(Path(path))
    lock = directory.lock()
    if lock is None or directory.driver_file.exists():
        return
    write_private(directory.driver_file, json.dumps({"pid": os.getpid()}))
    # Orphans of the job become our children, so descent finds them even without the marker.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    Driver(directory).run()


if __name__ == "__main__":
    main(sys.argv[1])
