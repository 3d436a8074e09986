"""Archives that controllers send to this node: lists of chunks that lie in a store which clusters share."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.chunkstore import KEPT_SECONDS, BadBlob, ChunkStore
from airflow_provider.runtime.agent.driver.archive import BrokenBlob, Chunk, Manifest, open_archive
from airflow_provider.runtime.agent.jobs.jobdir import write_private

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["BadBlob", "Blobs", "BrokenBlob", "ChunksMissing"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_BYTES = 32


class ChunksMissing(LookupError):
    """An archive cannot be put together: chunks of it are not here, or not any more."""


class Blobs:
    """Blocking access to the archives of one cluster.

    Args:
        directory: Where they are listed; made with the first of them, but not its parent.
        chunks: The store of chunks, which may be that of other clusters too.
    """

    def __init__(self, directory: Path, chunks: Path) -> None:
        self._directory = directory.absolute()
        self._store = ChunkStore(chunks)

    def path(self, digest: str) -> Path:
        """Return where the archive's manifest lies, for `open_archive`.

        Raises:
            BadBlob: ``digest`` is not 64 hexadecimal digits (and could name any path).
        """
        if not _DIGEST.fullmatch(digest):
            raise BadBlob(f"{digest!r} is not a SHA-256 in hexadecimal")
        return self._directory / digest

    def open(self, digest: str) -> BinaryIO:
        """Open a complete archive; see `open_archive`."""
        return open_archive(self.path(digest))

    def complete(self, digest: str) -> bool:
        """Return whether the whole archive is here; if it is, it counts as used.

        Raises:
            BadBlob: ``digest`` is none.
            OSError: something cannot be read.
        """
        path = self.path(digest)
        try:
            manifest = Manifest.load(path)
            os.utime(path)
        except (FileNotFoundError, BrokenBlob):
            return False
        # An agent that is started again may have been given another store.
        if manifest.store != str(self._store.directory):
            return False
        return all(self._store.use(chunk.digest) == chunk.size for chunk in manifest.chunks)

    def missing(self, digests: Sequence[bytes]) -> list[bytes]:
        """Return which of the chunks are not here; the others count as used.

        Raises:
            BadBlob: one of them is not 32 bytes.
        """
        # An empty one is what a power cut left.
        return [digest for digest in digests if not self._store.use(_hexadecimal(digest))]

    def add(self, data: bytes) -> int:
        """Keep a chunk and return its size; see `ChunkStore.add`."""
        return self._store.add(data)

    def put_together(self, digest: str, size: int, chunks: Sequence[bytes]) -> None:
        """Take an archive for complete that consists of these chunks, in this order.

        That they make up the archive is checked by whoever reads it; that would take seconds for a large one here.

        Raises:
            BadBlob: the digest or one of the chunks' is none, or together they are larger or smaller than ``size``.
            ChunksMissing: some are not here, or were damaged and are removed.
            OSError: the list cannot be written; of a full disk, the text says which one.
        """
        path = self.path(digest)
        names = [_hexadecimal(chunk) for chunk in chunks]
        with self._store.naming_the_disk(), self._store.kept_for(self._directory):
            sizes = [self._store.use(name) for name in names]
            found = [Chunk(name, number) for name, number in zip(names, sizes, strict=True) if number]
            if len(found) < len(names):
                raise ChunksMissing(
                    f"{len(names) - len(found)} of the {len(names)} chunks of blob {digest} are not here"
                )
            together = sum(chunk.size for chunk in found)
            if together != size:
                # A power cut may have left a chunk with its name, but without all of its bytes.
                damaged = sum([self._store.damaged(name) for name in set(names)])
                if damaged:
                    raise ChunksMissing(f"{damaged} of the {len(names)} chunks of blob {digest} were damaged")
                raise BadBlob(f"blob {digest} has {size} bytes, but its chunks have {together}")
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_private(path, Manifest(digest, size, str(self._store.directory), tuple(found)).dump())

    def collect(self, needed: Collection[str]) -> None:
        """Forget archives that nobody needs, and remove chunks until the store takes no more than it may.

        An archive that is forgotten is put together again in no time as long as its chunks are there.

        Args:
            needed: Digests of the archives that jobs are still to unpack. Others are kept for an hour after their last
                use, as a job may be about to come.
        """
        recent = time.time() - KEPT_SECONDS
        with suppress(FileNotFoundError):
            for path in list(self._directory.iterdir()):
                if path.name not in needed and path.stat().st_mtime < recent:
                    path.unlink(missing_ok=True)
        self._store.collect()


def _hexadecimal(digest: bytes) -> str:
    if len(digest) != _DIGEST_BYTES:
        raise BadBlob(f"{digest.hex()} is not a SHA-256: it has {len(digest)} bytes")
    return digest.hex()
