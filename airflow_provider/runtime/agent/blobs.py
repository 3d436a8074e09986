"""File archives that controllers send to this node, named by the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BadBlob(ValueError):
    """A name that is no digest, or more bytes than were announced."""


class BrokenBlob(Exception):
    """The bytes that are here are not those of the digest, or not as many as the sender thinks: to be sent anew."""


@dataclass(frozen=True)
class Received:
    """How much of a blob is here, in bytes."""

    bytes: int
    complete: bool


class Blobs:
    """Blocking access to the node's blob directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, digest: str) -> Path:
        """Return where the complete blob lies.

        Raises:
            BadBlob: ``digest`` is not 64 hexadecimal digits (and could name any path).
        """
        if not _DIGEST.fullmatch(digest):
            raise BadBlob(f"{digest!r} is not a SHA-256 in hexadecimal")
        return self._directory / digest

    def received(self, digest: str) -> Received:
        """Return how much of the blob has arrived."""
        path = self.path(digest)
        if path.exists():
            return Received(path.stat().st_size, complete=True)
        part = path.with_suffix(".part")
        return Received(part.stat().st_size if part.exists() else 0, complete=False)

    def append(self, digest: str, offset: int, data: bytes) -> int:
        """Write ``data`` at ``offset`` of the unfinished blob and return its new size.

        Raises:
            BadBlob: ``digest`` is none.
            BrokenBlob: the offset is beyond what has arrived.
        """
        self._directory.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(
            self.path(digest).with_suffix(".part"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(handle, "wb") as part:
            size = os.fstat(part.fileno()).st_size
            if not 0 <= offset <= size:
                raise BrokenBlob(f"bytes {size} to {offset} of blob {digest} are missing")
            part.truncate(offset)
            part.seek(offset)
            part.write(data)
            return offset + len(data)

    def finish(self, digest: str) -> None:
        """Check the whole blob and give it its name.

        Raises:
            BrokenBlob: the bytes are not those of the digest; they are thrown away.
        """
        path = self.path(digest)
        part = path.with_suffix(".part")
        sha = hashlib.sha256()
        with open(part, "rb") as file:
            while block := file.read(1 << 20):
                sha.update(block)
        if sha.hexdigest() != digest:
            part.unlink()
            raise BrokenBlob(f"the bytes received for blob {digest} have SHA-256 {sha.hexdigest()}")
        part.replace(path)
