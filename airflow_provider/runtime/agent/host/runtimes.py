"""The installed runtimes of an account: each a directory named by its content, used until nothing needs it."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.host.problem import HostProblem
from airflow_provider.runtime.agent.trees import remove_tree

if TYPE_CHECKING:
    from collections.abc import Collection

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_OLD_SECONDS = 24 * 3600.0


def runtime_directory(base: Path, name: str) -> Path:
    """Return the directory of an installed runtime, and note that it is wanted.

    Raises:
        HostProblem: it is not there.
        ValueError: nothing can have this name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"runtime is {name!r}: it must match {_NAME.pattern}")
    directory = base / "runtime" / name
    try:
        os.utime(directory)
    except OSError as error:
        raise HostProblem(
            f"the runtime {directory} is not there ({error.strerror})", "try again: it is installed anew"
        ) from error
    return directory


def remove_old_runtimes(base: Path, used: Collection[str]) -> None:
    """Remove the runtimes that nobody asked for since a day and that neither a cluster nor a process uses.

    What cannot be removed stays for the next time: it harms nobody.

    Args:
        base: The account's directory.
        used: Names of those that clusters run with.
    """
    limit = time.time() - _OLD_SECONDS
    old = []
    with suppress(OSError):
        for directory in (base / "runtime").iterdir():
            with suppress(FileNotFoundError):
                if directory.name not in used and directory.stat().st_mtime < limit:
                    old.append(directory)
    for directory in old:
        if _NAME.fullmatch(directory.name) and not _has_users(directory):
            with suppress(OSError):
                remove_tree(directory)


def _has_users(runtime: Path) -> bool:
    """Return whether a process has the directory in its command line: agents and drivers do."""
    needle = os.fsencode(runtime) + b"\0"
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if needle in line.read_bytes():
                return True
    return False
