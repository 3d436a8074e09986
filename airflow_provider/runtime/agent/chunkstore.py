"""Pieces of archives, each named by the SHA-256 of its bytes, that all clusters of an account share on a node.

The store is bounded. What was not used for longest goes first, but never what an archive of a cluster consists of that
is still there, and nothing that was used within the last hour: it may be part of an archive that is just arriving.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.driver.archive import BrokenBlob, Manifest, chunk_path
from airflow_provider.runtime.agent.jobs.jobdir import write_private

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

STORE_BYTES = 20 << 30
"""What the store may take of the disk, if that is less than ``STORE_SHARE`` of it."""
STORE_SHARE = 0.1
"""The part of the disk that the store may take."""
KEPT_SECONDS = 3600.0
"""How long a chunk is kept after its last use, whatever the store takes."""
LARGEST_CHUNK_BYTES = 16 << 20
"""Larger ones are refused, as they are held in memory."""

_LOCK_SECONDS = 20.0
_LOCK_LOOK_SECONDS = 0.02
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PART = ".part-"
_USERS = "users"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class BadBlob(ValueError):
    """A name that is no digest, or a size that cannot be."""


class _Found(NamedTuple):
    """A chunk in the store; those that were not used for longest sort first."""

    used: float
    size: int
    path: Path


class ChunkStore:
    """Blocking access to a directory of chunks; any number of agents may use it at the same time.

    A chunk's time of last change is that of its last use.

    Args:
        directory: Where they lie. Made by the first `add`, but not its parent: where that is gone, the cluster was
            removed meanwhile and must not come back.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def use(self, digest: str) -> int | None:
        """Note that somebody needs a chunk, and return its size in bytes; None: it is not here."""
        path = chunk_path(self.directory, digest)
        try:
            os.utime(path)
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def add(self, data: bytes) -> int:
        """Keep a chunk and return its size. Its name is the hash of what arrived, so that it cannot get a wrong one.

        Raises:
            BadBlob: it is empty or too large.
            OSError: it cannot be written, and nothing half is left; of a full disk, the text says which one.
        """
        if not 0 < len(data) <= LARGEST_CHUNK_BYTES:
            raise BadBlob(f"a chunk has {len(data)} bytes: 1 to {LARGEST_CHUNK_BYTES} are possible")
        digest = hashlib.sha256(data).hexdigest()
        if self.use(digest) == len(data):
            return len(data)
        path = chunk_path(self.directory, digest)
        try:
            self._write(path, data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            # What is kept in case that somebody needs it makes room for what somebody needs.
            self.collect(limit=0)
            with self.naming_the_disk():
                self._write(path, data)
        return len(data)

    def damaged(self, digest: str) -> bool:
        """Remove a chunk if its bytes are not those of its name, as after a power cut; return whether it was so."""
        path = chunk_path(self.directory, digest)
        if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return False
        path.unlink(missing_ok=True)
        return True

    @contextmanager
    def kept_for(self, archives: Path) -> Iterator[None]:
        """Let nobody remove chunks meanwhile, and afterwards none that a manifest in ``archives`` lists.

        Raises:
            OSError: the store cannot be written, or is locked by a process that is stuck.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        with self._locked(fcntl.LOCK_SH):
            self._register(archives)
            yield

    def collect(self, limit: int | None = None) -> int:
        """Remove chunks until the store takes no more than it may, and return the bytes that were removed.

        Does nothing while another process does it, or is in `kept_for`.

        Args:
            limit: Bytes that the store may take; None: as the constants of this module say.
        """
        if not self.directory.is_dir():
            return 0
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                return self._collect(self._limit() if limit is None else limit)
        except BlockingIOError:
            return 0

    @contextmanager
    def naming_the_disk(self) -> Iterator[None]:
        """Let an error that means a full disk say which one is full."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            place = self.directory if self.directory.exists() else self.directory.parent
            disk = os.statvfs(place)
            mounted = next(above for above in (place, *place.parents) if above.is_mount())
            raise OSError(
                error.errno,
                f"{error.strerror}: {disk.f_bavail * disk.f_frsize} bytes are free on the disk mounted at {mounted}, "
                "where files for jobs are kept; make room there",
                str(self.directory),
            ) from error

    def _collect(self, limit: int) -> int:
        recent = time.time() - KEPT_SECONDS
        chunks: list[_Found] = []
        for entry in self._entries():
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if _DIGEST.fullmatch(entry.name):
                    chunks.append(_Found(status.st_mtime, status.st_size, Path(entry.path)))
                elif entry.name.startswith(_PART) and status.st_mtime < recent:
                    Path(entry.path).unlink()  # its sender died
        surplus = sum(chunk.size for chunk in chunks) - limit
        if surplus <= 0:
            return 0
        needed = self._needed()
        removed = 0
        for chunk in sorted(chunks):
            if removed >= surplus or chunk.used >= recent:
                break
            if chunk.path.name not in needed:
                chunk.path.unlink(missing_ok=True)
                removed += chunk.size
        log.info("%s: removed %s bytes that nothing needs", self.directory, removed)
        return removed

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.directory) as shards:
            directories = [shard.path for shard in shards if len(shard.name) == 2]
        for directory in directories:
            with os.scandir(directory) as entries:
                yield from entries

    def _needed(self) -> set[str]:
        """Return the chunks of all archives of all clusters; a cluster that is gone is forgotten."""
        needed: set[str] = set()
        users = self.directory / _USERS
        for user in list(users.iterdir()) if users.is_dir() else []:
            archives = Path(os.fsdecode(user.read_bytes()))
            try:
                manifests = list(archives.iterdir())
            except FileNotFoundError:
                user.unlink(missing_ok=True)
                continue
            for path in manifests:
                # What makes no sense is of no use to its cluster either.
                with suppress(FileNotFoundError, BrokenBlob):
                    if _DIGEST.fullmatch(path.name):
                        needed.update(chunk.digest for chunk in Manifest.load(path).chunks)
        return needed

    def _register(self, archives: Path) -> None:
        users = self.directory / _USERS
        users.mkdir(mode=0o700, exist_ok=True)
        name = os.fsencode(archives.absolute())
        path = users / hashlib.sha256(name).hexdigest()[:32]
        if not path.exists():
            write_private(path, os.fsdecode(name))

    def _limit(self) -> int:
        disk = os.statvfs(self.directory)
        return min(STORE_BYTES, int(disk.f_blocks * disk.f_frsize * STORE_SHARE))

    def _write(self, path: Path, data: bytes) -> None:
        for directory in (self.directory, path.parent):
            directory.mkdir(mode=0o700, exist_ok=True)
        part = path.with_name(f"{_PART}{uuid.uuid4().hex}")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(handle, "wb", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Hold the store's lock.

        Raises:
            BlockingIOError: others hold it, and ``how`` includes LOCK_NB.
            OSError: others hold it for so long that one of them must be stuck.
        """
        handle = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_SECONDS
        try:
            # Not a call that blocks: a thread in one could not give up.
            while True:
                try:
                    fcntl.flock(handle, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if how & fcntl.LOCK_NB:
                        raise
                if time.monotonic() > deadline:
                    raise OSError(
                        f"{self.directory} is locked for {_LOCK_SECONDS:.0f} s now: a process is stuck"
                    )
                time.sleep(_LOCK_LOOK_SECONDS)
            yield
        finally:
            os.close(handle)
