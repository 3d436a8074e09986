"""The account of what was delivered into a home that outlives its jobs, so that all of it can be taken away again.

Each destination has a record below the cluster's root: a JSON file that names what deliveries brought there and which
directories they made. It is written before anything changes, so whatever a crash leaves is on record. A later delivery
to the same place removes what it does not bring any more, and the cluster's end removes the rest. What jobs wrote
themselves is on no record and stays, except below directories that are ours as a whole.

Records are as trustworthy as the account's other files: nothing is removed through a symbolic link, nor outside the
recorded place.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.jobs.jobdir import read_file, write_private
from airflow_provider.runtime.agent.trees import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

DIRECTORY = "delivered"
"""Below the cluster's root."""

STAGING_PREFIX = ".managed-jobs-unpack-"
"""What names of directories begin with in which a delivery prepares itself."""

_LOOK_SECONDS = 0.05
_SILENT_LOOKS = 20
"""So often is looked before a wait is worth a line in the job's log."""


class Record(NamedTuple):
    """What deliveries brought to one place. Names are relative to the place; an empty one is the place itself."""

    place: str
    """Absolute, without symbolic links."""
    files: list[str]
    links: list[str]
    directories: list[str]
    """Those that deliveries made; they go when they are empty."""
    trees: list[str]
    """Directories that go with all that is in them."""
    made: list[str]
    """Absolute paths of directories that were made to reach the place, the place itself among them."""
    staging: list[str]
    """Absolute paths of directories in which a delivery that has not ended prepares itself."""
    whole: bool
    """Whether the place goes with all that is in it."""
    jobs: list[str]
    """Directories of the jobs for which deliveries were made and that had not ended."""


class Account:
    """What one delivery does to one place: ``begin``, ``replace``, then change the files, then ``close``.

    Args:
        root: The cluster's directory.
        place: Absolute path of the destination.
        job: Directory of the job that the delivery is for.
        say: Takes a line for the job's log.
    """

    def __init__(self, *, root: Path, place: Path, job: Path, say: Callable[[str], None]) -> None:
        self._place = _real(place)
        self._file = _file(root, self._place)
        self._job = str(job)
        self._say = say
        self._record = _load(self._file) or _empty(self._place)

    def begin(self, staging: Path) -> None:
        """Note that a delivery prepares itself in ``staging``, and which directories it makes for that.

        Raises:
            OSError: the account cannot be written.
        """
        for left in self._record.staging:
            _remove_staging(Path(left))
        made = [*self._record.made, *(str(path) for path in _missing(self._place))]
        self._write(self._record._replace(staging=[str(staging)], made=made))

    def replace(
        self,
        *,
        files: Collection[str],
        links: Collection[str],
        directories: Collection[str],
        trees: Collection[str] = (),
    ) -> None:
        """Put on record what comes, and remove what earlier deliveries brought and this one does not.

        While another job runs for which something was delivered here, nothing is removed: what this delivery does not
        bring stays until the next one.

        Raises:
            OSError: the account cannot be written, or something cannot be removed.
        """
        old = self._record
        coming = {*files, *links}
        # What was there before the first delivery is replaced, as the task says, but it is not ours to take away.
        ours = {*old.files, *old.links, *old.directories, *old.trees}
        kept = {name for name in coming - ours if _there(self._place, name)}
        if kept and not old.whole:
            some = ", ".join(sorted(kept)[:3]) + (", …" if len(kept) > 3 else "")
            self._say(f"{self._place}: what was there is replaced, and stays when the cluster goes: {some}")
        stale = [name for name in (*old.files, *old.links) if name not in coming]
        gone = {*old.directories} - {*directories}
        lost = {*old.trees} - {*trees}
        there = {name for name in directories if _is_directory(self._place, name)}
        union = old._replace(
            files=sorted({*old.files, *files} - {*links} - kept),
            links=sorted({*old.links, *links} - {*files} - kept),
            directories=sorted({*old.directories, *({*directories} - there)}),
            trees=sorted({*old.trees, *trees}),
            jobs=[*(job for job in old.jobs if job != self._job and _lives(Path(job))), self._job],
        )
        self._write(union)
        if not (stale or gone or lost):
            return
        if union.jobs != [self._job]:
            numbers = ", ".join(Path(job).name for job in union.jobs[:-1])
            self._say(
                f"{self._place} is in use by job {numbers}: what this job does not bring stays there, and files of the "
                "same name are replaced"
            )
            return
        for names, remove in (
            (lost, _remove_real_tree),
            ({*old.files} - coming, _remove_file),
            ({*old.links} - coming, _remove_link),
            (sorted(gone, key=_depth, reverse=True), _remove_empty),
        ):
            for name in names:
                _remove_below(self._place, name, remove)
        self._record = union._replace(
            files=sorted({*files} - kept),
            links=sorted({*links} - kept),
            # One that is not empty holds what jobs made, and goes once that is gone.
            directories=[name for name in union.directories if name not in gone or _there(self._place, name)],
            trees=sorted(trees),
        )

    def close(self) -> None:
        """Note that the delivery is over, however it ended.

        Raises:
            OSError: the account cannot be written.
        """
        for left in self._record.staging:
            _remove_staging(Path(left))
        self._write(self._record._replace(staging=[]))

    def _write(self, record: Record) -> None:
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self._file, json.dumps(record._asdict()))
        self._record = record


def make_whole(root: Path, place: Path) -> None:
    """Make a directory that goes, with all that is in it, when the cluster ends; one that is there stays as it is.

    Raises:
        FileExistsError: something else is there, which is not ours and must not go.
        OSError: it or the record cannot be made.
    """
    if os.path.lexists(place):
        if place.is_dir():  # in this order: somebody else may make it at any moment
            return
        raise FileExistsError(errno.EEXIST, "something is in the way that is not a directory", str(place))
    file = _file(root, _real(place))
    record = _load(file) or _empty(_real(place))
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_private(file, json.dumps(record._replace(whole=True)._asdict()))
    with suppress(FileExistsError):
        place.mkdir()


