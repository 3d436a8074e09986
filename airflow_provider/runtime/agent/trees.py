"""Removing a directory tree for good: jobs leave read-only directories, and others may remove at the same time."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_TRIES = 5


def remove_tree(path: Path) -> None:
    """Remove ``path`` and everything below it; one that is not there is no error.

    Raises:
        OSError: something is left.
    """
    for left in reversed(range(_TRIES)):
        try:
            shutil.rmtree(path)
        except OSError:
            if not os.path.lexists(path):
                return
            if left == 0:
                raise
            _make_writable(path)
        else:
            return


def _make_writable(path: Path) -> None:
    """Let the owner change all directories, the topmost first, as one below a closed one cannot be reached."""
    with suppress(OSError):
        path.chmod(0o700)
    for folder, folders, _ in os.walk(path):
        for name in folders:
            below = Path(folder, name)
            if not below.is_symlink():
                with suppress(OSError):
                    below.chmod(0o700)
