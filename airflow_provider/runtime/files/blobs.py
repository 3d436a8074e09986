"""Keeps archives under their hashes where worker and triggerer both reach them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from fsspec.implementations.local import LocalFileSystem

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from airflow_provider.runtime.files.archive import Archive

_CHUNK = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BLOB = re.compile(r"(?P<digest>[0-9a-f]{64})\.tar")
_PART = ".part-"
# An upload in progress touches its part; nobody waits an hour for a chunk.
_PART_IS_STALE_AFTER = timedelta(hours=1)
_UPLOAD_ATTEMPTS = 10


class BlobMissingError(LookupError):
    """A blob is not in the store; the message names its digest and the store, and says what to do."""


class BlobStore:
    """Archives in a folder of any fsspec filesystem, each at ``<root>/<first two digits>/<digest>.tar``.

    Several processes and hosts may use one store at the same time. Every method blocks. A digest is 64 lower-case
    hexadecimal digits; anything else is refused with `ValueError`, so that it cannot name a path outside the store.

    Args:
        fs: the filesystem.
        root: the folder in it, without a protocol; created by the first `put`.
    """

    def __init__(self, fs: AbstractFileSystem, root: str) -> None:
        self._fs = fs
        self._root = str(root).rstrip("/")
        self._is_local = isinstance(fs, LocalFileSystem)

    @classmethod
    def local(cls, path: Path) -> BlobStore:
        """Return the store in the folder `path` of this machine."""
        return cls(LocalFileSystem(), str(path.absolute()))

    def __repr__(self) -> str:
        return f"BlobStore({self.url!r})"

    @property
    def url(self) -> str:
        """The address of the store, with its protocol."""
        return str(self._fs.unstrip_protocol(self._root))

    def put(self, archive: Archive) -> bool:
        """Store `archive`; return False if it was there already (and then send nothing).

        A blob gets its name when it is complete, so a crash leaves no half-written blob. What it may leave is a
        part, which this method removes from the same folder once it is an hour old.

        Raises:
            OSError: the archive cannot be read, or the store cannot be written.
        """
        blob = self._path(archive.digest)
        self._remove_parts(self._shard(archive.digest))
        if self.has(archive.digest):
            return False
        with archive.path.open("rb") as source:
            attempts = _UPLOAD_ATTEMPTS
            while True:
                try:
                    return self._upload(source, archive, blob)
                except (FileNotFoundError, FileExistsError):
                    # Somebody deleted the last other blob of the folder, and with it the folder: while we wrote
                    # into it, or while we were making it.
                    attempts -= 1
                    if not attempts:
                        raise

    def has(self, digest: str) -> bool:
        """Say whether the blob is in the store."""
        try:
            self.size(digest)
        except BlobMissingError:
            return False
        return True

    def size(self, digest: str) -> int:
        """Return the size of the blob in bytes.

        Raises:
            BlobMissingError: it is not in the store.
        """
        path = self._path(digest)
        self._fs.invalidate_cache(self._shard(digest))  # another process may have changed the folder
        try:
            return int(self._fs.info(path)["size"])
        except FileNotFoundError as error:
            raise self._missing(digest) from error

    def open(self, digest: str) -> BinaryIO:
        """Open the blob for reading; the caller closes it.

        Raises:
            BlobMissingError: it is not in the store.
        """
        path = self._path(digest)
        self._fs.invalidate_cache(self._shard(digest))
        try:
            return cast("BinaryIO", self._fs.open(path, "rb"))
        except FileNotFoundError as error:
            raise self._missing(digest) from error

    def delete(self, digest: str) -> None:
        """Remove the blob, if it is there; on a local filesystem also its folder, if that is now empty."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(digest))
        self._remove_parts(self._shard(digest))
        self._remove_if_empty(self._shard(digest))

    def digests(self) -> set[str]:
        """Return the digests of all blobs in the store."""
        self._fs.invalidate_cache(self._root)
        names = (path.rpartition("/")[2] for path in self._fs.find(self._root, maxdepth=2))
        return {found["digest"] for name in names if (found := _BLOB.fullmatch(name))}

    def remove_stale_parts(self) -> None:
        """Remove what crashed uploads left more than an hour ago, in all folders."""
        self._fs.invalidate_cache(self._root)
        for shard in self._list(self._root):
            self._remove_parts(shard)
            self._remove_if_empty(shard)

    def _shard(self, digest: str) -> str:
        """Return the folder of a blob: a store with a hundred thousand blobs has no folder that large."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a digest: expected 64 lower-case hexadecimal digits")
        return f"{self._root}/{digest[:2]}"

    def _path(self, digest: str) -> str:
        return f"{self._shard(digest)}/{digest}.tar"

    def _missing(self, digest: str) -> BlobMissingError:
        return BlobMissingError(
            f"blob {digest} is not in {self.url}: workers and triggerers must share the blob store. Set "
            "[managed_jobs] blob_path to a place that all of them reach, or clear the task to pack its files again"
        )

    def _upload(self, source: BinaryIO, archive: Archive, blob: str) -> bool:
        part = f"{self._shard(archive.digest)}/{archive.digest}{_PART}{uuid.uuid4().hex}"
        source.seek(0)
        self._fs.makedirs(self._shard(archive.digest), exist_ok=True)
        try:
            with self._fs.open(part, "wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK)
                if self._is_local:
                    # Else a power cut soon after could leave the final name with nothing behind it.
                    sink.flush()
                    os.fsync(sink.fileno())
            written = self._fs.info(part)["size"]
            if written != archive.size:
                raise OSError(f"{archive.path} is {archive.size} bytes, but {written} arrived in {self.url}")
            self._fs.mv(part, blob)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._fs.rm_file(part)
            # Where a move does not replace (SFTP), the second of two equal uploads fails: the blob is there.
            if isinstance(error, OSError) and self.has(archive.digest):
                return False
            raise
        self._fs.invalidate_cache(self._shard(archive.digest))
        return True

    def _remove_parts(self, shard: str) -> None:
        self._fs.invalidate_cache(shard)
        oldest = datetime.now(timezone.utc) - _PART_IS_STALE_AFTER
        for path in self._list(shard):
            # An object store may not tell times, and a part may be finished while we look.
            with contextlib.suppress(NotImplementedError, FileNotFoundError):
                if _PART in path.rpartition("/")[2] and self._modified(path) < oldest:
                    self._fs.rm_file(path)

    def _modified(self, path: str) -> datetime:
        modified: datetime = self._fs.modified(path)
        return modified if modified.tzinfo else modified.replace(tzinfo=timezone.utc)

    def _list(self, folder: str) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield from [str(path).rstrip("/") for path in self._fs.ls(folder, detail=False)]

    def _remove_if_empty(self, shard: str) -> None:
        # Only where we know that removing a folder refuses one that is not empty; object stores have no folders.
        if self._is_local:
            with contextlib.suppress(OSError):
                self._fs.rmdir(shard)
