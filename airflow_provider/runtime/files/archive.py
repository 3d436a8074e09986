"""Packs a local directory or file into an archive whose name is the hash of its bytes.

Equal content gives equal bytes, whoever packs it, wherever and whenever: entries are sorted, and what differs
between two checkouts of the same commit (owner, times, hard links) is not recorded. So the same files are stored
and sent once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from airflow_provider.runtime.files.ignore import IgnoreRules

# 2000-01-01 UTC. A fixed time, because equal content must give equal bytes; not 1970, because tools on a node may
# put these files into a zip (a Python wheel is one), which cannot store a date before 1980.
_MTIME = 946_684_800
_CHUNK = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)

# The name of the only member of a packed file: equal files under different names are one archive.
_FILE_MEMBER = "file"


class PackError(OSError):
    """A source cannot be packed; the message names the path and says what to do."""


@dataclass(frozen=True)
class Archive:
    """A packed source.

    Attributes:
        path: the tar file, named ``<digest>.tar``.
        digest: SHA-256 of the tar file, 64 hexadecimal digits.
        size: of the tar file, in bytes.
        files: how many entries it holds that are not directories.
        kind: whether it holds the content of a directory or one file.
        skipped: sockets, FIFOs and devices that were left out, as paths relative to the source.
    """

    path: Path
    digest: str
    size: int
    files: int
    kind: Literal["directory", "file"]
    skipped: tuple[str, ...] = ()


def pack(source: Path, into: Path) -> Archive:
    """Pack `source` into a plain tar file in the directory `into`, which is created if it is absent.

    A directory is packed by its content: files, directories (empty ones too) and symbolic links with their
    permission bits. Links are stored as they are and never followed, except that `source` itself may be one.
    `airflow_provider.runtime.files.ignore` says what is left out. A file is packed as itself; ignore rules do not
    apply to it.

    Memory use does not grow with the size of the files, and nothing is left in `into` after a failure.

    Raises:
        PackError: `source` is missing, is neither a directory nor a file, or contains `into`; or something in it
            cannot be read or changed while it was being packed.
        OSError: the archive cannot be written.
    """
    with _reading(source):
        mode = source.stat().st_mode
    if stat.S_ISDIR(mode):
        if into.resolve().is_relative_to(source.resolve()):
            raise PackError(
                f"{str(source)!r} would be packed into itself: the archive is written to {str(into)!r}, inside it"
            )
    elif not stat.S_ISREG(mode):
        raise PackError(f"{str(source)!r} is neither a directory nor a file: give the path of one of these")

    into.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".pack-", suffix=".part", dir=into)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=_CHUNK) as sink:
            packing = _Packing(sink)
            if stat.S_ISDIR(mode):
                packing.add_content(source)
            else:
                packing.add_file(_FILE_MEMBER, source, follow=True)
            packing.write(_END)
        digest = packing.hash.hexdigest()
        path = part.replace(into / f"{digest}.tar")
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return Archive(
        path=path,
        digest=digest,
        size=packing.size,
        files=packing.files,
        kind="directory" if stat.S_ISDIR(mode) else "file",
        skipped=tuple(packing.skipped),
    )


class _Packing:
    """The state of one run of `pack`.

    Headers come from `tarfile.TarInfo`, but are not written through a `tarfile.TarFile`: that remembers every
    member, and its own collection of metadata records what must not be recorded.
    """

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self.hash = hashlib.sha256()
        self.size = 0
        self.files = 0
        self.skipped: list[str] = []

    def write(self, data: bytes) -> None:
        self._sink.write(data)
        self.hash.update(data)
        self.size += len(data)

    def add_content(self, top: Path) -> None:
        """Add everything below the directory `top`, in the order of the path's parts."""
        with _reading(top):
            rules = IgnoreRules.at_top(top)
        # A stack of what is still to do rather than recursion: a tree may be deeper than Python's stack.
        waiting = [(path, name, rules) for path, name in _entries(top, "")]
        waiting.reverse()
        while waiting:
            path, name, rules = waiting.pop()
            with _reading(path):
                mode = path.lstat().st_mode
            key = os.fsencode(name)
            if rules.ignores(key, is_directory=stat.S_ISDIR(mode)):
                continue
            if stat.S_ISDIR(mode):
                self._add_header(name, tarfile.DIRTYPE, mode=mode)
                with _reading(path):
                    inner = rules.below(path, key)
                waiting.extend(reversed([(child, inside, inner) for child, inside in _entries(path, name)]))
            elif stat.S_ISLNK(mode):
                with _reading(path):
                    # Not `Path.readlink`: a Path would lose a slash at the end.
                    target = os.readlink(path)  # noqa: PTH115
                self._add_header(name, tarfile.SYMTYPE, mode=0o777, target=target)
                self.files += 1
            elif stat.S_ISREG(mode):
                self.add_file(name, path)
            else:
                self.skipped.append(name)

    def add_file(self, name: str, path: Path, *, follow: bool = False) -> None:
        """Add the regular file at `path` as `name`."""
        # A link or a FIFO may have taken the file's place since it was listed: neither followed nor waited for.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
        with _reading(path):
            descriptor = os.open(path, flags)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise _changed(path)
            self._add_header(name, tarfile.REGTYPE, mode=before.st_mode, size=before.st_size)
            remaining = before.st_size
            while remaining:
                with _reading(path):
                    data = os.read(descriptor, min(_CHUNK, remaining))
                if not data:
                    raise _changed(path)
                self.write(data)
                remaining -= len(data)
            after = os.fstat(descriptor)
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise _changed(path)
        finally:
            os.close(descriptor)
        self.write(bytes(-before.st_size % tarfile.BLOCKSIZE))
        self.files += 1

    def _add_header(self, name: str, kind: bytes, *, mode: int, size: int = 0, target: str = "") -> None:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        entry.mode = mode & 0o777
        entry.size = size
        entry.mtime = _MTIME
        entry.linkname = target
        # pax: names of any length and in any bytes, files of any size.
        self.write(entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))


def _entries(directory: Path, name: str) -> list[tuple[Path, str]]:
    """List the path and the name in the archive of everything in `directory`, sorted by bytes, not by locale."""
    with _reading(directory):
        children = sorted(os.listdir(directory), key=os.fsencode)
    return [(directory / child, f"{name}/{child}" if name else child) for child in children]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn a failure to read `path` into a `PackError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise PackError(f"{str(path)!r} is missing, or disappeared while it was being packed") from error
        raise PackError(
            f"{str(path)!r} cannot be read ({error.strerror}): let the user that runs the Airflow worker read it, "
            "or leave it out with a .skyignore or .gitignore"
        ) from error


def _changed(path: Path) -> PackError:
    return PackError(
        f"{str(path)!r} changed while it was being packed: let what writes it finish, or leave it out with a "
        ".skyignore or .gitignore"
    )
