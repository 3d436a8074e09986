"""The agent's job table: SQLite, so that a restarted agent knows what the dead one promised."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

_LOCK_SECONDS = 5
"""How long to wait for somebody else's lock of the file: less than callers wait for an answer."""

ADDED = "added:"
"""Begins the keys of jobs that came through AddJob; no caller may use it."""

TERMINAL = frozenset({"FAILED_DRIVER", "SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED"})

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  job_id INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  marker TEXT NOT NULL,
  status TEXT NOT NULL,
  owner_id TEXT NOT NULL,
  generation INTEGER NOT NULL,
  acknowledged INTEGER NOT NULL DEFAULT 0,
  grace_seconds REAL NOT NULL,
  exit_codes TEXT NOT NULL DEFAULT '[]',
  reason TEXT NOT NULL DEFAULT '',
  output TEXT,
  submitted_at REAL NOT NULL,
  started_at REAL NOT NULL DEFAULT 0,
  ended_at REAL NOT NULL DEFAULT 0
)
"""

# Each step brings a table of the version before to its own; an agent that is upgraded adopts the jobs of the old one.
_STEPS: tuple[list[str], ...] = (
    [],
    [
        "ALTER TABLE jobs ADD COLUMN username TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE jobs ADD COLUMN run_timestamp TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE jobs ADD COLUMN resources TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE jobs ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE jobs ADD COLUMN demand TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE jobs ADD COLUMN logs TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE jobs ADD COLUMN boot_id TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX jobs_by_status ON jobs (status)",
        "CREATE TABLE managed_jobs (job_id INTEGER PRIMARY KEY, name TEXT NOT NULL,"
        " workspace TEXT NOT NULL, user_hash TEXT, pool TEXT, details TEXT NOT NULL)",
        "CREATE TABLE managed_tasks (row_id INTEGER PRIMARY KEY AUTOINCREMENT, job_id INTEGER NOT NULL,"
        " task_id INTEGER NOT NULL, name TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,"
        " cluster_job INTEGER UNIQUE, status TEXT NOT NULL DEFAULT '', infra TEXT NOT NULL DEFAULT '',"
        " resources TEXT NOT NULL DEFAULT '', details TEXT NOT NULL,"
        " created_at REAL NOT NULL, ended_at REAL NOT NULL DEFAULT 0)",
        "CREATE INDEX managed_tasks_by_job ON managed_tasks (job_id, task_id)",
    ],
)

_NFS = frozenset({"nfs", "nfs4", "lustre", "cifs", "smb2", "smb3", "fuseblk", "beegfs", "gpfs", "ceph"})


class DamagedTable(Exception):
    """The file is no sound database any more."""


@dataclass(frozen=True)
class NewJob:
    """What is known of a job when it is added. ``key`` is its idempotency key, ``owner_id`` may control it."""

    key: str
    name: str
    marker: str = ""
    owner_id: str = ""
    generation: int = 0
    grace_seconds: float = 5.0
    username: str = ""
    run_timestamp: str = ""
    resources: str = ""
    metadata: str = "{}"
    demand: str = "{}"


@dataclass(frozen=True)
class JobRow:
    """One job as stored. Times in seconds since the epoch.

    ``marker`` is what the job's processes carry, ``status`` is a name of the wire's ``JobStatus``, ``metadata`` and
    ``demand`` are JSON, ``logs`` is the directory of its log files below the agent's root (empty: the job's own), and
    ``boot_id`` names the boot in which its driver was started.
    """

    job_id: int
    key: str
    name: str
    marker: str
    status: str
    owner_id: str
    generation: int
    acknowledged: int
    grace_seconds: float
    exit_codes: list[int] = field(default_factory=list)
    reason: str = ""
    output: str | None = None
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    username: str = ""
    run_timestamp: str = ""
    resources: str = ""
    metadata: str = "{}"
    demand: str = "{}"
    logs: str = ""
    boot_id: str = ""

    @property
    def terminal(self) -> bool:
        """Whether the job has ended for good."""
        return self.status in TERMINAL

    @property
    def program(self) -> bool:
        """Whether the job came through AddJob: its program comes later, and it has no owner."""
        return self.key.startswith(ADDED)


_ALL = ", ".join(column.name for column in fields(JobRow))
_LIGHT = _ALL.replace(" output,", " NULL AS output,")


class JobTable:
    """Blocking access to the table; used from one worker thread only, which makes the agent its single writer.

    Raises:
        DamagedTable: the file is no sound database any more.
    """

    def __init__(self, path: Path) -> None:
        # The one worker thread of the agent uses the connection; the main thread opens and closes it.
        self._connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=_LOCK_SECONDS
        )
        self._connection.row_factory = sqlite3.Row
        try:
            found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise DamagedTable(found)
            # Write-ahead logging needs memory that all users of the file share: not to be had over a network.
            self._connection.execute(
                f"PRAGMA journal_mode={'TRUNCATE' if on_network(path.parent) else 'WAL'}"
            )
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._migrate()
        except (sqlite3.DatabaseError, DamagedTable) as error:
            self._connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise  # locked, or the disk is full: nothing is wrong with the file
            raise DamagedTable(
                f"the job table {path} is damaged ({error}); move it away, and the agent starts with an empty one"
            ) from error

    def _migrate(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > len(_STEPS):
            raise DamagedTable(f"it was written by a newer agent (version {version})")
        with self.connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(_SCHEMA)
            for step in _STEPS[version:]:
                for statement in step:
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {len(_STEPS)}")

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for other tables in the same file (used from the same thread)."""
        return self._connection

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def live(self) -> list[JobRow]:
        """Return every job that has not ended, by id."""
        return self._rows(f"status NOT IN ({_marks(TERMINAL)}) ORDER BY job_id", tuple(TERMINAL))

    def get(self, job_id: int) -> JobRow | None:
        """Return one job."""
        return _only(self._rows("job_id = ?", (job_id,)))

    def by_key(self, key: str) -> JobRow | None:
        """Return the job of an idempotency key."""
        return _only(self._rows("key = ?", (key,)))

    def latest(self) -> JobRow | None:
        """Return the newest job."""
        return _only(self._rows("1 ORDER BY job_id DESC LIMIT 1", ()))

    def added(self, name: str, username: str, run_timestamp: str) -> JobRow | None:
        """Return the job that was added with these words and never queued."""
        return _only(
            self._rows(
                "status = 'INIT' AND name = ? AND username = ? AND run_timestamp = ?"
                " ORDER BY job_id DESC LIMIT 1",
                (name, username, run_timestamp),
            )
        )

    def page(self, *, before: int | None, limit: int, all_jobs: bool, username: str | None) -> list[JobRow]:
        """Return up to ``limit`` jobs without their outputs, the newest first.

        Args:
            before: Only jobs with a lower id.
            limit: The most that are returned; negative: all.
            all_jobs: Also those that have ended, or are not queued yet.
            username: Only that user's.
        """
        conditions, values = ["1"], list[object]()
        if before is not None:
            conditions.append("job_id < ?")
            values.append(before)
        if not all_jobs:
            conditions.append(f"status NOT IN ({_marks(TERMINAL)}) AND status != 'INIT'")
            values += TERMINAL
        if username is not None:
            conditions.append("username = ?")
            values.append(username)
        return self._rows(
            f"{' AND '.join(conditions)} ORDER BY job_id DESC LIMIT ?", (*values, limit), _LIGHT
        )

    def many(self, job_ids: Sequence[int]) -> list[JobRow]:
        """Return the jobs of these ids, as far as there are any."""
        found: list[JobRow] = []
        for begin in range(0, len(job_ids), 500):
            some = tuple(job_ids[begin : begin + 500])
            found += self._rows(f"job_id IN ({_marks(some)})", some)
        return found

    def add(self, job: NewJob) -> JobRow:
        """Insert a job in status INIT and return it."""
        now = time.time()
        cursor = self._connection.execute(
            # A row of this key can only be what a failed submit could not remove.
            "INSERT OR REPLACE INTO jobs (key, name, marker, status, owner_id, generation, grace_seconds, submitted_at,"
            " username, run_timestamp, resources, metadata, demand)"
            " VALUES (?, ?, ?, 'INIT', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                job.key,
                job.name,
                job.marker,
                job.owner_id,
                job.generation,
                job.grace_seconds,
                now,
                job.username,
                job.run_timestamp,
                job.resources,
                job.metadata,
                job.demand,
            ),
        )
        row = self.get(cursor.lastrowid or 0)
        if row is None:
            raise sqlite3.DatabaseError("the insert returned no id")
        return row

    def forget(self, job_id: int) -> None:
        """Remove a job that never was accepted."""
        self._connection.execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def move(self, before: str, after: JobRow) -> bool:
        """Store a transition out of status ``before``; False when the stored status is another."""
        cursor = self._connection.execute(
            "UPDATE jobs SET status = ?, exit_codes = ?, reason = ?, output = ?, started_at = ?, ended_at = ?,"
            " logs = ?, boot_id = ? WHERE job_id = ? AND status = ?",
            (
                after.status,
                json.dumps(after.exit_codes),
                after.reason,
                after.output,
                after.started_at,
                after.ended_at,
                after.logs,
                after.boot_id,
                after.job_id,
                before,
            ),
        )
        return cursor.rowcount == 1

    def store(self, row: JobRow) -> None:
        """Store a row whatever the table says: what earlier attempts could not write."""
        self._connection.execute("UPDATE jobs SET status = '' WHERE job_id = ?", (row.job_id,))
        self.move("", row)

    def own(self, job_id: int, owner_id: str, generation: int) -> None:
        """Stamp a new owner on the job."""
        self._connection.execute(
            "UPDATE jobs SET owner_id = ?, generation = ? WHERE job_id = ? AND generation <= ?",
            (owner_id, generation, job_id, generation),
        )

    def acknowledge(self, job_id: int, offset: int) -> None:
        """Store how far the owner has read the log; it never goes back."""
        self._connection.execute(
            "UPDATE jobs SET acknowledged = ? WHERE job_id = ? AND acknowledged < ?", (offset, job_id, offset)
        )

    def _rows(self, where: str, values: Sequence[object], columns: str = _ALL) -> list[JobRow]:
        # The conditions are this module's own texts; what callers give travels as values.
        rows = self._connection.execute(f"SELECT {columns} FROM jobs WHERE {where}", values).fetchall()  # noqa: S608
        return [JobRow(**{**dict(row), "exit_codes": json.loads(row["exit_codes"])}) for row in rows]


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _only(rows: list[JobRow]) -> JobRow | None:
    return rows[0] if rows else None


def on_network(directory: Path) -> bool:
    """Return whether a directory lies on a file system of the network."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    path = str(directory.resolve())
    best, kind = "", ""
    for words in mounts:
        mount = words[4].replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, words[words.index("-") + 1]
    return kind in _NFS or kind.startswith("fuse.")
