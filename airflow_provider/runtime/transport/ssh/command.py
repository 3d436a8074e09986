"""Commands on a host: started, fed, heard and ended within a time. On the SSH thread."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, NamedTuple

import asyncssh

from airflow_provider.runtime.blocking import outlast, run_slowly
from airflow_provider.runtime.transport.ssh.errors import SshError, SshRefused, SshUnreachable
from airflow_provider.runtime.transport.ssh.waiting import open_channel, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_provider.runtime.transport.ssh.shared import SharedLink

OUTPUT_LIMIT = 4 * 1024 * 1024
"""Bytes that are kept of each of the two outputs of a command; more is an error."""

_PIECE = 64 * 1024
_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class Completed(NamedTuple):
    """What a command came to.

    Attributes:
        exit_code: None: it was ended by a signal, or the connection went meanwhile.
        stdout: What it wrote there.
        stderr: What it wrote there.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes


class CommandTimedOut(SshUnreachable):
    """A command could not be started, or did not end, in the time that it had."""


class TooMuchOutput(SshError):
    """A command wrote more than is kept."""


async def run(
    link: SharedLink,
    command: str,
    *,
    stdin: bytes | Iterable[bytes],
    seconds: float,
    on_line: Callable[[bytes], object] | None,
) -> Completed:
    """Run a command in the account's login shell, and wait for its end.

    The command is ended together with the caller's interest in it: when this is cancelled, or the time is up, its
    standard streams end, and it gets a SIGTERM if the sshd passes that on (OpenSSH does, except to root's commands).

    Args:
        link: The connection.
        command: For the login shell.
        stdin: What it reads; an iterable is drawn from a thread, no faster than the host takes it.
        seconds: For all of it, waiting for a free session of the connection included.
        on_line: Called with each line of the standard output, as soon as it is there, without its end.

    Raises:
        CommandTimedOut: the time is up.
        TooMuchOutput: it wrote too much.
        SshRefused: the host runs no commands for us.
        SshUnreachable: the connection was lost before the command was started.
        Exception: what ``stdin`` raised.
    """
    session = _Session(on_line)
    try:
        return await within(seconds, _run(link, session, command, stdin))
    except TimeoutError:
        raise CommandTimedOut(
            f"{link.target}: a command did not end within {seconds:g} s: {session.doing}"
        ) from None


async def _run(
    link: SharedLink, session: _Session, command: str, stdin: bytes | Iterable[bytes]
) -> Completed:
    async with link.sessions:
        try:
            await _start(link, session, command)
            await _attend(session, stdin)
        finally:
            session.end()
    if session.overflowed:
        raise TooMuchOutput(f"{link.target}: a command wrote more than {OUTPUT_LIMIT >> 20} MiB")
    return Completed(session.exit_code, bytes(session.stdout), bytes(session.stderr))


async def _start(link: SharedLink, session: _Session, command: str) -> None:
    pause = _PAUSE_SECONDS
    while True:
        session.doing = "the host has not started it"
        try:
            await open_channel(link.connection.create_session(lambda: session, command, encoding=None))
        except asyncssh.ChannelOpenError as error:
            # A lost connection answers like that too, and counts as lost only a moment later.
            await asyncio.sleep(0)
            if link.is_lost:
                raise SshUnreachable(f"{link.target}: the connection is lost") from error
            if error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                raise SshRefused(f"{link.target} runs no commands for us: {error.reason}") from error
            # MaxSessions: others use the connection, and end some time.
            session.doing = f"the host opens no session for it: {error.reason}"
        else:
            session.doing = "it is still running"
            return
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret hangs on it
        pause = min(_LONGEST_PAUSE_SECONDS, pause * 1.6)


async def _attend(session: _Session, stdin: bytes | Iterable[bytes]) -> None:
    feeding = asyncio.ensure_future(_feed(session, stdin))
    try:
        await asyncio.wait({feeding, session.ended}, return_when=asyncio.FIRST_COMPLETED)
        if feeding.done():
            feeding.result()
        await asyncio.wait({session.ended})
    finally:
        feeding.cancel()
        await outlast(feeding)


async def _feed(session: _Session, stdin: bytes | Iterable[bytes]) -> None:
    try:
        if isinstance(stdin, bytes):
            await session.write(stdin)
        else:
            pieces = iter(stdin)
            while (piece := await run_slowly(_next, pieces)) is not None:
                await session.write(piece)
        session.write_eof()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            raise
        # It reads no more, or has ended: its exit code says what that means.


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)


class _Session(asyncssh.SSHClientSession[bytes]):
    """A command's standard streams."""

    def __init__(self, on_line: Callable[[bytes], object] | None) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exit_code: int | None = None
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflowed = False
        self.doing = "all sessions of the connection are busy"
        self._unwanted = False
        self._on_line = on_line
        self._line_start = 0
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def session_started(self) -> None:
        if self._unwanted:
            self.end()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self.overflowed:
            return
        kept = self.stdout if datatype is None else self.stderr
        kept += data
        if len(kept) > OUTPUT_LIMIT:
            self.overflowed = True
            self.end()
        elif datatype is None and self._on_line is not None and b"\n" in data:
            self._hand_out(self._on_line)

    def _hand_out(self, on_line: Callable[[bytes], object]) -> None:
        while (end := self.stdout.find(b"\n", self._line_start)) >= 0:
            on_line(bytes(self.stdout[self._line_start : end]))
            self._line_start = end + 1

    def eof_received(self) -> bool:
        if self._on_line is not None and self._line_start < len(self.stdout):
            self._on_line(bytes(self.stdout[self._line_start :]))
            self._line_start = len(self.stdout)
        return True

    def exit_status_received(self, status: int) -> None:
        self.exit_code = status

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if not self.ended.done():
            self.ended.set_result(None)

    async def write(self, data: bytes) -> None:
        """Write, no faster than the host takes it.

        Raises:
            BrokenPipeError: the command takes no more.
        """
        for start in range(0, len(data), _PIECE):
            await self._writable.wait()
            self._open().write(data[start : start + _PIECE])

    def write_eof(self) -> None:
        self._open().write_eof()

    def _open(self) -> asyncssh.SSHClientChannel[bytes]:
        if self._channel is None:
            raise BrokenPipeError
        return self._channel

    def end(self) -> None:
        """End the command if it has not ended; if it is just being started, then as soon as it is."""
        self._unwanted = True
        if self._channel is None or self.ended.done():
            return
        self._channel.terminate()
        self._channel.abort()
