"""The agent's job table: SQLite, so that a restarted agent knows what the dead one promised."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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


@dataclass(frozen=True)
class JobRow:
    """One job as stored. Times in seconds since the epoch.

    ``marker`` is what the job's processes carry, ``status`` is a name of the wire's ``JobStatus``.
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

    @property
    def terminal(self) -> bool:
        """Whether the job has ended for good."""
        return self.status in TERMINAL


class JobTable:
    """Blocking access to the table; used from one worker thread only."""

    def __init__(self, path: Path) -> None:
        # The one worker thread of the agent uses the connection; the main thread opens and closes it.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute(_SCHEMA)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def all(self) -> list[JobRow]:
        """Return every job by id."""
        rows = self._connection.execute("SELECT * FROM jobs ORDER BY job_id").fetchall()
        return [JobRow(**{**dict(row), "exit_codes": json.loads(row["exit_codes"])}) for row in rows]

    def add(
        self, key: str, name: str, marker: str, owner_id: str, generation: int, grace_seconds: float
    ) -> JobRow:
        """Insert a job in status INIT and return it."""
        now = time.time()
        cursor = self._connection.execute(
            # A row of this key can only be what a failed submit could not remove.
            "INSERT OR REPLACE INTO jobs (key, name, marker, status, owner_id, generation, grace_seconds, submitted_at)"
            " VALUES (?, ?, ?, 'INIT', ?, ?, ?, ?)",
            (key, name, marker, owner_id, generation, grace_seconds, now),
        )
        if cursor.lastrowid is None:
            raise sqlite3.DatabaseError("the insert returned no id")
        return JobRow(
            cursor.lastrowid,
            key,
            name,
            marker,
            "INIT",
            owner_id,
            generation,
            0,
            grace_seconds,
            submitted_at=now,
        )

    def forget(self, job_id: int) -> None:
        """Remove a job that never was accepted."""
        self._connection.execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def move(self, after: JobRow) -> None:
        """Store a transition."""
        self._connection.execute(
            "UPDATE jobs SET status = ?, exit_codes = ?, reason = ?, output = ?, started_at = ?, ended_at = ?"
            " WHERE job_id = ?",
            (
                after.status,
                json.dumps(after.exit_codes),
                after.reason,
                after.output,
                after.started_at,
                after.ended_at,
                after.job_id,
            ),
        )

    def own(self, row: JobRow, owner_id: str, generation: int) -> JobRow:
        """Stamp a new owner on the job."""
        self._connection.execute(
            "UPDATE jobs SET owner_id = ?, generation = ? WHERE job_id = ? AND generation <= ?",
            (owner_id, generation, row.job_id, generation),
        )
        return replace(row, owner_id=owner_id, generation=generation)

    def acknowledge(self, job_id: int, offset: int) -> None:
        """Store how far the owner has read the log; it never goes back."""
        self._connection.execute(
            "UPDATE jobs SET acknowledged = ? WHERE job_id = ? AND acknowledged < ?", (offset, job_id, offset)
        )
