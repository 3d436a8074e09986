"""Locks between short processes of one host: held by an open file, so that a killed holder never leaves one behind."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.host.problem import HostProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RETRY_SECONDS = 0.01


def take(handle: int, *, what: str, seconds: float) -> None:
    """Lock an open file or directory for this open description alone.

    Args:
        handle: Its descriptor; closing it lets the lock go.
        what: What it is, for the message.
        seconds: How long to wait for another holder.

    Raises:
        HostProblem: another process holds it for that long.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise HostProblem(
                    f"another process has held the lock of {what} for {seconds:g} s",
                    f"look for it with `fuser -v {what}` and end it if it hangs",
                ) from None
        time.sleep(
            _RETRY_SECONDS
        )  # the kernel tells nobody when a lock is let go, except who waits without a limit


def held(path: Path) -> bool:
    """Return whether another process holds the lock of a file; one that is not there is held by nobody."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def lock_file(path: Path, *, seconds: float) -> Iterator[None]:
    """Hold the lock of a file that is there for nothing else; it is made when needed and removed in the end.

    A file rather than the directory itself: on NFS only what is open for writing can be locked.

    Raises:
        HostProblem: another process holds it for ``seconds``.
        OSError: it cannot be made.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            take(handle, what=str(path), seconds=seconds)
            if not same(handle, path):
                continue  # its last holder removed it: another one is the lock now
            try:
                yield
            finally:
                with suppress(FileNotFoundError):
                    path.unlink()
            return
        finally:
            os.close(handle)


def same(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one that has the name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False
