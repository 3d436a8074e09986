"""The right to run a job: a program that was queued twice runs once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


def state_directory() -> Path:
    """Return the private directory of these programs; it is there."""
    directory = Path("~/.sky/managed_jobs").expanduser()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


class Claim:
    """A file per key, locked while a program runs, that keeps the last word afterwards.

    The lock is held by both processes of the program and goes with the last of them.
    """

    def __init__(self, key: str) -> None:
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        path = state_directory() / f"{name}.run"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """Take the lock; False when another program holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read(self) -> dict[str, Any]:
        """Return what was written last; empty when no program ran for this key."""
        text = os.pread(self._file, 1 << 20, 0)
        try:
            found: dict[str, Any] = json.loads(text) if text else {}
        except ValueError:  # its writer died half-way
            return {"job_id": 0}
        return found

    def write(self, **fields: object) -> None:
        """Replace what is written."""
        data = json.dumps(fields).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))
