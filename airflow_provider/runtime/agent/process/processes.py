"""Finding and ending process trees on one machine (Linux, standard library only).

A process belongs to a job or cluster when its environment carries the marker of it, or when it descends from one that
does. Descent covers programs that clear their environment, the marker covers those that leave their parent.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

JOB_MARKER = "MANAGED_JOBS_JOB"
"""Environment variable that every process of one cluster job carries."""

CLUSTER_MARKER = "MANAGED_JOBS_CLUSTER"
"""Environment variable that the agent and everything it starts carry."""

_RESCAN_SECONDS = 0.2
"""How long to wait for known processes before looking for new ones."""

_UNSEEN_SECONDS = 0.002
"""How long to wait when something lives that the process table did not show: it forks faster than one can look."""


class Process(NamedTuple):
    """One line of the process table; ``started`` (clock ticks since boot) tells a reused pid from the first one."""

    pid: int
    parent: int
    group: int
    started: int


def process_table() -> dict[int, Process]:
    """Return the live processes by pid; zombies are dead and left out."""
    table = {}
    for pid in _pids():
        with suppress(OSError):  # it ended between the listing and the look
            process = read_process(pid)
            if process is not None:
                table[pid] = process
    return table


def _pids() -> list[int]:
    # The newest first: what keeps forking and exiting has the least time to be gone before the look at it.
    return sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)


def read_process(pid: int) -> Process | None:
    """Return the line of one process; None for a zombie, unless only its first thread is over and others go on.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The command name may hold spaces and parentheses: fields are counted from the last ')'.
        fields = stat.read().rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return Process(pid=pid, parent=int(fields[1]), group=int(fields[2]), started=int(fields[19]))


def fallen(pid: int) -> Process | None:
    """Return an ended child that is not collected yet, None when others of its process group are not left."""
    with suppress(OSError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as stat:
            group = int(stat.read().rpartition(b")")[2].split()[2])
        if group != os.getpgrp():
            return Process(pid=pid, parent=os.getpid(), group=group, started=0)
    return None


def marked(marker: str, value: str) -> set[int]:
    """Return the pids whose environment at exec time held ``marker=value``."""
    needle = _needle(marker, value)
    found = set()
    for pid in _pids():
        with suppress(OSError):
            if _carries(pid, needle):
                found.add(pid)
    return found


def _needle(marker: str, value: str) -> bytes:
    return b"\0" + os.fsencode(f"{marker}={value}") + b"\0"


def _carries(pid: int, needle: bytes) -> bool:
    with open(f"/proc/{pid}/environ", "rb") as environ:
        return needle in b"\0" + environ.read() + b"\0"


def members(roots: Iterable[int], marker: str, value: str, *, spare: Iterable[int] = ()) -> set[Process]:
    """Return the marked processes and all descendants of them and of ``roots``, without ``spare``.

    Roots themselves belong to the result unless spared. ``group`` is 0 for processes whose process group holds others
    too.
    """
    needle = _needle(marker, value)
    table: dict[int, Process] = {}
    children: dict[int, list[int]] = {}
    pending = list(roots)
    for pid in _pids():
        with suppress(OSError):  # it ended between the listing and the look, or belongs to another user
            process = read_process(pid)
            if process is not None:
                table[pid] = process
                children.setdefault(process.parent, []).append(pid)
                if _carries(pid, needle):
                    pending.append(pid)
    found: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(children.get(pid, ()))
    found -= {os.getpid(), *spare}
    mixed = {process.group for process in table.values() if process.pid not in found}
    mine = [table[pid] for pid in found if pid in table]
    return {process._replace(group=0) if process.group in mixed else process for process in mine}


def end(
    find: Callable[[], set[Process]],
    *,
    grace: float,
    limit: float,
    reap: Callable[[], bool] | None = None,
    kill: Callable[[], None] = lambda: None,
    hurry: Callable[[], bool] = lambda: False,
) -> set[Process]:
    """End all processes that ``find`` returns: SIGTERM, ``grace`` seconds, then SIGKILL until none is left.

    ``find`` is asked again after each wait, so processes born meanwhile are ended too.

    Args:
        find: Returns the processes to end.
        grace: Seconds between SIGTERM and SIGKILL; 0 kills at once.
        limit: Seconds after which to give up on processes that do not die (uninterruptible ones).
        reap: For a caller to whom all orphans come: collects exited children, and returns whether any child is left.
            Then this, not ``find``, decides when all is over: it cannot overlook a process.
        kill: Another way to kill, tried each time: of a control group, which no process can outrun.
        hurry: Asked again and again; once it is true, what is left of ``grace`` is not waited for.

    Returns:
        What was still alive at the limit; empty when everything is gone.
    """
    begin = time.monotonic()
    asked: set[Process] = set()
    while True:
        if reap is not None and not reap():
            return set()
        alive = find()
        elapsed = time.monotonic() - begin
        if elapsed > limit or (not alive and reap is None):
            return alive
        if elapsed < grace and not hurry():
            for process in alive - asked:
                _send(process, signal.SIGTERM)
            asked |= alive
            _await_exit(alive, min(_RESCAN_SECONDS, grace - elapsed))
        else:
            _kill(alive, kill)
            _await_exit(alive, _RESCAN_SECONDS)


def _kill(processes: set[Process], kill: Callable[[], None]) -> None:
    # All are stopped before the first one dies: none sees another's death and tells of it, and none has new children.
    for process in processes:
        _send(process, signal.SIGSTOP)
    kill()
    for process in processes:
        _send(process, signal.SIGKILL)
    # A chain of processes that each fork and exit is never caught by pid. It stays in its group, though, and the
    # kernel signals a whole group in one step. (The number is milliseconds old: far too young to be another group's.)
    for group in {process.group for process in processes} - {0, 1, os.getpgrp()}:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(OSError):  # already gone, which is what we want
        handle = os.pidfd_open(process.pid)
        try:
            now = read_process(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _await_exit(processes: set[Process], seconds: float) -> None:
    """Wait until all have ended, ``seconds`` at most."""
    poll = select.poll()
    handles = []
    for process in processes:
        with suppress(OSError):
            handle = os.pidfd_open(process.pid)
            handles.append(handle)
            poll.register(handle, select.POLLIN)
    if not handles:
        time.sleep(_UNSEEN_SECONDS)
    deadline = time.monotonic() + seconds
    waiting = set(handles)
    try:
        while waiting and (left := deadline - time.monotonic()) > 0:
            for handle, _ in poll.poll(left * 1000):
                poll.unregister(handle)
                waiting.discard(handle)
    finally:
        for handle in handles:
            os.close(handle)
