"""Managed tasks as the agent stores them, beside the jobs that are their attempts. Blocking; in the table's thread."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.jobs.table import TERMINAL

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Mapping, Sequence

FIRST_REGISTERED_ID = 1_000_000_001
"""Controllers count their chains from 1 on; jobs that are registered here are counted from this number on, so that
neither ever gets an id of the other."""

DEFAULT_WORKSPACE = "default"
"""The workspace of a job that names none, as with SkyPilot."""

PENDING = "PENDING"
CANCELLED = "CANCELLED"
SUCCEEDED = "SUCCEEDED"

STATUS_OF_JOB: Mapping[str, str] = {
    "INIT": "STARTING",
    "PENDING": "STARTING",
    "SETTING_UP": "RUNNING",
    "RUNNING": "RUNNING",
    "CANCELLING": "CANCELLING",
    "SUCCEEDED": SUCCEEDED,
    "FAILED": "FAILED",
    "FAILED_DRIVER": "FAILED",
    "FAILED_SETUP": "FAILED_SETUP",
    "CANCELLED": CANCELLED,
}
"""What the status of a task's newest job means for the task."""

LIVE = frozenset({PENDING, "STARTING", "RUNNING", "RECOVERING", "CANCELLING"})
"""Statuses that are not final. RECOVERING is never seen here: an agent does not know what its controller is up to."""

_ATTEMPTS = """
WITH newest AS (
  SELECT MIN(t.row_id) AS key, MAX(t.row_id) AS row_id, MIN(t.created_at) AS submitted_at
  FROM managed_tasks t LEFT JOIN jobs c ON c.job_id = t.cluster_job
  -- A job that is gone was never accepted, and its attempt never made.
  WHERE (t.cluster_job IS NULL OR c.job_id IS NOT NULL) {condition}
  GROUP BY t.job_id, t.task_id
)
SELECT n.key, t.job_id, t.task_id, j.name, t.name, j.workspace, j.user_hash, j.pool, t.cluster_job, t.attempt,
  t.infra, t.resources, COALESCE(c.reason, ''), n.submitted_at, COALESCE(c.started_at, 0),
  COALESCE(c.ended_at, t.ended_at), j.details, t.details, c.status AS of_job, t.status AS own
FROM newest n
JOIN managed_tasks t ON t.row_id = n.row_id
JOIN managed_jobs j ON j.job_id = t.job_id
LEFT JOIN jobs c ON c.job_id = t.cluster_job
ORDER BY t.job_id, t.task_id
"""
_ALL_TASKS = _ATTEMPTS.format(condition="")
_TASKS_OF_JOB = _ATTEMPTS.format(condition="AND t.job_id = ?")


class Place(NamedTuple):
    """Where a task runs, as far as its controller said it."""

    cloud: str | None = None
    region: str | None = None
    zone: str | None = None


class TaskRow(NamedTuple):
    """One managed task as its newest attempt on this cluster stands. Times in seconds since the epoch, 0: not yet.

    ``key`` is the same for all attempts of a task and grows with the tasks that became known; ``cluster_job`` is None
    for a task that was registered and not submitted; ``status`` is a name of the wire's ``ManagedJobStatus`` without
    its prefix; the details are JSON.
    """

    key: int
    job_id: int
    task_id: int
    job_name: str
    task_name: str
    workspace: str
    user_hash: str | None
    pool: str | None
    cluster_job: int | None
    attempt: int
    infra: str
    resources: str
    reason: str
    submitted_at: float
    started_at: float
    ended_at: float
    job_details: str
    task_details: str
    status: str

    @property
    def live(self) -> bool:
        """Whether the task has not ended."""
        return self.status in LIVE

    @property
    def place(self) -> Place:
        """Where it runs; an infra that says nothing of the kind is all cloud."""
        return _place(self.infra)

    def duration(self, now: float) -> float:
        """Return for how many seconds its newest attempt has run, or ran."""
        return max(0.0, (self.ended_at or now) - self.started_at) if self.started_at else 0.0


class NewTask(NamedTuple):
    """A task that is registered without a job; ``primary``: whether its job group ends with it, None: nobody said."""

    task_id: int
    name: str
    metadata: dict[str, object]
    primary: bool | None


