"""Unpacks an archive of a task's files on a node, and lets it write nowhere but where it was told to.

Runs on the nodes: the standard library only. It does not use `tarfile`'s own extraction, whose safety filters are
missing in older patch releases of Python and differ between newer ones.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pwd
import shutil
import stat
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from airflow_provider.runtime.agent.driver.delivered import STAGING_PREFIX

_CHUNK = 1 << 20
_STAGING_IS_STALE_AFTER = 24 * 3600.0

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import BinaryIO

    Parts = tuple[str, ...]


class UnpackError(ValueError):
    """An archive cannot or must not be unpacked; the message names the member or the path."""


class Account(Protocol):
    """What is told of a delivery as it goes on; see ``delivered.Account``."""

    def begin(self, staging: Path) -> None:
        """Nothing is written yet; what is prepared lies in ``staging``."""
        ...

    def replace(
        self, *, files: Collection[str], links: Collection[str], directories: Collection[str]
    ) -> None:
        """The archive is sound, and what it holds is about to appear."""
        ...

    def close(self) -> None:
        """The delivery is over, however it ended."""
        ...


def unpack(archive: BinaryIO, destination: Path, *, kind: str, account: Account | None = None) -> None:
    """Unpack a plain tar file to `destination`.

    With `kind` "directory" its members end up inside `destination`, which may be absent (parents are created), a
    directory or a link to one. What is there already stays, files of the same name are replaced, and a file that is
    the same already (content and permission bits) is not touched. With `kind` "file" its only member becomes the file
    `destination`, in place of a file or link of that name.

    Members belong to the current user, have the permission bits (read, write, execute) of the archive, regardless of
    the umask, and the time of unpacking. Everything is extracted to a hidden directory beside or inside `destination`
    first, so nothing appears there unless the whole archive is sound. Symbolic links may point anywhere, but nothing is
    written through one.

    Args:
        archive: The archive, to be read and sought in.
        destination: Where to.
        kind: What the archive holds.
        account: Told what is about to change. Without one, what an earlier archive brought stays.

    Raises:
        UnpackError: a member has an absolute name or ".." in its name, lies behind a symbolic link, appears twice,
            or is neither a file, a directory nor a symbolic link; the archive is damaged or cut short; `kind` is
            unknown; or `destination` cannot be written.
    """
    if kind not in ("directory", "file"):
        raise UnpackError(f"kind is {kind!r}: expected 'directory' or 'file'")
    try:
        (_unpack_directory if kind == "directory" else _unpack_file)(archive, destination, account)
    except OSError as error:
        raise UnpackError(_cannot(error, destination)) from error


def _unpack_directory(archive: BinaryIO, destination: Path, account: Account | None) -> None:
    exists = destination.is_dir()
    if not exists and os.path.lexists(destination):
        raise UnpackError(f"{str(destination)!r} is in the way: it is not a directory")
    # Inside a directory that exists: its parent may belong to somebody else or be another filesystem.
    with _staging(destination if exists else destination.parent, account) as staging:
        content = staging / "content"
        content.mkdir()
        found = _Extraction(content, lambda parts: destination.joinpath(*parts))
        found.extract(archive)
        if account is not None:
            account.replace(
                files=["/".join(parts) for parts in found.files],
                links=["/".join(parts) for parts in found.links],
                directories=["/".join(parts) for parts in found.modes],
            )
        if exists:
            _merge(content, destination, found)
        else:
            content.rename(destination)
        # Last, and the deepest first: nothing could be put into a read-only directory, nor reached behind a
        # directory that may not be searched.
        for parts in sorted(found.modes, key=len, reverse=True):
            mode = found.modes[parts]
            if mode is not None:
                destination.joinpath(*parts).chmod(mode)


def _unpack_file(archive: BinaryIO, destination: Path, account: Account | None) -> None:
    if destination.is_dir() and not destination.is_symlink():
        raise UnpackError(
            f"{str(destination)!r} is in the way: it is a directory, and the archive holds a file"
        )
    with _staging(destination.parent, account) as staging:
        found = _Extraction(staging, lambda parts: destination)
        found.extract(archive)
        names = [*found.files, *found.links, *found.modes]
        if len(names) != 1 or not found.files or len(names[0]) != 1:
            shown = ", ".join(sorted(repr("/".join(parts)) for parts in names)) or "nothing"
            raise UnpackError(f"the archive should hold one file, but holds {shown}")
        if account is not None:
            account.replace(files=[""], links=[], directories=[])
        if not found.kept:
            staging.joinpath(*names[0]).replace(destination)


@contextlib.contextmanager
def _staging(home: Path, account: Account | None) -> Iterator[Path]:
    """Make a directory in `home` that only this user can enter, and remove it in the end."""
    staging = home / f"{STAGING_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    if account is not None:
        account.begin(staging)
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob(STAGING_PREFIX + "*"):  # by a process that was killed
        with contextlib.suppress(OSError):
            if left.lstat().st_mtime < time.time() - _STAGING_IS_STALE_AFTER:
                shutil.rmtree(left)
    staging.mkdir(mode=0o700)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if account is not None:
        account.close()


class _Extraction:
    """Takes an archive apart into an empty directory; directories do not get their modes yet.

    Args:
        into: The directory.
        present: Where a member is to be in the end; one that is there already, as it should be, is not extracted.
    """

    def __init__(self, into: Path, present: Callable[[Parts], Path]) -> None:
        self._into = into
        self._present = present
        self.modes: dict[Parts, int | None] = {}
        """Permission bits of each directory; None if only what is inside it is a member."""
        self.files: set[Parts] = set()
        self.links: set[Parts] = set()
        self.kept: set[Parts] = set()
        """Files that are there already."""

    def extract(self, archive: BinaryIO) -> None:
        """Take all of it apart.

        Raises:
            UnpackError: the archive is not sound, or holds what is refused.
            OSError: it cannot be read, or the directory cannot be written.
        """
        last = "its start"
        end = 0
        try:
            with tarfile.open(fileobj=archive, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
                while True:
                    member = tar.next()
                    if member is None:
                        break
                    if tar.offset <= end:
                        # Older patch releases of Python believe a negative size, and would read in a circle.
                        raise tarfile.ReadError("a member ends before it begins")
                    end = tar.offset
                    last = repr(member.name)
                    self._extract_member(tar, member)
                    tar.members.clear()  # type: ignore[attr-defined]  # else memory grows with every member
                end = tar.offset
        except UnpackError:
            raise
        except (
            tarfile.TarError,
            ValueError,
            OverflowError,
        ) as error:  # what tarfile makes of a damaged header
            raise UnpackError(f"the archive is damaged or cut short after {last}: {error}") from error
        _check_end(archive, end, last)

    def _extract_member(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            if member.isdir():
                return  # "./", as other tools write it: the destination keeps its own mode
            raise UnpackError(f"member {member.name!r} has no name")
        self._make_parents(member.name, parts[:-1])
        if parts in self.files or parts in self.links or (parts in self.modes and not member.isdir()):
            raise UnpackError(f"member {member.name!r} appears twice")
        path = self._into.joinpath(*parts)
        if member.isdir():
            if parts not in self.modes:
                path.mkdir(mode=0o700)
            self.modes[parts] = member.mode & 0o777
        elif member.issym():
            path.symlink_to(member.linkname)
            self.links.add(parts)
        elif member.isreg():
            if _is_same(tar, member, self._present(parts)):
                self.kept.add(parts)
            else:
                _write(tar, member, path)
            self.files.add(parts)
        else:
            raise UnpackError(
                f"member {member.name!r} is refused: it is neither a file, a directory nor a symbolic link"
            )

    def _make_parents(self, name: str, parents: Parts) -> None:
        """Make the directories that hold a member, after checking that no part of the way is a link or a file."""
        if not parents or parents in self.modes:
            return
        for count, part in enumerate(parents, start=1):
            here = parents[:count]
            if here in self.modes:
                continue
            if here in self.links:
                raise UnpackError(f"member {name!r} is refused: it lies behind the symbolic link {part!r}")
            if here in self.files:
                raise UnpackError(f"member {name!r} is refused: {part!r} is not a directory")
            self._into.joinpath(*here).mkdir()
            self.modes[here] = None


def _check_end(archive: BinaryIO, end: int, last: str) -> None:
    # tarfile takes both a damaged header and the end of the file for the end of the archive. What checks the archive's
    # hash while it is read does so at its end.
    archive.seek(end)
    padding = archive.read(2 * tarfile.BLOCKSIZE)
    while padding and not padding.strip(b"\0"):
        more = archive.read(_CHUNK)
        if not more and len(padding) >= tarfile.BLOCKSIZE:
            return
        padding = more
    raise UnpackError(f"the archive is damaged or cut short after {last}")


def _parts(name: str) -> Parts:
    if name.startswith("/"):
        raise UnpackError(f"member {name!r} is refused: its name is absolute")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise UnpackError(f"member {name!r} is refused: its name leads out of the destination")
    return parts


def _is_same(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bool:
    """Return whether the member is at `path` already, as it would be written."""
    try:
        state = path.lstat()
        if (
            not stat.S_ISREG(state.st_mode)
            or state.st_size != member.size
            or stat.S_IMODE(state.st_mode) != member.mode & 0o777
            or state.st_uid != os.geteuid()
        ):
            return False
        # Another job may put anything in its place now: neither followed nor waited for.
        present = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with io.FileIO(present) as file, _content(tar, member) as content:
        while block := content.read(_CHUNK):
            if file.read(len(block)) != block:
                return False
    return True


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with _content(tar, member) as content, os.fdopen(descriptor, "wb") as sink:
        shutil.copyfileobj(content, sink, _CHUNK)
        os.fchmod(descriptor, member.mode & 0o777)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> BinaryIO:
    content = tar.extractfile(member)
    if content is None:
        raise UnpackError(f"member {member.name!r} has no content")
    return content  # type: ignore[return-value]  # says IO[bytes], which is all of it that is used


def _merge(content: Path, destination: Path, found: _Extraction) -> None:
    """Move everything in `content` into `destination`; directories that both have are merged."""
    waiting: list[Parts] = [()]
    while waiting:
        parts = waiting.pop()
        for path in list(content.joinpath(*parts).iterdir()):
            here = (*parts, path.name)
            target = destination.joinpath(*here)
            is_directory = here in found.modes
            if target.is_symlink() or not target.is_dir():
                if is_directory and os.path.lexists(target):
                    raise UnpackError(
                        f"{str(target)!r} is in the way: it is not a directory, and nothing is written "
                        "through a symbolic link"
                    )
                path.replace(target)
            elif is_directory:
                if found.modes[here] is not None and not os.access(target, os.W_OK | os.X_OK):
                    target.chmod(0o700)  # what an earlier unpacking made read-only; gets its mode in the end
                waiting.append(here)
            else:
                raise UnpackError(
                    f"{str(target)!r} is in the way: it is a directory, and the archive holds a file"
                )


def _cannot(error: OSError, destination: Path) -> str:
    """Say why nothing was delivered, and what can be done about it."""
    where = error.filename or destination
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"{where}: {error.strerror} for user {_account()}: choose a destination below ~/, or make the directory on "
            "the host and give it to that user"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{where}: {error.strerror}: make room on the host's disk, or choose a destination on another one"
        )
    return f"{where}: {error.strerror or error}"


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
