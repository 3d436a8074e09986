"""What this process has of SSH: one thread, the connections on it, the tunnels through them."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading

from airflow_provider.runtime.transport.ssh.connect import connect
from airflow_provider.runtime.transport.ssh.shared import Links
from airflow_provider.runtime.transport.ssh.thread import LoopThread
from airflow_provider.runtime.transport.ssh.tunnel import Tunnels

_EXIT_SECONDS = 1.2
"""How long the end of the process waits for the end of the thread."""


class SshSide:
    """The thread on which all SSH of a process happens, and what is shared there."""

    def __init__(self) -> None:
        self.thread = LoopThread("managed-jobs-ssh")
        self.links = Links(connect)
        self.tunnels = Tunnels(self.links)

    def end(self) -> None:
        """Close everything at once: nobody is told, nothing is left."""
        self.thread.end(self._close, seconds=_EXIT_SECONDS)

    async def _close(self) -> None:
        await asyncio.gather(self.tunnels.close(), self.links.close())


_guard = threading.Lock()
_current: SshSide | None = None
_inherited: list[SshSide] = []


def ssh_side() -> SshSide:
    """Return what this process has, made when it is first asked for."""
    global _current
    with _guard:
        if _current is None:
            _current = SshSide()
        return _current


def _leave_to_parent() -> None:
    """In a forked child: the connections are the parent's, and the thread that served them is not here."""
    global _guard, _current
    _guard = threading.Lock()
    if _current is not None:
        # Kept for ever: collecting it would close things that the parent uses too.
        _inherited.append(_current)
        _current = None


def _end() -> None:
    if _current is not None:
        _current.end()


os.register_at_fork(after_in_child=_leave_to_parent)
atexit.register(_end)
