"""Real directories to pack, and what is in a directory as plain data to compare."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

Planted = Callable[[Path, dict[str, "str | bytes | None"]], Path]
Look = Callable[[Path], dict[str, tuple[str, int, bytes]]]


def plant_tree(root: Path, entries: dict[str, str | bytes | None]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, content in entries.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str) and content.startswith("-> "):
            path.symlink_to(content[3:])
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def look_at(root: Path) -> dict[str, tuple[str, int, bytes]]:
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            status = path.lstat()
            kind = stat.filemode(status.st_mode)[0]
            content = (
                os.fsencode(path.readlink()) if kind == "l" else path.read_bytes() if kind == "-" else b""
            )
            found[str(path.relative_to(root))] = (kind, stat.S_IMODE(status.st_mode), content)
    return found


@pytest.fixture
def plant() -> Planted:
    """Create files (text or bytes), directories (None) and links ("-> target") from a dictionary."""
    return plant_tree


@pytest.fixture
def look() -> Look:
    """List everything below a directory: kind, permission bits, and content or link target."""
    return look_at
