"""The programs of a job, one after the other: where they run, with which environment, and how they are started."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.driver import login, outcome
from airflow_provider.runtime.agent.driver.login import Login
from airflow_provider.runtime.agent.driver.outcome import JobFailed
from airflow_provider.runtime.agent.driver.shell import unseen_failures, write_script
from airflow_provider.runtime.agent.process import children, processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.agent.driver.delivered import Account
    from airflow_provider.runtime.agent.jobs.jobdir import GitOrder, JobDirectory, Order
    from airflow_provider.runtime.agent.process.cgroup import Group

REPORT_VARIABLE = "MANAGED_JOBS_REPORT"
"""Names the file where a program may report: JSON with ``status``, ``exit_codes`` and ``reason``, put there by a rename."""

_ALONE = ("127.0.0.1",)
"""What a node calls itself where nobody said how others reach it."""

_BASH = "/bin/bash"
_DEVICES = "CUDA_VISIBLE_DEVICES"


class Stages:
    """Starts the programs of one job and waits for their ends."""

    def __init__(
        self,
        *,
        directory: JobDirectory,
        order: Order,
        variables: dict[str, str],
        group: Group | None,
        log: int,
    ) -> None:
        self._directory = directory
        self._order = order
        self._variables = variables
        self._group = group
        self._log = log
        self._home = Path(order.home)
        self._workdir = self._home / "sky_workdir"
        self._login_failed = False

    def script(self, name: str, text: str, *, failed: str) -> None:
        """Run a script of the user's to its end.

        Args:
            name: ``setup`` or ``run``.
            text: The script.
            failed: The job's status when the script fails.

        Raises:
            JobFailed: it ended with another code than 0, or did not start.
            Cancelled: the agent asked for the job's end.
        """
        children.check_cancel()
        failures = self._directory.failures_file
        failures.unlink(missing_ok=True)
        # Before each stage: what setup installs writes itself into ~/.bashrc, and run is to find it.
        user = self._login()
        environment = self._environment(user.variables, name)
        script, bash_env = write_script(
            self._directory.path,
            name,
            text,
            failures,
            bash_env=environment.get("BASH_ENV"),
            login=user,
        )
        code = self._run([_BASH, str(script)], {**environment, "BASH_ENV": bash_env})
        if code != 0:
            raise JobFailed(failed, outcome.describe(name, code), (outcome.shell_code(code),))
        warning = unseen_failures(failures)
        if warning:
            self.say(f"{name}: {warning}")

    def program(self, changed: Callable[[], None]) -> int:
        """Run the order's Python program to its end and return its wait code.

        Args:
            changed: Called soon after the program reported something.

        Raises:
            JobFailed: it did not start.
            Cancelled: the agent asked for the job's end.
        """
        children.check_cancel()
        environment = self._environment(_own_environment(), "run")
        environment[REPORT_VARIABLE] = str(self._directory.program_report_file)
        # Not `-m` or `-I`: it finds what the agent's Python finds, and what lies beside it.
        command = [sys.executable, "-u", self._order.program]
        watched = os.open(self._directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a kernel without it: what the program says is looked at in the end
                what = fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT
                fcntl.fcntl(watched, fcntl.F_NOTIFY, what)
            return self._run(command, environment, changed)
        finally:
            os.close(watched)

    def clone(self, source: GitOrder, account: Account | None) -> None:
        """Bring a repository to the working directory; setup and run then have SkyPilot's variables about it.

        Args:
            source: The repository.
            account: Told what changes in the working directory; None where it goes with the job.

        Raises:
            JobFailed: it cannot be had.
            Cancelled: the agent asked for the job's end.
        """
        from airflow_provider.runtime.agent.driver.checkout import Checkout  # hardly any job has one
        from airflow_provider.runtime.agent.driver.git import Git

        children.check_cancel()
        try:
            git = Git(
                url=source.url,
                directory=self._directory,
                environment=self._environment(self._login().variables, "setup"),
                private_home=account is None,
                start=self._start,
                say=self.say,
            )
            checkout = Checkout(source=source, workdir=self._workdir, git=git, account=account, say=self.say)
            self._variables = {**self._variables, **checkout.bring()}
        finally:
            with suppress(FileNotFoundError):
                self._directory.git_key_file.unlink()

    def say(self, text: str) -> None:
        """Add a line of ours to the job's log."""
        with suppress(OSError):
            os.write(self._log, f"[managed job] {text}\n".encode("utf-8", "replace"))

    def make_room(self) -> None:
        """Remove files that nobody needs once the job is over."""
        names = [f"{stage}.{kind}" for stage in ("setup", "run") for kind in ("sh", "prologue", "functions")]
        for name in (*names, "failures", "output.json", "login.rc"):
            with suppress(OSError):
                self._directory.path.joinpath(name).unlink()
        with suppress(OSError):
            (self._directory.tasks / "setup.log").unlink()

    def _run(
        self, command: list[str], environment: dict[str, str], changed: Callable[[], None] = lambda: None
    ) -> int:
        try:
            pid = self._start(command, environment)
        except OSError as error:
            program = "bash" if command[0] == _BASH else "the program"
            raise JobFailed("FAILED_SETUP", outcome.cannot_start(program, error, environment)) from error
        code = children.wait(pid, changed=changed)
        if code is None:
            raise AssertionError("a wait without a limit ends with a code")
        return code

    def _start(self, command: list[str], environment: dict[str, str], output: int | None = None) -> int:
        """Start a program in the working directory and return its pid; its output goes to the log unless told."""
        return children.spawn(
            command,
            environment,
            directory=self._workdir,
            output=self._log if output is None else output,
            group=self._group,
        )

    def _environment(self, base: dict[str, str], stage: str) -> dict[str, str]:
        nodes = self._order.node_ips or _ALONE
        addresses = "\n".join(nodes)
        environment = {
            **base,
            # Set by rank and node, so they are the driver's to say. Variables of the user's come after the first two.
            "SKYPILOT_NODE_IPS": addresses,
            "SKYPILOT_NUM_NODES": str(len(nodes)),
            **self._variables,
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_SETUP_NODE_RANK": "0",
            "SKYPILOT_SETUP_NODE_IPS": addresses,
            "SKYPILOT_INTERNAL_JOB_ID": self._directory.path.name,
            "TASK_OUTPUT_FILE": str(self._directory.output_file),
            "PYTHONUNBUFFERED": "1",
            **self._own(),
        }
        environment.pop("RAY_RAYLET_PID", None)
        if self._order.devices is not None:
            # Setup has none: what it compiles or downloads is not to depend on what happens to be free.
            environment.pop(_DEVICES, None)
            if stage == "run":
                environment[_DEVICES] = self._order.devices
        return environment

    def _own(self) -> dict[str, str]:
        """Return what no variable of the user's may change."""
        return {
            "HOME": str(self._home),
            "PWD": str(self._workdir),
            processes.JOB_MARKER: self._order.marker,
            processes.CLUSTER_MARKER: os.environ[processes.CLUSTER_MARKER],
        }

    def _login(self) -> Login:
        """Return what the user's interactive shells have, as far as it can be had."""
        without = Login(_own_environment())
        if not self._login_failed and login.exists(self._home):
            without = self._read_bashrc(without)
        # A PATH that comes with the job stays as it is.
        return without if "PATH" in self._variables else login.with_conda(without, self._home)

    def _read_bashrc(self, without: Login) -> Login:
        environment = {**without.variables, **self._own()}
        kept = os.memfd_create("login", os.MFD_CLOEXEC)
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            command = login.command(self._directory.path, kept)
            pid = children.spawn(
                command, environment, directory=self._workdir, output=nowhere, group=self._group
            )
            problem = "it started another program in its place, or was killed"
            if children.wait(pid, limit=login.limit()) is None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                children.wait(pid)
                problem = f"it did not come to its end within {login.limit():g} s"
            found = login.parse(os.pread(kept, os.fstat(kept).st_size, 0), without.variables)
        except OSError as error:
            found, problem = None, str(error)
        finally:
            os.close(nowhere)
            os.close(kept)
        if found is None:
            self._login_failed = True
            self.say(f"what ~/.bashrc sets is not there: {problem}")
            return without
        return found


def _own_environment() -> dict[str, str]:
    """Return the environment of this process as UTF-8, whatever its locale."""
    return {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in os.environb.items()
    }
