"""The command that leads to a host in place of a network connection (ProxyCommand)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress

_LAST_WORDS = 2000


class Proxy:
    """A running command whose standard input and output are one end of a socket; the other end is ours."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said = bytearray()
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, command: str) -> tuple[Proxy, socket.socket]:
        """Start a command, with a shell and ``exec`` before it as ssh does it; return it and our end.

        Raises:
            OSError: there is no shell, or too many processes or open files.
        """
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                f"exec {command}",
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(process), ours

    async def _listen(self) -> None:
        while (stream := self._process.stderr) is not None and (said := await stream.read(4096)):
            self._said += said
            del self._said[:-_LAST_WORDS]

    @property
    def last_words(self) -> str:
        """What it has said on its standard error, on one line, and the exit code if it has ended by itself."""
        said = " ".join(self._said.decode(errors="replace").split())
        code = self._process.returncode
        ended = f"exit code {code}" if code is not None and code >= 0 else ""
        return "; ".join(part for part in (said, ended) if part)

    def kill(self) -> None:
        """End it and all that it has started; the event loop collects it. Idempotent."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, and nobody has been told yet
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, whatever it may still have to say. Idempotent."""
        self.kill()
        # What it started in sessions of their own may hold on to its standard error for ever.
        self._listener.cancel()

    async def ended(self, within: float) -> None:
        """Wait until it has ended by itself and has been collected, and kill it if that takes too long (seconds)."""
        waiting = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait([waiting, self._listener], timeout=within)
        finally:
            self.kill()
        await waiting
        self.close()
        await asyncio.wait([self._listener])
