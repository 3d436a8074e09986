"""The host's lease: which one cluster has the whole machine, whatever account or Airflow site it comes from.

A directory that every account can write to holds one record per account, as ``<uid>.json``; a record that another
account wrote does not count. The lock of the directory is held for every look and every change, so that of two that
want the host one gets it. A lease ends when its time is over, when its holder lets it go, or with this boot of the
host. It is never broken before: a holder that is slow, frozen or cut off still has the host.

Time is the host's own since boot, asleep or not: a wrong or corrected wall clock means nothing.
"""

from __future__ import annotations

import errno
import json
import math
import os
import pwd
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent import node
from airflow_provider.runtime.agent.host import locks
from airflow_provider.runtime.agent.host.problem import HostProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIRECTORY = Path("/var/tmp/managed-jobs-lease")  # noqa: S108 - shared on purpose; what others write is not trusted
"""Where the records are, unless all who use the host were told another place."""

_MODE = 0o1777
_LOCK_SECONDS = 20.0
_MAKER_SECONDS = 2.0
"""How long the directory's maker may take to open it for others."""
_RETRY_SECONDS = 0.01
_RECORD_BYTES = 4096
"""Every record has this size, so that on a full disk it can be written over."""
_SHOWN_CHARACTERS = 200


class Claim(NamedTuple):
    """Who wants the host: a cluster, its identity, words for people, and its directory."""

    cluster: str
    instance: str
    site: str
    root: str


class Held(NamedTuple):
    """Who has the host, under which account, and for how many seconds without another word."""

    claim: Claim
    account: str
    seconds_left: float


class _Record(NamedTuple):
    uid: int
    claim: Claim
    boot_id: str
    expires: float