def parse_infra(text: str) -> Place:
    """Return the place that an infra names: ``cloud``, ``cloud/region`` or ``cloud/region/zone``, ``*`` for any.

    Of Kubernetes and SSH all that follows the cloud is the region, as with SkyPilot.

    Raises:
        ValueError: it names none.
    """
    parts = [part.strip() for part in text.strip().strip("/").split("/")]
    if not text.strip():
        return Place()
    cloud = {"k8s": "kubernetes"}.get(parts[0].lower(), parts[0].lower())
    if cloud in ("kubernetes", "ssh") and len(parts) > 2:
        parts = [cloud, "/".join(parts[1:])]
    if "" in parts or len(parts) > 3:
        raise ValueError(f"{text!r} is neither cloud, cloud/region nor cloud/region/zone")
    return Place(*(None if part == "*" else part for part in (cloud, *parts[1:])))


@lru_cache(maxsize=1024)
def _place(infra: str) -> Place:
    try:
        return parse_infra(infra)
    except ValueError:
        return Place(infra)


def read_tasks(connection: sqlite3.Connection, job_id: int | None = None) -> list[TaskRow]:
    """Return every managed task, or those of one job, by job and index."""
    query, values = (_ALL_TASKS, ()) if job_id is None else (_TASKS_OF_JOB, (job_id,))
    rows = connection.execute(query, values)
    return [
        TaskRow._make((*row[:-2], row["own"] if row["of_job"] is None else STATUS_OF_JOB[row["of_job"]]))
        for row in rows
    ]


def read_ids(connection: sqlite3.Connection, name: str | None) -> list[int]:
    """Return the ids of the jobs of a name, or of all jobs, the newest first."""
    rows = connection.execute(
        "SELECT j.job_id FROM managed_jobs j JOIN managed_tasks t ON t.job_id = j.job_id"
        " LEFT JOIN jobs c ON c.job_id = t.cluster_job"
        " WHERE (? IS NULL OR j.name = ?) AND (t.cluster_job IS NULL OR c.job_id IS NOT NULL)"
        " GROUP BY j.job_id ORDER BY MIN(t.row_id) DESC",
        (name, name),
    )
    return [row[0] for row in rows]


def live_cluster_jobs(connection: sqlite3.Connection, job_ids: Collection[int]) -> list[int]:
    """Return the cluster jobs of these managed jobs that have not ended, whichever attempt they are."""
    wanted = set(job_ids)
    rows = connection.execute(
        "SELECT t.job_id, t.cluster_job, c.status FROM managed_tasks t JOIN jobs c ON c.job_id = t.cluster_job"
        " ORDER BY t.cluster_job"
    )
    return [job for managed_job, job, status in rows if managed_job in wanted and status not in TERMINAL]


def cancel_pending(connection: sqlite3.Connection, tasks: Sequence[TaskRow]) -> None:
    """Cancel those of the tasks that were registered and never submitted, each with its end time."""
    now = time.time()
    connection.executemany(
        "UPDATE managed_tasks SET status = ?, ended_at = ? WHERE row_id = ? AND cluster_job IS NULL AND status = ?",
        [(CANCELLED, now, task.key, PENDING) for task in tasks if task.status == PENDING],
    )


def insert_registered(
    connection: sqlite3.Connection,
    *,
    name: str,
    workspace: str,
    user_hash: str | None,
    pool: str | None,
    details: Mapping[str, object],
    resources: str,
    tasks: Sequence[NewTask],
) -> int:
    """Insert one job with tasks that wait for their first submit, and return the id that it gets."""
    largest: int = connection.execute("SELECT COALESCE(MAX(job_id), 0) FROM managed_jobs").fetchone()[0]
    job_id = max(FIRST_REGISTERED_ID, largest + 1)
    connection.execute(
        "INSERT INTO managed_jobs (job_id, name, workspace, user_hash, pool, details) VALUES (?, ?, ?, ?, ?, ?)",
        (job_id, name, workspace, user_hash, pool, json.dumps(details)),
    )
    now = time.time()
    connection.executemany(
        "INSERT INTO managed_tasks (job_id, task_id, name, status, resources, details, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                job_id,
                task.task_id,
                task.name,
                PENDING,
                resources,
                json.dumps({"metadata": task.metadata, "primary": task.primary}),
                now,
            )
            for task in tasks
        ],
    )
    return job_id
