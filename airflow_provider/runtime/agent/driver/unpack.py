"""Unpacks an archive of a task's files on a node, and lets it write nowhere but where it was told to.

Runs on the nodes: the standard library only, Python 3.8 and newer. It does not use `tarfile`'s own extraction,
whose safety filters are missing in older patch releases of Python and differ between newer ones.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

_CHUNK = 1 << 20
_STAGING_PREFIX = ".managed-jobs-unpack-"
_STAGING_IS_STALE_AFTER = 24 * 3600.0

if TYPE_CHECKING:
    from collections.abc import Iterator

    Parts = tuple[str, ...]
    # Permission bits of each directory in the archive; None if only what is inside it is a member.
    Modes = dict[Parts, "int | None"]


class UnpackError(ValueError):
    """An archive cannot or must not be unpacked; the message names the member or the path."""


def unpack(archive: Path, destination: Path, *, kind: str) -> None:
    """Unpack the plain tar file `archive` to `destination`.

    With `kind` "directory" its members end up inside `destination`, which may be absent (parents are created), a
    directory or a link to one. What is there already stays, and files of the same name are replaced; files that
    an earlier archive brought and this one does not are not removed. With `kind` "file" its only member becomes
    the file `destination`, in place of a file or link of that name.

    Members belong to the current user and have the permission bits (read, write, execute) of the archive,
    regardless of the umask. Everything is extracted to a hidden directory beside or inside `destination` first, so
    nothing appears there unless the whole archive is sound. Symbolic links may point anywhere, but nothing is
    written through one.

    Raises:
        UnpackError: a member has an absolute name or ".." in its name, lies behind a symbolic link, appears twice,
            or is neither a file, a directory nor a symbolic link; the archive is damaged or cut short; `kind` is
            unknown; or `destination` cannot be written.
    """
    try:
        if kind == "directory":
            _unpack_directory(archive, destination)
        elif kind == "file":
            _unpack_file(archive, destination)
        else:
            raise UnpackError(f"kind is {kind!r}: expected 'directory' or 'file'")
    except OSError as error:
        raise UnpackError(f"cannot unpack {archive} to {destination}: {error}") from error


def _unpack_directory(archive: Path, destination: Path) -> None:
    if not destination.is_dir():
        if os.path.lexists(destination):
            raise UnpackError(f"{str(destination)!r} is in the way: it is not a directory")
        destination.parent.mkdir(parents=True, exist_ok=True)
    # Inside a directory that exists: its parent may belong to somebody else or be another filesystem.
    with _staging(destination if destination.is_dir() else destination.parent) as staging:
        content = staging / "content"
        content.mkdir()
        modes = _extract(archive, content)
        if destination.is_dir():
            _merge(content, destination, modes)
        else:
            content.rename(destination)
        # Last, and the deepest first: nothing could be put into a read-only directory, nor reached behind a
        # directory that may not be searched.
        for parts in sorted(modes, key=len, reverse=True):
            mode = modes[parts]
            if mode is not None:
                destination.joinpath(*parts).chmod(mode)


def _unpack_file(archive: Path, destination: Path) -> None:
    if destination.is_dir() and not destination.is_symlink():
        raise UnpackError(
            f"{str(destination)!r} is in the way: it is a directory, and the archive holds a file"
        )
    destination.parent.mkdir(parents=True, exist_ok=True)
    with _staging(destination.parent) as staging:
        _extract(archive, staging)
        found = list(staging.iterdir())
        if len(found) != 1 or found[0].is_symlink() or not found[0].is_file():
            names = ", ".join(sorted(repr(path.name) for path in found)) or "nothing"
            raise UnpackError(f"{archive} should hold one file, but holds {names}")
        found[0].replace(destination)


@contextlib.contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """Make a directory in `home` that only this user can enter, and remove it in the end."""
    for left in home.glob(_STAGING_PREFIX + "*"):  # by a process that was killed
        with contextlib.suppress(OSError):
            if left.lstat().st_mtime < time.time() - _STAGING_IS_STALE_AFTER:
                shutil.rmtree(left)
    staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=home))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, into: Path) -> Modes:
    """Extract everything to the empty directory `into`; directories do not get their modes yet."""
    modes: Modes = {(): None}
    last = "its start"
    end = 0
    try:
        with tarfile.open(archive, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            while True:
                member = tar.next()
                if member is None:
                    break
                if tar.offset <= end:
                    # Older patch releases of Python believe a negative size, and would read in a circle.
                    raise tarfile.ReadError("a member ends before it begins")
                end = tar.offset
                last = repr(member.name)
                _extract_member(tar, member, into, modes)
                tar.members.clear()  # type: ignore[attr-defined]  # else memory grows with every member
            end = tar.offset
    except UnpackError:
        raise
    except (tarfile.TarError, ValueError, OverflowError) as error:  # what tarfile makes of a damaged header
        raise UnpackError(f"{archive} is damaged or cut short after {last}: {error}") from error
    _check_end(archive, end, last)
    del modes[()]
    return modes


def _check_end(archive: Path, end: int, last: str) -> None:
    # tarfile takes both a damaged header and the end of the file for the end of the archive.
    with archive.open("rb") as stream:
        stream.seek(end)
        padding = stream.read(2 * tarfile.BLOCKSIZE)
        while padding and not padding.strip(b"\0"):
            more = stream.read(_CHUNK)
            if not more and len(padding) >= tarfile.BLOCKSIZE:
                return
            padding = more
    raise UnpackError(f"{archive} is damaged or cut short after {last}")


def _extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path, modes: Modes) -> None:
    parts = _parts(member.name)
    if not parts:
        if member.isdir():
            return  # "./", as other tools write it: the destination keeps its own mode
        raise UnpackError(f"member {member.name!r} has no name")
    path = _real_parent(member.name, parts[:-1], into, modes) / parts[-1]
    try:
        if member.isdir():
            if parts not in modes:
                path.mkdir(mode=0o700)
            modes[parts] = member.mode & 0o777
        elif member.issym():
            path.symlink_to(member.linkname)
        elif member.isreg():
            _write(tar, member, path)
        else:
            raise UnpackError(
                f"member {member.name!r} is refused: it is neither a file, a directory nor a symbolic link"
            )
    except FileExistsError:
        raise UnpackError(f"member {member.name!r} appears twice") from None


def _parts(name: str) -> Parts:
    if name.startswith("/"):
        raise UnpackError(f"member {name!r} is refused: its name is absolute")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise UnpackError(f"member {name!r} is refused: its name leads out of the destination")
    return parts


def _real_parent(name: str, parents: Parts, into: Path, modes: Modes) -> Path:
    """Return the directory of a member, made if it is absent, after checking that no part of it is a link."""
    if parents not in modes:
        directory = into
        for count, part in enumerate(parents, start=1):
            directory = directory / part
            if parents[:count] in modes:
                continue
            if directory.is_symlink():
                raise UnpackError(f"member {name!r} is refused: it lies behind the symbolic link {part!r}")
            if os.path.lexists(directory):
                raise UnpackError(f"member {name!r} is refused: {part!r} is not a directory")
            directory.mkdir()
            modes[parents[:count]] = None
    return into.joinpath(*parents)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    if content is None:
        raise UnpackError(f"member {member.name!r} has no content")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with content, os.fdopen(descriptor, "wb") as sink:
        shutil.copyfileobj(content, sink, _CHUNK)
        os.fchmod(descriptor, member.mode & 0o777)


def _merge(content: Path, destination: Path, modes: Modes) -> None:
    """Move everything in `content` into `destination`; directories that both have are merged."""
    waiting: list[Parts] = [()]
    while waiting:
        parts = waiting.pop()
        for found in list(content.joinpath(*parts).iterdir()):
            here = (*parts, found.name)
            target = destination.joinpath(*here)
            is_directory = here in modes
            if target.is_symlink() or not target.is_dir():
                if is_directory and os.path.lexists(target):
                    raise UnpackError(
                        f"{str(target)!r} is in the way: it is not a directory, and nothing is written "
                        "through a symbolic link"
                    )
                found.replace(target)
            elif is_directory:
                if modes[here] is not None and not os.access(target, os.W_OK | os.X_OK):
                    target.chmod(0o700)  # what an earlier unpacking made read-only; gets its mode in the end
                waiting.append(here)
            else:
                raise UnpackError(
                    f"{str(target)!r} is in the way: it is a directory, and the archive holds a file"
                )
