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
    tries = 0
    while os.path.lexists(path):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # somebody else was faster with a part of it
        except OSError:
            tries += 1
            if tries == _TRIES:
                raise
            _make_writable(path)


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
