"""SSH connections as their users see them: from any thread and event loop, shared and counted."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.transport.ssh import command as commands
from airflow_provider.runtime.transport.ssh.errors import SshUnreachable
from airflow_provider.runtime.transport.ssh.process import SshSide, ssh_side

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from airflow_provider.runtime.transport.ssh.command import Completed
    from airflow_provider.runtime.transport.ssh.shared import SharedLink
    from airflow_provider.runtime.transport.ssh.target import SshTarget


class Link:
    """A share in the one SSH connection that this process has to a target; from ``open_link``.

    It is bound to that connection: once lost, a new link is to be opened. One that is forgotten is let go of when it
    is collected.

    Attributes:
        host_key: The key that the host showed, as ``ssh-ed25519 AAAA...``.
    """

    def __init__(self, side: SshSide, shared: SharedLink) -> None:
        self.host_key = shared.host_key
        self._side = side
        self._shared = shared
        self._letting_go = weakref.finalize(self, side.thread.post, shared.release)
        self._letting_go.atexit = False

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be of no use any more."""
        return self._shared.is_lost

    async def run(
        self,
        command: str,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        seconds: float,
        on_line: Callable[[bytes], object] | None = None,
    ) -> Completed:
        """Run a command in the account's login shell, and wait for its end.

        When this is cancelled, or the time is up, the command's standard streams end, and it gets a SIGTERM if the
        sshd passes that on (OpenSSH does, except to root's commands).

        Args:
            command: For the login shell.
            stdin: What it reads; an iterable is drawn from a thread, no faster than the host takes it.
            seconds: For all of it, waiting for a free session of the connection included.
            on_line: Called, in this event loop, with each line of the standard output, without its end.

        Raises:
            CommandTimedOut: the time is up.
            TooMuchOutput: it wrote more than 4 MiB to its standard output or error.
            SshRefused: the host runs no commands for us.
            SshUnreachable: the connection is lost, or this link is closed.
            Exception: what ``stdin`` or ``on_line`` raised.
        """
        if not self._letting_go.alive:
            raise SshUnreachable(f"{self._shared.target}: this link is closed")
        lines = _Lines(on_line) if on_line is not None else None
        work = partial(
            commands.run,
            self._shared,
            command,
            stdin=stdin,
            seconds=seconds,
            on_line=lines.receive if lines is not None else None,
        )
        call = self._side.thread.call(work)
        return await (call if lines is None else lines.during(call))

    async def close(self) -> None:
        """Let go of the connection. Idempotent."""
        self._letting_go()


class _Lines:
    """Takes lines in the SSH thread, and hands them out in the event loop where it was made."""

    def __init__(self, on_line: Callable[[bytes], object]) -> None:
        self._on_line = on_line
        self._loop = asyncio.get_running_loop()
        self._failure: Exception | None = None
        self._task: asyncio.Task[Completed] | None = None

    def receive(self, line: bytes) -> None:
        with suppress(RuntimeError):  # the loop is closed, and so the call is being cancelled
            self._loop.call_soon_threadsafe(self._hand_out, line)

    def _hand_out(self, line: bytes) -> None:
        if self._failure is not None:
            return
        try:
            self._on_line(line)
        except Exception as error:
            self._failure = error
            if self._task is not None:
                self._task.cancel()

    async def during(self, call: Coroutine[Any, Any, Completed]) -> Completed:
        """Return what a call returns; raise what taking a line raised, which ends the call."""
        self._task = asyncio.ensure_future(call)
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()
        if self._failure is not None:
            raise self._failure
        return self._task.result()


async def open_link(target: SshTarget, *, seconds: float | None = None) -> Link:
    """Return a link to a target; the connection is made unless this process has it already.

    Args:
        target: Where it leads.
        seconds: How long to wait for the connection; by default 30.

    Raises:
        SshError: it cannot be made, with the reason.
    """
    side = ssh_side()
    shared = await side.thread.call(
        partial(side.links.acquire, target, seconds), discard=lambda link: link.release()
    )
    return Link(side, shared)
