"""The agent's process on a host: starting it, finding it, ending it without its jobs."""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.host import locks
from airflow_provider.runtime.agent.host.problem import HostProblem
from airflow_provider.runtime.agent.jobs.jobdir import read_file
from airflow_provider.runtime.agent.process import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK = Path("agent", "agent.lock")
SOCKET = Path("agent", "agent.sock")
_LOG = Path("agent", "agent.log")

# The runtime is a directory that the interpreter knows nothing of. Not PYTHONPATH: jobs would have it as well, and
# find our packages in place of theirs.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from airflow_provider.runtime.agent.__main__ import main; sys.exit(main())"
)

_STOP_SECONDS = 10.0
"""How long an agent may take to end after SIGTERM."""
_LET_GO_SECONDS = 5.0
_RETRY_SECONDS = 0.02

# About the login that starts the agent, and over with it.
_OF_THE_LOGIN = frozenset(
    {
        "_",
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
        "MAIL",
        "OLDPWD",
        "PWD",
        "SHLVL",
        "TERM",
        "WAYLAND_DISPLAY",
        processes.CLUSTER_MARKER,
        processes.JOB_MARKER,
    }
)
_OF_THE_LOGIN_TOO = ("SSH_", "XDG_SESSION_", "XDG_RUNTIME_", "SUDO_", "KRB5CCNAME")


class AgentStart(NamedTuple):
    """What an agent is started with.

    Attributes:
        root: The cluster's directory.
        instance: The cluster's identity.
        runtime: Directory that holds the agent's code and all that it imports.
        python: The interpreter.
        lease_seconds: How long the cluster lives without hearing from a controller.
        lease_directory: Where the host's lease is.
        chunks: Directory of the pieces of files that all clusters of the account share.
        seconds: Within what time it has to serve.
        prefix: Words to put before the command.
    """

    root: Path
    instance: str
    runtime: Path
    python: str
    lease_seconds: float
    lease_directory: Path
    chunks: Path
    seconds: float
    prefix: list[str]


def start_agent(start: AgentStart) -> None:
    """Start the cluster's agent and wait until it serves; one that runs already is as good.

    Raises:
        HostProblem: it does not serve.
    """
    command = [*start.prefix, start.python, "-X", "utf8", "-I", "-S", "-c", _PROGRAM, str(start.runtime)]
    command += ["--root", str(start.root), "--instance", start.instance, "--lease", repr(start.lease_seconds)]
    command += ["--ready-seconds", repr(start.seconds), "--disposable"]
    command += ["--host-lease", str(start.lease_directory), "--chunks", str(start.chunks)]
    environment = {**login_environment(), processes.CLUSTER_MARKER: str(start.root)}
    if start.prefix:
        # Where the user's service manager is found; it stays, and so does its directory.
        environment["XDG_RUNTIME_DIR"] = f"/run/user/{os.geteuid()}"
    log = start.root / _LOG
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=start.seconds + _LET_GO_SECONDS,
            check=False,
        )
    except OSError as error:
        raise HostProblem(
            f"the agent cannot be started: {error}", f"see that {start.python} can be run"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HostProblem(
            f"the agent did not start in {start.seconds:g} s",
            f"see {log}; a busy host or a slow disk may need more time",
        ) from error
    if done.returncode != 0:
        why = done.stderr.strip() or f"it ended with code {done.returncode}"
        raise HostProblem(f"the agent did not start: {why}", f"see {log}")


def login_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the agent and its jobs get of the login's environment: all but what is the session's own."""
    account = pwd.getpwuid(os.geteuid())
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _OF_THE_LOGIN and not name.startswith(_OF_THE_LOGIN_TOO)
    }
    return {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "PATH": os.defpath,
        **kept,
    }


def runs(root: Path) -> bool:
    """Return whether a process holds the lock of the cluster's agent."""
    return locks.held(root / LOCK)


def agent_pid(root: Path) -> int | None:
    """Return the pid that the agent wrote; None when there is none to be read."""
    try:
        return int(read_file(root / LOCK, limit=64))
    except (OSError, ValueError):
        return None


def answers(root: Path) -> bool:
    """Return whether something takes connections at the agent's socket."""
    try:
        handle = os.open(root / SOCKET.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            # Through the descriptor: the path itself may be longer than the kernel takes.
            return probe.connect_ex(f"/proc/self/fd/{handle}/{SOCKET.name}") == 0
    finally:
        os.close(handle)


def stop_agent(root: Path) -> None:
    """End the cluster's agent and nothing else: its jobs go on, and the next agent finds them.

    Raises:
        HostProblem: something still holds its lock.
    """
    deadline = time.monotonic() + _STOP_SECONDS + _LET_GO_SECONDS
    killed_at = time.monotonic() + _STOP_SECONDS
    while runs(root):
        pid = agent_pid(root)
        if pid is not None and pid in processes.marked(processes.CLUSTER_MARKER, str(root)):
            _end(root, pid, max(0.0, killed_at - time.monotonic()))
        if time.monotonic() > deadline:
            raise HostProblem(
                f"the agent (pid {pid}) of another version does not end",
                f"look with `fuser -v {root / LOCK}` for what holds its lock, and end it",
            )
        time.sleep(_RETRY_SECONDS)  # it has not said its pid yet, or the kernel has not let its lock go


def _end(root: Path, pid: int, seconds: float) -> None:
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            # The lock's holder wrote this pid, and the process behind the handle carries the cluster's marker.
            if agent_pid(root) != pid or pid not in processes.marked(processes.CLUSTER_MARKER, str(root)):
                return
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            if not poll.poll(seconds * 1000):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                poll.poll(_LET_GO_SECONDS * 1000)
        finally:
            os.close(handle)
