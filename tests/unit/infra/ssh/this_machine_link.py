"""A link to this machine: commands run in a shell of it, as sshd would run them in the login shell."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from airflow_provider.runtime.transport.ssh.command import CommandTimedOut, Completed


class ThisMachineLink:
    """What ``transport.ssh.links.Link`` offers, without SSH.

    Args:
        home: Home of the account.
        shell: Its login shell.
        variables: More of its environment.
    """

    is_lost = False

    def __init__(self, home: Path, *, shell: str = "sh", variables: Mapping[str, str] | None = None) -> None:
        self.commands = 0
        self._shell = shell
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home), **(variables or {})}

    async def run(self, command: str, *, stdin: bytes | Iterable[bytes] = b"", seconds: float) -> Completed:
        self.commands += 1
        process = await asyncio.create_subprocess_exec(
            self._shell,
            "-c",
            command,
            env=self._environment,
            cwd=self._environment["HOME"],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            sent = stdin if isinstance(stdin, bytes) else b"".join(stdin)
            out, err = await asyncio.wait_for(process.communicate(sent), seconds)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            raise CommandTimedOut(f"this machine: a command did not end within {seconds:g} s") from None
        code = process.returncode
        return Completed(None if code is None or code < 0 else code, out, err)
