"""Interactive SSH sessions on this machine, found through /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

# The server's own processes; OpenSSH 9.8 and later run a session as a program of its own.
_SERVERS = frozenset({b"sshd", b"sshd-session", b"dropbear"})

# Major device numbers of pseudo-terminals.
_TERMINALS = range(136, 144)


class _Process(NamedTuple):
    name: bytes
    parent: int
    terminal: int


def ssh_sessions() -> int:
    """Return how many terminals hang on an SSH server: tunnels, copies and plain commands have none.

    What left its session (a program in tmux or screen, a nohup) is no session: its terminal has no SSH server above it.
    Sessions whose processes this user may not see (``hidepid``) are not counted.
    """
    processes: dict[int, _Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError):  # it ended between the listing and the look
                processes[int(name)] = _read(int(name))
    on_terminals = [pid for pid, process in processes.items() if _is_terminal(process.terminal)]
    return len({processes[pid].terminal for pid in on_terminals if _below_server(pid, processes)})


def _read(pid: int) -> _Process:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The command name may hold spaces and parentheses: fields are counted from the last ')'.
        head, _, tail = stat.read().rpartition(b")")
    fields = tail.split()
    return _Process(name=head.partition(b"(")[2], parent=int(fields[1]), terminal=int(fields[4]))


def _is_terminal(device: int) -> bool:
    return (device >> 8) & 0xFFF in _TERMINALS


def _below_server(pid: int, processes: dict[int, _Process]) -> bool:
    seen = set()
    while pid in processes and pid not in seen:
        if processes[pid].name in _SERVERS:
            return True
        seen.add(pid)
        pid = processes[pid].parent
    return False
