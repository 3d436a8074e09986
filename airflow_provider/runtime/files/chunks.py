"""Cuts an archive into chunks, so that archives that differ in one file differ in few chunks.

Where a chunk begins is decided by the archive's members alone, each for itself: a large one has chunks of its own, and a
small one begins a chunk when the hash of its name says so, more readily the larger it is. A file that comes, goes or
changes therefore moves no boundary but those next to it, wherever it lies in the archive.
"""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

LARGEST_CHUNK_BYTES = 4 << 20
"""No chunk is larger; large files are cut into pieces of this size."""

USUAL_CHUNK_BYTES = 512 << 10
"""What chunks of small files come to on average; larger members have chunks of their own."""

_BLOCK = tarfile.BLOCKSIZE
_PAX = ord("x")
_EXTENSIONS = frozenset(b"xgLKX")
"""Types of the headers that say more on the member that follows them: they belong to it."""
_LARGEST_EXTENSION_BYTES = 1 << 20
_WITHOUT_CONTENT = frozenset(b"123456")
"""Types of members that have no content, whatever their header says of its size: links, devices, directories, pipes."""


class _Head(NamedTuple):
    """What stands before a member's content."""

    data: bytes
    """Its headers, as they are in the archive."""
    name: bytes
    """What it is known by, the same wherever it lies and whatever it contains."""
    content: int
    """Bytes that follow, with their padding."""


def cut(stream: BinaryIO) -> Iterator[bytes]:
    """Cut what is left of `stream` into chunks, none of them empty; joined they are what was read.

    Meant for the plain tar files that `airflow_provider.runtime.files.archive` makes. What is no member of a tar file,
    such as all of a file that is none, is cut by its length. Memory use does not grow with the archive.

    Raises:
        OSError: the stream cannot be read.
    """
    source = _Source(stream)
    group = bytearray()
    while True:
        head = source.head()
        if head is None:
            break
        size = len(head.data) + head.content
        if group and (_begins(head.name, size) or len(group) + size > LARGEST_CHUNK_BYTES):
            yield bytes(group)
            group.clear()
        if size < USUAL_CHUNK_BYTES:
            group += head.data
            group += source.take(head.content)
        else:
            yield from source.pieces(head.data, size)
    # The end of the archive, or what is none.
    rest = source.take(LARGEST_CHUNK_BYTES)
    if group and len(group) + len(rest) > LARGEST_CHUNK_BYTES:
        yield bytes(group)
        group.clear()
    rest = bytes(group) + rest
    while rest:
        yield rest
        rest = source.take(LARGEST_CHUNK_BYTES)


def _begins(name: bytes, size: int) -> bool:
    """Say whether a member begins a chunk: in the long run one in so many bytes does, however small the members."""
    chance = int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") / (1 << 32)
    return chance < size / USUAL_CHUNK_BYTES


class _Source:
    """A stream that can be looked at before it is taken."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._back = b""
        """What was looked at and not taken."""

    def take(self, size: int) -> bytes:
        """Read so many bytes, fewer only at the end of the stream."""
        parts = [self._back[:size]]
        self._back = self._back[size:]
        left = size - len(parts[0])
        while left and (data := self._stream.read(left)):
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def head(self) -> _Head | None:
        """Take the headers of the next member; None, and nothing is taken, when there is none."""
        taken = b""
        name = b""
        told = None
        while len(taken) <= _LARGEST_EXTENSION_BYTES:
            header = self.take(_BLOCK)
            taken += header
            size = _content_size(header)
            if size is None:
                break
            kind = header[156]
            if kind not in _EXTENSIONS:
                name += header[:100] + header[345:500]
                if kind in _WITHOUT_CONTENT:
                    return _Head(taken, name, 0)
                return _Head(taken, name, _padded(size if told is None else told))
            if size > _LARGEST_EXTENSION_BYTES:
                break
            content = self.take(_padded(size))
            taken += content
            name += content[:size]
            if kind == _PAX:
                told = _pax_size(content[:size])
        self._back = taken + self._back
        return None

    def pieces(self, head: bytes, size: int) -> Iterator[bytes]:
        """Take a member of `size` bytes, its headers among them, in pieces of the largest size."""
        piece = head + self.take(min(size, LARGEST_CHUNK_BYTES) - len(head))
        left = size - min(size, LARGEST_CHUNK_BYTES)
        while piece:
            yield piece
            piece = self.take(min(left, LARGEST_CHUNK_BYTES))
            left -= len(piece)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _content_size(header: bytes) -> int | None:
    """Return the size that a header tells, None when it is no header.

    `tarfile` would read all its fields, which takes most of the time for an archive of small files.
    """
    try:
        if len(header) < _BLOCK or sum(header) - sum(header[148:156]) + 8 * ord(" ") != _octal(
            header[148:156]
        ):
            return None
        if header[124] & 0x80:  # in binary, too large for octal digits
            return int.from_bytes(header[124:136], "big") & ((1 << 95) - 1)
        return _octal(header[124:136])
    except ValueError:
        return None


def _octal(field: bytes) -> int:
    digits = field.partition(b"\0")[0].strip()
    return int(digits, 8) if digits else 0


def _pax_size(records: bytes) -> int | None:
    """Return the size that pax records tell, as they do where it is too large for the header; None when they do not."""
    try:
        while records:
            length, _, _ = records.partition(b" ")
            record, records = records[len(length) + 1 : int(length)], records[int(length) :]
            key, _, value = record.partition(b"=")
            if key == b"size":
                return max(0, int(value))
            if not key:
                return None
    except ValueError:
        return None
    return None
