"""A private directory for the near ends of tunnels."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "managed-jobs-tunnels-"


class PrivateDirectory:
    """A directory that only this account can enter, for sockets; it is there until it is removed.

    It is locked while a process has it open, so that what a killed process left is known, in whatever container that
    ran, and is removed by the next one that makes such a directory.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _sweep(parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._handle = _lock(self.path)
            if self._handle >= 0 and _is_at(self._handle, self.path):
                break
            # Another process took it for a left-over, between the making and the locking.
            self._close()
        status = os.fstat(self._handle)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            self._close()
            raise PermissionError(f"{self.path} is not a directory that only this account can enter")

    def short(self, name: str) -> str:
        """Return a path of a file in it, for this process, that is short enough for a socket wherever it lies."""
        return f"/proc/self/fd/{self._handle}/{name}"

    def remove(self) -> None:
        """Remove it with all sockets. Idempotent."""
        if self._handle >= 0:
            _remove(self.path)
            self._close()

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        handle = _lock(path)
        if handle < 0:
            continue
        try:
            if os.fstat(handle).st_uid == os.geteuid() and _is_at(handle, path):
                _remove(path)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    with suppress(OSError):  # somebody else is at it, or has put something there that is no socket
        for entry in path.iterdir():
            if entry.is_socket():
                entry.unlink(missing_ok=True)
        path.rmdir()


def _lock(path: Path) -> int:
    """Return a handle that holds the lock on a directory; -1: it is another's, or not there, or no directory."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle


def _is_at(handle: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), path.lstat())
    return False