class HostLease:
    """The lease of this machine, as this account sees it. All methods block for a moment.

    Args:
        directory: Where the records are.
        boot_id: Returns the identity of this boot.
        now: Returns the seconds since boot.

    Raises:
        HostProblem: (every method) the directory cannot be used, or somebody holds its lock for long.
        OSError: (every method) a record cannot be read or written.
    """

    def __init__(
        self,
        directory: Path = DIRECTORY,
        *,
        boot_id: Callable[[], str] = node.boot_id,
        now: Callable[[], float] = node.uptime,
    ) -> None:
        self.directory = directory
        self._boot_id = boot_id
        self._now = now
        self._uid = os.geteuid()

    def take(self, claim: Claim, seconds: float) -> Held | None:
        """Take the host for so many seconds, or keep it for so many from now on.

        Args:
            claim: Who wants it. The same cluster and instance may ask again and again.
            seconds: For how long, if nothing more is heard.

        Returns:
            None when it is the claim's; else who has it.
        """
        if not 0 < seconds < math.inf:
            raise ValueError(f"seconds is {seconds}: a positive number is needed")
        with self._locked(make=True) as handle:
            for record in self._valid(handle):
                if not self._is_of(record, claim.root, claim.instance):
                    return self._held(record)
            self._write(handle, _Record(self._uid, claim, self._boot_id(), self._now() + seconds))
        return None

    def read(self) -> Held | None:
        """Return who has the host, None when it is free."""
        try:
            with self._locked(make=False) as handle:
                records = self._valid(handle)
        except FileNotFoundError:
            return None
        return self._held(records[0]) if records else None

    def last(self) -> Claim | None:
        """Return for whom this account had the host last, whether that is over or not."""
        try:
            with self._locked(make=False) as handle:
                record = self._read(handle, self._uid)
        except FileNotFoundError:
            return None
        return None if record is None else record.claim

    def release(self, root: str, instance: str | None = None) -> bool:
        """Let the host go.

        Args:
            root: The directory of the cluster that had it.
            instance: Its identity; None: whichever it was. Only somebody who knows that nothing of the cluster is left
                may ask so.

        Returns:
            Whether the host was the cluster's: what another cluster has is left alone.
        """
        try:
            with self._locked(make=False) as handle:
                record = self._read(handle, self._uid)
                if record is None or not self._is_of(record, root, instance):
                    return False
                os.unlink(_name(self._uid), dir_fd=handle)
        except FileNotFoundError:
            return False
        return self._lasts(record)

    def _is_of(self, record: _Record, root: str, instance: str | None) -> bool:
        return (
            record.uid == self._uid
            and record.claim.root == root
            and (instance is None or record.claim.instance == instance)
        )

    def _lasts(self, record: _Record) -> bool:
        return record.boot_id == self._boot_id() and record.expires > self._now()

    def _held(self, record: _Record) -> Held:
        try:
            account = pwd.getpwuid(record.uid).pw_name
        except KeyError:
            account = f"uid {record.uid}"
        return Held(record.claim, account, record.expires - self._now())

    def _valid(self, handle: int) -> list[_Record]:
        names = sorted(name for name in os.listdir(handle) if name.endswith(".json"))
        uids = [int(stem) for name in names if (stem := name[: -len(".json")]).isdecimal() and stem.isascii()]
        records = [self._read(handle, uid) for uid in uids]
        return [record for record in records if record is not None and self._lasts(record)]

    def _read(self, handle: int, uid: int) -> _Record | None:
        """Return what an account wrote; None when it wrote nothing that makes sense."""
        try:
            file = os.open(
                _name(uid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle
            )
        except OSError:
            return None  # none there, a link, or closed to us: not written by us
        with open(file, "rb") as opened:
            if not _is_record(os.fstat(file), uid):
                return None
            text = opened.read(2 * _RECORD_BYTES)
        try:
            said = json.loads(text.decode("utf-8", "surrogateescape"))
            claim = Claim(*(_shown(said[field]) for field in Claim._fields))
            # Compared byte by byte, so exactly as it was written.
            claim = claim._replace(root=str(said["root"]), instance=str(said["instance"]))
            return _Record(uid, claim, str(said["boot_id"]), float(said["expires"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def _write(self, handle: int, record: _Record) -> None:
        said = {**record.claim._asdict(), "boot_id": record.boot_id, "expires": record.expires}
        said["site"], said["cluster"] = _shown(record.claim.site), _shown(record.claim.cluster)
        text = json.dumps(said, ensure_ascii=False)
        content = text.encode("utf-8", "surrogateescape").ljust(_RECORD_BYTES)
        if len(content) > _RECORD_BYTES:
            raise ValueError(f"the claim of cluster {record.claim.cluster} is too long for a record")
        try:
            self._replace(handle, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._write_over(handle, content):
                raise

    def _replace(self, handle: int, content: bytes) -> None:
        own, mine = f".{self._uid}.", _name(self._uid)
        for name in os.listdir(handle):
            if name.startswith(own):  # of one that was killed: this lock is held
                with suppress(OSError):
                    os.unlink(name, dir_fd=handle)
        part = f"{own}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(part, flags, 0o644, dir_fd=handle)
        try:
            with open(file, "wb", buffering=0) as opened:
                os.fchmod(file, 0o644)
                if opened.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))
            os.replace(part, mine, src_dir_fd=handle, dst_dir_fd=handle)
        except OSError as error:
            with suppress(OSError):
                os.unlink(part, dir_fd=handle)
            if error.errno in (errno.EPERM, errno.EACCES):
                raise HostProblem(
                    f"{self.directory / mine} is there and is not this account's",
                    "let its owner or the host's administrator remove it",
                ) from error
            raise

    def _write_over(self, handle: int, content: bytes) -> bool:
        """Write the record where the last one is, which needs no room; return whether that was possible."""
        try:
            file = os.open(_name(self._uid), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        except OSError:
            return False
        try:
            found = os.fstat(file)
            if not _is_record(found, self._uid) or found.st_size != len(content):
                return False
            return os.pwrite(file, content, 0) == len(content)
        finally:
            os.close(file)

    @contextmanager
    def _locked(self, *, make: bool) -> Iterator[int]:
        """Hold the directory's lock and give its descriptor.

        Raises:
            FileNotFoundError: there is no directory, and none is to be made.
        """
        while True:
            handle = self._open(make=make)
            try:
                locks.take(handle, what=str(self.directory), seconds=_LOCK_SECONDS)
                if not locks.same(handle, self.directory):
                    continue  # somebody removed it, and another one may be there by now
                yield handle
                return
            finally:
                os.close(handle)

    def _open(self, *, make: bool) -> int:
        deadline = time.monotonic() + _MAKER_SECONDS
        while True:
            try:
                handle = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                if not make:
                    raise
                self._make()
                continue
            except PermissionError:
                opens = False
            except OSError as error:
                raise HostProblem(
                    f"{self.directory} is no directory ({error.strerror})",
                    "let its owner or the host's administrator remove it",
                ) from error
            else:
                found = os.fstat(handle)
                opens = stat.S_IMODE(found.st_mode) & _MODE == _MODE
                if not opens and found.st_uid == self._uid:
                    os.fchmod(handle, _MODE)  # made with a umask that took something away
                    opens = True
                if opens:
                    return handle
                os.close(handle)
            if time.monotonic() > deadline:
                raise HostProblem(
                    f"{self.directory} is not open to all accounts of the host",
                    f"let its owner or the host's administrator run `chmod 1777 {self.directory}`",
                )
            time.sleep(_RETRY_SECONDS)  # its maker is about to open it

    def _make(self) -> None:
        try:
            self.directory.mkdir(mode=_MODE)
            self.directory.chmod(_MODE)  # whatever the umask took away
        except FileExistsError:
            pass  # another one was faster
        except OSError as error:
            raise HostProblem(
                f"{self.directory} cannot be made: {error.strerror}",
                f"let the host's administrator make {self.directory.parent} writable for all (mode 1777)",
            ) from error


def _name(uid: int) -> str:
    return f"{uid}.json"


def _is_record(found: os.stat_result, uid: int) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == uid and found.st_size <= _RECORD_BYTES


def _shown(words: object) -> str:
    """Return words of another account such that they can be shown: short, without control characters."""
    text = "".join(character if character.isprintable() else "?" for character in str(words))
    return text[:_SHOWN_CHARACTERS]
