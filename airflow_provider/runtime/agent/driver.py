"""Runs one cluster job: unpack, setup, run, sweep, report. Outlives the agent that started it.

The job writes straight into the log file, so neither a dead agent nor a dead driver loses a line. All signals are
taken synchronously (blocked, then waited for): there is no moment at which a cancel can be missed.

What this module imports stands between a submit and the job's first line: the least that does it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent import processes
from airflow_provider.runtime.agent.jobdir import MAX_OUTPUT_BYTES, JobDirectory, Order, Report
from airflow_provider.runtime.agent.shell import unseen_failures, write_script

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
_SWEEP_LIMIT_SECONDS = 60.0
_LINGER_SECONDS = 1.0
"""How long processes that the script left may finish by themselves (`tee` in a process substitution, for one)."""
_REPORT_TRIES = 10

# Set by rank and node, so they are the driver's to say; everything else comes with the order.
_ONE_NODE = {"SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NUM_NODES": "1"}


class _Cancelled(Exception):
    """The agent asked for the job's end."""


class _JobFailed(Exception):
    """The job cannot go on: ``status`` and the words for the user."""

    def __init__(self, status: str, reason: str, exit_codes: tuple[int, ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.exit_codes = exit_codes


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
        final = self._run()
        if _sweep(self._order.marker, grace=self._order.grace_seconds):
            self._say("some processes of the job could not be killed")
        self._write(final._replace(ended_at=time.time()))

    def _run(self) -> Report:
        try:
            self._unpack()
            if self._order.setup:
                self._tell(status="SETTING_UP")
                self._stage("setup", self._order.setup, "FAILED_SETUP")
            self._tell(status="RUNNING", started_at=time.time())
            if self._order.run:
                self._stage("run", self._order.run, "FAILED")
            self._linger()
            return self._report._replace(status="SUCCEEDED", exit_codes=(0,), output=self._output())
        except _JobFailed as failure:
            self._linger()
            return self._report._replace(
                status=failure.status, reason=failure.reason, exit_codes=failure.exit_codes
            )
        except _Cancelled:
            return self._report._replace(status="CANCELLED", reason="cancelled")
        except Exception as error:
            return self._report._replace(
                status="FAILED_DRIVER", reason=f"the job's driver failed: {type(error).__name__}: {error}"
            )

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
        environment = self._environment()
        script, bash_env = write_script(
            self._directory.path, name, text, failures, bash_env=environment.get("BASH_ENV")
        )
        code = self._bash(script, {**environment, "BASH_ENV": bash_env})
        if code != 0:
            raise _JobFailed(failed, _describe(name, code), (_shell_code(code),))
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
            os.chdir(self._workdir)
            pid = os.posix_spawn(
                "/bin/bash",
                ["/bin/bash", str(script)],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._log, 1),
                    (os.POSIX_SPAWN_DUP2, self._log, 2),
                ],
                setsid=True,
                # Whatever this process, the agent or its starter ignores or blocks, the job begins with none of it.
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError as error:
            raise _JobFailed("FAILED_SETUP", _cannot_start(error, environment)) from error
        finally:
            os.chdir("/")
        while True:
            code = _reap(pid)
            if code is not None:
                return code
            if signal.sigwaitinfo(_SIGNALS).si_signo == signal.SIGTERM:
                raise _Cancelled

    def _check_cancel(self) -> None:
        if signal.SIGTERM in signal.sigpending():
            raise _Cancelled

    def _linger(self) -> None:
        """Let what the script left come to its own end, unless there is a cancel."""
        deadline = time.monotonic() + _LINGER_SECONDS
        while _reap_orphans() and (left := deadline - time.monotonic()) > 0:
            happened = signal.sigtimedwait(_SIGNALS, left)
            if happened is not None and happened.si_signo == signal.SIGTERM:
                return

    def _output(self) -> str | None:
        """Return the JSON that the job wrote, checked: a job whose result would be lost has not succeeded."""
        try:
            # Not blocking: the job may have left a FIFO there.
            handle = os.open(self._directory.output_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _JobFailed("FAILED", f"TASK_OUTPUT_FILE cannot be read: {error.strerror}", (0,)) from error
        try:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise _JobFailed("FAILED", "TASK_OUTPUT_FILE is not a regular file", (0,))
            data = os.read(handle, MAX_OUTPUT_BYTES + 1)
        finally:
            os.close(handle)
        if len(data) > MAX_OUTPUT_BYTES:
            raise _JobFailed(
                "FAILED",
                f"TASK_OUTPUT_FILE holds {state.st_size} bytes, {MAX_OUTPUT_BYTES} at most. "
                "Write large results to storage and their address to the file.",
                (0,),
            )
        return _checked_json(data)

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
            for file in ("setup.sh", "setup.prologue", "run.sh", "run.prologue", "failures", "output.json"):
                with suppress(OSError):
                    self._directory.path.joinpath(file).unlink()
            time.sleep(0.1)

    def _say(self, text: str) -> None:
        """Add a line of ours to the job's log."""
        with suppress(OSError):
            os.write(self._log, f"[managed job] {text}\n".encode("utf-8", "replace"))


def _checked_json(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
        value = json.loads(text)
        # What other readers of JSON choke on: NaN, infinite numbers, halves of characters.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise _JobFailed(
            "FAILED", "TASK_OUTPUT_FILE does not hold valid JSON: nested too deeply", (0,)
        ) from None
    except ValueError as error:
        raise _JobFailed("FAILED", f"TASK_OUTPUT_FILE does not hold valid JSON: {error}", (0,)) from error
    return text


def _sweep(marker: str, *, grace: float) -> bool:
    """End whatever the job left running, in whatever session; True when something does not die."""
    ended: set[processes.Process] = set()

    def reap() -> bool:
        ended.clear()
        # A chain of processes that each fork and exit is too fast for a look at the process table, but each of them
        # ends as a child of ours, and what it leaves behind is in the same group.
        return _reap_orphans(lambda pid: ended.update(filter(None, [processes.fallen(pid)])))

    def find() -> set[processes.Process]:
        return processes.members([os.getpid()], processes.JOB_MARKER, marker) | ended

    return bool(processes.end(find, grace=grace, limit=grace + _SWEEP_LIMIT_SECONDS, reap=reap))


def _reap(wanted: int) -> int | None:
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


def _reap_orphans(look: Callable[[int], None] = lambda pid: None) -> bool:
    """Collect all children that ended; False when no other is left. All of the job are or become our children."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return True
            look(ended.si_pid)
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED)
        except ChildProcessError:
            return False


def _cannot_start(error: OSError, environment: dict[str, str]) -> str:
    if error.errno == errno.E2BIG:
        sizes = {name: len(value.encode("utf-8", "surrogateescape")) for name, value in environment.items()}
        name = max(sizes, key=lambda name: sizes[name])
        return (
            f"cannot start bash: its environment is too large ({sum(sizes.values())} bytes). The largest variable is "
            f"{name} with {sizes[name]} bytes; the system takes less than 131072. Put large values into a file"
        )
    return f"cannot start bash: {error}"


def _shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _describe(stage: str, code: int) -> str:
    if code < 0:
        return f"{stage} was killed by {_signal_name(-code) or f'signal {-code}'} (exit code {128 - code})"
    name = _signal_name(code - 128)
    if name is not None:
        return f"{stage} failed with exit code {code} ({name} in the last command)"
    return f"{stage} failed with exit code {code}"


def main(path: str) -> None:
    """Run the job of the directory ``path``; do nothing when another driver already runs or ran it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
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
    Driver(directory).run()


if __name__ == "__main__":
    main(sys.argv[1])
