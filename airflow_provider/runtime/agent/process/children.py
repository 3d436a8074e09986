"""The driver's child processes: starting one, waiting for it, collecting all that ended.

All signals are taken synchronously (blocked, then waited for): there is no moment at which a cancel can be missed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider.runtime.agent.process.cgroup import Group

HURRY = signal.SIGUSR1
"""A cancel that leaves the job no grace period, also when it comes after one that does."""

_CANCELS = {signal.SIGTERM, HURRY}
SIGNALS = {*_CANCELS, signal.SIGCHLD, signal.SIGIO}
"""What a driver waits for: a cancel, the end of a child, a change in a directory that it watches."""

_CHANGEABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_SYS_CLONE3 = 435
_CLONE_INTO_CGROUP = 1 << 33

# Enters the control group before the program begins: $0 is the group's file, the rest the command.
_ENTER = '{ echo $$ > "$0"; } 2>/dev/null; exec "$@"'


class Cancelled(Exception):
    """The agent asked for the job's end."""


def spawn(
    command: list[str],
    environment: dict[str, str],
    *,
    directory: Path,
    output: int,
    group: Group | None = None,
) -> int:
    """Start a program in a session of its own, with nothing to read, and return its pid.

    Whatever this process, the agent or its starter ignores or blocks, the program begins with none of it.

    Args:
        command: Program and arguments.
        environment: Its whole environment; text is UTF-8 whatever the locale.
        directory: Where it starts.
        output: Descriptor of its output and errors.
        group: Control group in which it begins.

    Raises:
        OSError: it cannot be started.
    """
    encoded = {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in environment.items()
    }
    try:
        os.chdir(directory)
        if group is not None:
            pid = _spawn_in_group(command, encoded, output, group)
            if pid is not None:
                return pid
            command = ["/bin/sh", "-c", _ENTER, str(group.entrance), *command]
        return os.posix_spawn(
            command[0],
            command,
            encoded,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_CHANGEABLE,
        )
    finally:
        os.chdir("/")


class _CloneArguments(ctypes.Structure):
    """``struct clone_args`` of the kernel, up to the field that we need."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls"),
            *("set_tid", "set_tid_size", "cgroup"),
        )
    ]


def _spawn_in_group(
    command: list[str], environment: dict[bytes, bytes], output: int, group: Group
) -> int | None:
    """Start a program that is in ``group`` from its first moment; None where that cannot be (kernels before 5.7).

    A process that enters a group later waits for all processors to notice, which takes ten milliseconds.
    """
    try:
        place = os.open(group.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None  # somebody removed it: the job goes without
    hear, tell = os.pipe2(os.O_CLOEXEC)
    try:
        arguments = _CloneArguments(flags=_CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=place)
        # Like fork(). This process has one thread, and the new one does nothing but the few calls up to exec.
        pid: int = ctypes.PyDLL(None).syscall(
            ctypes.c_long(_SYS_CLONE3), ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments))
        )
        if pid == 0:
            _become(command, environment, output, tell)
        os.close(tell)
        tell = -1
        if pid < 0:
            return None
        problem = os.read(hear, 16)
        if problem:
            os.waitpid(pid, 0)
            raise OSError(int(problem), os.strerror(int(problem)), command[0])
        return pid
    finally:
        for handle in {place, hear, tell} - {-1}:
            os.close(handle)


def _become(command: list[str], environment: dict[bytes, bytes], output: int, tell: int) -> NoReturn:
    """Become the program, in the new process; the number of an error goes to ``tell``, which exec closes."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in _CHANGEABLE:
            if signal.getsignal(number) is signal.SIG_IGN:  # all others exec resets itself
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(command[0], command, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(tell, str(error.errno).encode())
    except ValueError:  # a NUL in an argument or a variable
        os.write(tell, str(errno.EINVAL).encode())
    finally:
        os._exit(127)


def wait(pid: int, *, limit: float | None = None, changed: Callable[[], None] = lambda: None) -> int | None:
    """Wait for a child's end and return its code (negative: the number of the signal that ended it).

    Args:
        pid: The child.
        limit: Seconds to wait at most; None is returned after that.
        changed: Called when a watched directory changed.

    Raises:
        Cancelled: the agent asked for the job's end meanwhile.
    """
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        code = reap(pid)
        if code is not None:
            return code
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return None
        if _next_signal(left) == signal.SIGIO:
            changed()


def pause(seconds: float) -> None:
    """Wait, and collect children that end meanwhile.

    Raises:
        Cancelled: the agent asked for the job's end meanwhile.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        _next_signal(left)
        reap_all()


def linger(seconds: float) -> None:
    """Let all children come to their own end, ``seconds`` at most, and not after a cancel."""
    deadline = time.monotonic() + seconds
    with suppress(Cancelled):  # whoever calls ends all of it next
        while reap_all() and (left := deadline - time.monotonic()) > 0:
            _next_signal(left)


def check_cancel() -> None:
    """See whether a cancel is waiting.

    Raises:
        Cancelled: it is.
    """
    if _CANCELS & signal.sigpending():
        raise Cancelled


def hurried() -> bool:
    """Return whether a cancel without a grace period waits. Who takes it leaves it waiting."""
    return HURRY in signal.sigpending()


def _next_signal(limit: float | None) -> int | None:
    if limit is None:
        happened = signal.sigwaitinfo(SIGNALS)
    else:
        waited = signal.sigtimedwait(SIGNALS, limit)
        if waited is None:
            return None
        happened = waited
    if happened.si_signo == HURRY:
        signal.raise_signal(HURRY)  # blocked, so it waits for whoever asks `hurried`
    if happened.si_signo in _CANCELS:
        raise Cancelled
    return happened.si_signo


def reap(wanted: int) -> int | None:
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


def reap_all(look: Callable[[int], None] = lambda pid: None) -> bool:
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