@contextmanager
def one_at_a_time(
    root: Path, *, pause: Callable[[float], None], waiting: Callable[[], None]
) -> Iterator[None]:
    """Keep the deliveries of a cluster's jobs apart.

    Args:
        root: The cluster's directory.
        pause: Waits for so many seconds; what it raises ends the wait.
        waiting: Called once when another delivery takes its time.

    Raises:
        OSError: the lock cannot be made.
    """
    directory = root / DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        looks = 0
        while not _lock(handle, fcntl.LOCK_EX):
            looks += 1
            if looks == _SILENT_LOOKS:
                waiting()
            pause(_LOOK_SECONDS)
        yield
    finally:
        os.close(handle)


def remove_delivered(root: Path) -> list[str]:
    """Remove all that was delivered for the cluster at ``root``; return what could not be removed and why.

    No job of the cluster may run any more. Blocking; may be repeated until nothing is left.
    """
    problems: list[str] = []
    empty: set[Path] = set()
    records: list[Path] = []
    for file in sorted((root / DIRECTORY).glob("*.json")):
        try:
            record = _load(file)
        except (OSError, ValueError, TypeError) as error:
            problems.append(f"{file}: cannot be read, so what it accounts for is still there ({error})")
            continue
        if record is None:
            continue  # somebody else was faster
        left, directories = _remove_recorded(record)
        problems += left
        empty |= directories
        if not left:
            records.append(file)
    # Of all records, as a place may lie in another.
    for directory in sorted(empty, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            _remove_empty(directory)
    for file in records:
        file.unlink(missing_ok=True)
    return problems


def _remove_recorded(record: Record) -> tuple[list[str], set[Path]]:
    """Remove what a record names; return what is left and why, and the directories to be removed if they are empty."""
    place = Path(record.place)
    steps: list[tuple[Path, str, Callable[[Path], None]]] = [
        (Path(left).parent, Path(left).name, _remove_staging) for left in record.staging
    ]
    if record.whole and Path(os.path.realpath(place.parent)) == place.parent:
        steps.append((place.parent, place.name, _remove_real_tree))
    elif _real(place) == place:
        steps += [(place, name, _remove_real_tree) for name in record.trees]
        steps += [(place, name, _remove_file) for name in record.files]
        steps += [(place, name, _remove_link) for name in record.links]
    else:
        return [f"{place}: a symbolic link leads elsewhere now, so what was delivered is left"], set()
    problems = []
    for within, name, remove in steps:
        try:
            _remove_below(within, name, remove)
        except OSError as error:
            problems.append(f"{within / name}: {error.strerror or error}")
    below = {path for name in record.directories if (path := _below(place, name)) is not None}
    return problems, below | {Path(path) for path in record.made}


def _empty(place: Path) -> Record:
    return Record(str(place), [], [], [], [], [], [], False, [])


def _file(root: Path, place: Path) -> Path:
    return root / DIRECTORY / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.json"


def _load(file: Path) -> Record | None:
    """Return the record; None when there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no record.
        TypeError: it is no record.
    """
    try:
        text = read_file(file)
    except FileNotFoundError:
        return None
    return Record(**json.loads(text))


def _real(place: Path) -> Path:
    """Return where a destination is: a directory behind a link, but a link to a file is replaced and not followed."""
    if place.is_dir():
        return Path(os.path.realpath(place))
    return Path(os.path.realpath(place.parent)) / place.name


def _missing(place: Path) -> Iterable[Path]:
    while not os.path.lexists(place):
        yield place
        place = place.parent


def _below(place: Path, name: str) -> Path | None:
    """Return where a delivered name is; None when there is a link or nothing on the way, or it leads elsewhere."""
    parts = Path(name).parts
    if ".." in parts or Path(name).is_absolute():
        return None
    path = place
    for part in parts[:-1]:
        path /= part
        if path.is_symlink() or not path.is_dir():
            return None
    return path / parts[-1] if parts else path


def _is_directory(place: Path, name: str) -> bool:
    path = _below(place, name)
    return path is not None and path.is_dir() and not path.is_symlink()


def _there(place: Path, name: str) -> bool:
    path = _below(place, name)
    return path is not None and os.path.lexists(path)


def _depth(name: str) -> int:
    return len(Path(name).parts)


def _remove_below(place: Path, name: str, remove: Callable[[Path], None]) -> None:
    path = _below(place, name)
    if path is None:
        return
    try:
        remove(path)
    except PermissionError:
        if not name:
            raise
        # Delivered directories may be read-only.
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        path.parent.chmod(mode | 0o300)
        try:
            remove(path)
        finally:
            path.parent.chmod(mode)


def _remove_file(path: Path) -> None:
    if (mode := _mode(path)) is not None and stat.S_ISREG(mode):
        path.unlink(missing_ok=True)


def _remove_link(path: Path) -> None:
    if (mode := _mode(path)) is not None and stat.S_ISLNK(mode):
        path.unlink(missing_ok=True)


def _remove_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
            raise


def _remove_real_tree(path: Path) -> None:
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        remove_tree(path)
    elif mode is not None:
        path.unlink(missing_ok=True)


def _remove_staging(path: Path) -> None:
    if path.name.startswith(STAGING_PREFIX):
        _remove_real_tree(path)


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _lives(job: Path) -> bool:
    """Return whether the job's driver lives: it holds the lock to its end."""
    try:
        handle = os.open(job / "driver.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # the job is gone with its directory
    try:
        return not _lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
