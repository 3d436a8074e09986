"""Files as an agent keeps them for its drivers, without an agent."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from airflow_provider.runtime.agent.driver.archive import Chunk, Manifest
from airflow_provider.runtime.agent.jobs.jobdir import FileOrder
from airflow_provider.runtime.files.archive import pack

_CHUNK_BYTES = 64 * 1024


def as_blob(archive: Path, store: Path) -> Path:
    """Cut an archive into chunks below ``store`` and return the manifest."""
    data = archive.read_bytes()
    pieces = [data[begin : begin + _CHUNK_BYTES] for begin in range(0, len(data), _CHUNK_BYTES)]
    chunks = tuple(Chunk(hashlib.sha256(piece).hexdigest(), len(piece)) for piece in pieces)
    digest = hashlib.sha256(data).hexdigest()
    manifest = Manifest(digest, len(data), str(store / "chunks"), chunks)
    for chunk, piece in zip(chunks, pieces, strict=True):
        path = manifest.path(chunk)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(piece)
    (store / digest).write_text(manifest.dump())
    return store / digest


def packed(source: Path, store: Path, destination: str) -> FileOrder:
    """Pack a file or folder and return the order to unpack it at ``destination``."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = pack(source, Path(scratch))
        return FileOrder(str(as_blob(archive.path, store)), archive.kind, destination)


def as_nobody(act: Callable[[], list[str]]) -> list[str]:
    """Do something in a process of another account, and return what it returned."""
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(tell, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(pid, 0)
    with open(hear, "rb") as said:
        found: list[str] = json.loads(said.read())
    return found


def tree(top: Path) -> dict[str, str | None]:
    """Everything below a directory: the text of files, the targets of links, None for directories."""
    found: dict[str, str | None] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"  # noqa: PTH115
        else:
            found[name] = None if path.is_dir() else path.read_text()
    return found
