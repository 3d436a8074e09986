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
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

JOB_MARKER = "MANAGED_JOBS_JOB"
"""Environment variable that every process of one cluster job carries."""

CLUSTER_MARKER = "MANAGED_JOBS_CLUSTER"
"""Environment variable that the agent and everything it starts carry."""

_RESCAN_SECONDS = 0.2
"""How long to wait for known processes before looking for new ones."""


@dataclass(frozen=True)
class Process:
    """One line of the process table; ``started`` (clock ticks since boot) tells a reused pid from the first one."""

    pid: int
    parent: int
    started: int


def process_table() -> dict[int, Process]:
    """Return the live processes by pid; zombies are dead and left out."""
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):  # it ended between the listing and the look
            process = _read_stat(int(name))
            if process is not None:
                table[process.pid] = process
    return table


def _read_stat(pid: int) -> Process | None:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The command name may hold spaces and parentheses: fields are counted from the last ')'.
        fields = stat.read().rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid=pid, parent=int(fields[1]), started=int(fields[19]))


def marked(marker: str, value: str) -> set[int]:
    """Return the pids whose environment at exec time held ``marker=value``."""
    needle = b"\0" + os.fsencode(f"{marker}={value}") + b"\0"
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:
            if needle in b"\0" + environ.read() + b"\0":
                found.add(int(name))
    return found


def members(roots: Iterable[int], marker: str, value: str, *, spare: Iterable[int] = ()) -> set[Process]:
    """Return the marked processes and all descendants of them and of ``roots``, without ``spare``.

    Roots themselves belong to the result unless spared.
    """
    table = process_table()
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    pending = [*roots, *marked(marker, value)]
    found: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(children.get(pid, ()))
    spared = {os.getpid(), *spare}
    return {table[pid] for pid in found if pid in table and pid not in spared}


def end(
    find: Callable[[], set[Process]],
    *,
    grace: float,
    limit: float,
    reap: Callable[[], None] = lambda: None,
) -> set[Process]:
    """End all processes that ``find`` returns: SIGTERM, ``grace`` seconds, then SIGKILL until none is left.

    ``find`` is asked again after each wait, so processes born meanwhile are ended too.

    Args:
        find: Returns the processes to end.
        grace: Seconds between SIGTERM and SIGKILL; 0 kills at once.
        limit: Seconds after which to give up on processes that do not die (uninterruptible ones).
        reap: Collects exited children of the caller.

    Returns:
        What was still alive at the limit; empty when everything is gone.
    """
    begin = time.monotonic()
    asked: set[Process] = set()
    while True:
        reap()
        alive = find()
        elapsed = time.monotonic() - begin
        if not alive or elapsed > limit:
            return alive
        if elapsed < grace:
            for process in alive - asked:
                _send(process, signal.SIGTERM)
            asked |= alive
            _await_exit(alive, min(_RESCAN_SECONDS, grace - elapsed))
        else:
            for process in alive:
                _send(process, signal.SIGKILL)
            _await_exit(alive, _RESCAN_SECONDS)


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(OSError):  # already gone, which is what we want
        handle = os.pidfd_open(process.pid)
        try:
            if _read_stat(process.pid) == process:
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
