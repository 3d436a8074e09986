"""Reading an archive that is kept in chunks, as if it were one file.

A manifest says of which chunks an archive consists. Who reads to the end knows that every byte was right: the reader
hashes what passes, and does not give out the last bytes of an archive that is damaged.

Drivers import this module while their job waits: the standard library only, and little of it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

_BLOCK_BYTES = 1 << 20
_FORMAT = 1


class BrokenBlob(OSError):
    """What lies here is not the archive; the text says why. The damaged part is removed, so that it is sent anew."""


class Chunk(NamedTuple):
    """A piece of archives: the SHA-256 of its bytes in hexadecimal, and how many they are."""

    digest: str
    size: int


class Manifest(NamedTuple):
    """What an archive consists of."""

    digest: str
    """SHA-256 of the archive in hexadecimal."""
    size: int
    """Of the archive, in bytes."""
    store: str
    """Absolute path of the directory that keeps the chunks."""
    chunks: tuple[Chunk, ...]
    """In their order."""

    def path(self, chunk: Chunk) -> Path:
        """Return where the chunk lies."""
        return chunk_path(Path(self.store), chunk.digest)

    def dump(self) -> str:
        """Return the manifest as text."""
        return json.dumps({"format": _FORMAT, **self._asdict()})

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest.

        Raises:
            FileNotFoundError: there is none.
            BrokenBlob: it makes no sense.
            OSError: it cannot be read.
        """
        try:
            data = json.loads(path.read_bytes())
            if data.pop("format") != _FORMAT:
                raise ValueError("its format is not known")
            chunks = tuple(Chunk(str(digest), int(size)) for digest, size in data["chunks"])
            manifest = cls(str(data["digest"]), int(data["size"]), str(data["store"]), chunks)
            if (
                any(chunk.size <= 0 for chunk in chunks)
                or sum(chunk.size for chunk in chunks) != manifest.size
            ):
                raise ValueError("the sizes of its chunks are wrong")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BrokenBlob(f"{path} is not a list of an archive's chunks: {error}") from error
        return manifest


def chunk_path(store: Path, digest: str) -> Path:
    """Return where a chunk lies in a store: one with a hundred thousand chunks has no directory that large."""
    return store / digest[:2] / digest


def open_archive(manifest: Path) -> BinaryIO:
    """Open the archive that a manifest describes, for reading and seeking.

    Whatever is read, and in whatever order: the last bytes are given out only when all those before them were checked,
    for which what was passed over is read.

    Raises:
        BrokenBlob: the manifest, or later a chunk, is damaged or missing. A subclass of OSError.
        OSError: something cannot be read.
    """
    # The raw reader keeps its own position, so that a buffer of any size is right.
    return cast("BinaryIO", io.BufferedReader(_Reader(manifest, Manifest.load(manifest)), _BLOCK_BYTES))


class _Reader(io.RawIOBase):
    """The bytes of all chunks, one after the other."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._manifest = manifest
        self._ends = list(accumulate(chunk.size for chunk in manifest.chunks))
        self._position = 0
        self._open = -1
        """Index of the chunk whose file is open."""
        self._file: io.FileIO | None = None
        self._hash = hashlib.sha256()
        self._hashed = 0
        """How many bytes from the begin went into the hash."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._manifest.size}[whence]
        if base + offset < 0:
            raise ValueError(f"no position {base + offset} in an archive")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: object) -> int:
        # The type of everything that can be written to has no name on a node.
        view = memoryview(cast("bytearray", buffer)).cast("B")
        if self._hashed < self._position < self._manifest.size:
            self._pass_over()
        count = self._read(self._position, view)
        self._take(self._position, view[:count])
        self._position += count
        return count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()

    def _pass_over(self) -> None:
        """Hash what somebody seeks beyond."""
        block = memoryview(bytearray(_BLOCK_BYTES))
        while self._hashed < self._position:
            count = self._read(self._hashed, block[: self._position - self._hashed])
            self._take(self._hashed, block[:count])

    def _read(self, position: int, view: memoryview) -> int:
        """Read from one chunk; 0 only at the archive's end."""
        index = bisect_right(self._ends, position)
        if index == len(self._ends) or not view:
            return 0
        chunk = self._manifest.chunks[index]
        file = self._chunk_file(index)
        within = position - (self._ends[index] - chunk.size)
        file.seek(within)
        count = file.readinto(view[: chunk.size - within])
        if not count:
            raise self._damaged(chunk, "is cut short")
        return count

    def _chunk_file(self, index: int) -> io.FileIO:
        if self._file is not None and self._open == index:
            return self._file
        if self._file is not None:
            self._file.close()
        chunk = self._manifest.chunks[index]
        try:
            self._file = io.FileIO(self._manifest.path(chunk))
        except FileNotFoundError:
            self._file = None
            raise self._damaged(chunk, "is missing") from None
        self._open = index
        size = os.fstat(self._file.fileno()).st_size
        if size != chunk.size:
            raise self._damaged(chunk, f"has {size} bytes instead of {chunk.size}")
        return self._file

    def _take(self, position: int, data: memoryview) -> None:
        """Hash what is new of the data; check the whole once it is all there."""
        end = position + len(data)
        if end > self._hashed:
            self._hash.update(data[self._hashed - position :])
            self._hashed = end
            if end == self._manifest.size and self._hash.hexdigest() != self._manifest.digest:
                raise self._wrong()

    def _wrong(self) -> BrokenBlob:
        """Find the chunk that spoils the archive, so that not all of them are sent again."""
        for chunk in self._manifest.chunks:
            with open(self._manifest.path(chunk), "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != chunk.digest:
                    return self._damaged(chunk, "has other bytes than it had")
        self._forget(self._path)
        return BrokenBlob(
            f"{self._path}: its chunks do not make up the archive, they have SHA-256 {self._hash.hexdigest()}"
        )

    def _damaged(self, chunk: Chunk, what: str) -> BrokenBlob:
        self._forget(self._manifest.path(chunk))
        return BrokenBlob(f"{self._path}: chunk {chunk.digest} {what}")

    def _forget(self, path: Path) -> None:
        # Where it cannot be removed, the error that is about to be raised says enough.
        with suppress(OSError):
            path.unlink()
