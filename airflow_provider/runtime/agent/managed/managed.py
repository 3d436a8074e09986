"""The managed tasks whose jobs this agent runs or ran, and those that were only registered with it.

The agent decides nothing about them: a controller does, and says with each submit which task the job is an attempt
of. What is kept here answers the questions of others: what is there, how does it stand, end it, show its log.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.background import Background
from airflow_provider.runtime.agent.guard import BadRequest
from airflow_provider.runtime.agent.jobs.job import Changed, Job, UnknownJob, WrongStatus
from airflow_provider.runtime.agent.managed.rows import (
    CANCELLED,
    DEFAULT_WORKSPACE,
    FIRST_REGISTERED_ID,
    NewTask,
    TaskRow,
    cancel_pending,
    insert_registered,
    live_cluster_jobs,
    read_ids,
    read_tasks,
)
from airflow_provider.runtime.agent.waiting import within

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from airflow_provider.runtime.agent.jobs.jobs import Jobs
    from airflow_provider.runtime.agent.jobs.table import JobTable
    from airflow_provider.runtime.wire import agent_pb2, jobs_pb2

MOST_AT_ONCE = 10_000
"""How many tasks may be registered with one call; one transaction, for which every other job waits."""


@dataclass(frozen=True)
class Choice:
    """Which jobs a cancel means; what is None is not asked for."""

    job_ids: frozenset[int] | None = None
    name: str | None = None
    pool: str | None = None
    user_hash: str | None = None

    def includes(self, task: TaskRow) -> bool:
        """Return whether the task's job is meant."""
        return (
            (self.job_ids is None or task.job_id in self.job_ids)
            and (self.name is None or task.job_name == self.name)
            and (self.pool is None or task.pool == self.pool)
            and (self.user_hash is None or task.user_hash == self.user_hash)
        )


@dataclass(frozen=True)
class Cancelled:
    """What a cancel does: ids of the jobs that it ends, and of those that it may not end.

    ``ambiguous`` are the jobs that have the name when only one may have it; then none is ended.
    """

    job_ids: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    ambiguous: tuple[int, ...] = ()
    cluster_jobs: tuple[int, ...] = ()


class ManagedJobs:
    """Managed jobs in the table of the agent's jobs. Belongs to the event loop that it is made on.

    Attributes:
        changed: Notified when a task got a job, or was cancelled without ever having one.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._loop = asyncio.get_running_loop()
        self._background = Background()
        self.changed = Changed()

    def accepted(self, table: JobTable, cluster_job_id: int, spec: agent_pb2.JobSpec) -> None:
        """Store which managed task a new job is an attempt of, if any. Blocking; in the table's thread.

        Raises:
            BadRequest: no such task can be: a number that is too low, or one of ours that we gave to nobody.
            WrongStatus: the task was registered here, and cancelled before its first attempt.
        """
        if spec.HasField("managed"):
            with _transaction(table.connection) as connection:
                _insert_attempt(connection, cluster_job_id, spec.managed)
            self._loop.call_soon_threadsafe(self.changed.notify)

    async def register(self, request: jobs_pb2.SetJobInfoWithoutJobIdRequest) -> list[int]:
        """Register ``num_jobs`` jobs with the same tasks, which wait for their first submit, and return their ids.

        None for ``num_jobs`` 0, as with SkyPilot's skylet. Flags of being primary are those of the tasks, in their
        order; a task without one has none.

        Raises:
            BadRequest: the lists do not fit together, metadata is no JSON object, or it is too much.
        """
        tasks = _new_tasks(request)
        if request.num_jobs < 0 or request.num_jobs * len(tasks) > MOST_AT_ONCE:
            raise BadRequest(
                f"num_jobs is {request.num_jobs}, of {len(tasks)} tasks each: from 0 on, and {MOST_AT_ONCE} tasks"
                " in one call at most"
            )
        details = {
            "entrypoint": request.entrypoint,
            "execution": request.execution,
            "pool_hash": request.pool_hash if request.HasField("pool_hash") else None,
            "batch": any(task.metadata.get("batch_coordinator") is True for task in tasks),
        }

        def insert(table: JobTable) -> list[int]:
            with _transaction(table.connection) as connection:
                return [
                    insert_registered(
                        connection,
                        name=request.name,
                        workspace=request.workspace or DEFAULT_WORKSPACE,
                        user_hash=request.user_hash if request.HasField("user_hash") else None,
                        pool=request.pool if request.HasField("pool") else None,
                        details=details,
                        resources=request.resources_str,
                        tasks=tasks,
                    )
                    for _ in range(request.num_jobs)
                ]

        return await self._jobs.read(insert)

    async def pending(self) -> int:
        """Return how many registered jobs have not ended."""
        tasks = await self.tasks()
        return len({task.job_id for task in tasks if task.live and task.job_id >= FIRST_REGISTERED_ID})

    async def tasks(self, job_id: int | None = None) -> list[TaskRow]:
        """Return every managed task, or those of one job, by job and index."""
        return await self._jobs.read(lambda table: read_tasks(table.connection, job_id))

    async def ids(self, name: str | None = None) -> list[int]:
        """Return the ids of the jobs of a name, or of all jobs, the newest first."""
        return await self._jobs.read(lambda table: read_ids(table.connection, name))

    async def cancel(
        self, choice: Choice, *, workspace: str, only_one: bool = False, limit: float | None = None
    ) -> Cancelled:
        """Begin to end the live jobs of a choice. What never started is CANCELLED at once, with all that follows it.

        Args:
            choice: Which jobs.
            workspace: Only jobs of this one; others are named in the answer.
            only_one: End none if several are meant.
            limit: Seconds after which what still runs is killed, 0: at once; None: each job has its own grace period.
                An agent that is started again meanwhile does not know of it.
        """
        # A caller that leaves in the middle leaves no half a cancel.
        return await self._background.unbroken(self._cancel(choice, workspace, only_one, limit))

    async def _cancel(self, choice: Choice, workspace: str, only_one: bool, limit: float | None) -> Cancelled:
        def begin(table: JobTable) -> Cancelled:
            with _transaction(table.connection) as connection:
                return _begin_cancel(connection, choice, workspace, only_one)

        cancelled = await self._jobs.read(begin)
        self.changed.notify()
        ending: list[Job] = []
        for job_id in cancelled.cluster_jobs:
            with suppress(UnknownJob):  # it was not accepted in the end
                job = await self._jobs.get(job_id)
                await self._jobs.cancel(job, limit)
                ending.append(job)
        if limit is not None:
            self._background.spawn(self._kill(ending, limit))
        return cancelled

    async def _kill(self, jobs: list[Job], seconds: float) -> None:
        """Kill what has not ended after so many seconds."""
        limit = time.monotonic() + seconds
        for job in jobs:
            with suppress(asyncio.TimeoutError):
                await within(limit - time.monotonic(), self._jobs.ended(job))
            if not job.row.terminal:
                await self._jobs.cancel(job, 0.0)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Store all of what is done in the context, or nothing."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def _insert_attempt(connection: sqlite3.Connection, cluster_job_id: int, task: agent_pb2.ManagedTask) -> None:
    if task.job_id < 1 or task.task_id < 0:
        raise BadRequest(
            f"job.managed has job_id {task.job_id} and task_id {task.task_id}: from 1 and from 0 on are needed"
        )
    details: dict[str, object] = {"metadata": dict(task.metadata), "user_name": task.user}
    name, infra, resources = task.task_name, task.infra, task.resources
    if task.job_id < FIRST_REGISTERED_ID:
        connection.execute(
            "INSERT INTO managed_jobs (job_id, name, workspace, user_hash, details) VALUES (?, ?, ?, ?, '{}')"
            " ON CONFLICT (job_id) DO UPDATE SET name = excluded.name, workspace = excluded.workspace,"
            " user_hash = excluded.user_hash",
            (task.job_id, task.job_name, task.workspace or DEFAULT_WORKSPACE, task.user or None),
        )
    else:
        registered = _registered(connection, task)
        known = json.loads(registered["details"])
        name = registered["name"]
        resources = resources or registered["resources"]
        details = {**known, **details, "metadata": {**known["metadata"], **task.metadata}}
    connection.execute(
        "INSERT INTO managed_tasks (job_id, task_id, name, attempt, cluster_job, infra, resources, details, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            task.job_id,
            task.task_id,
            name,
            task.attempt,
            cluster_job_id,
            infra,
            resources,
            json.dumps(details),
            time.time(),
        ),
    )


def _registered(connection: sqlite3.Connection, task: agent_pb2.ManagedTask) -> sqlite3.Row:
    """Return the row of a task that was registered here.

    Raises:
        BadRequest: there is none.
        WrongStatus: it was cancelled.
    """
    row: sqlite3.Row | None = connection.execute(
        "SELECT * FROM managed_tasks WHERE job_id = ? AND task_id = ? ORDER BY row_id LIMIT 1",
        (task.job_id, task.task_id),
    ).fetchone()
    if row is None:
        raise BadRequest(
            f"job.managed.job_id is {task.job_id}, with task_id {task.task_id}: numbers from {FIRST_REGISTERED_ID} on"
            " are given out here, to jobs that are registered before their tasks are submitted"
        )
    if row["status"] == CANCELLED:
        raise WrongStatus(f"task {task.task_id} of managed job {task.job_id} was cancelled")
    return row


def _begin_cancel(
    connection: sqlite3.Connection, choice: Choice, workspace: str, only_one: bool
) -> Cancelled:
    chosen = [task for task in read_tasks(connection) if choice.includes(task)]
    # A job that was asked for by its id is not said to have ended to somebody who has no business with it.
    elsewhere = {
        task.job_id
        for task in chosen
        if task.workspace != workspace and (task.live or choice.job_ids is not None)
    }
    here = sorted({task.job_id for task in chosen if task.live and task.workspace == workspace})
    if only_one and len(here) > 1:
        return Cancelled(ambiguous=tuple(here), elsewhere=tuple(sorted(elsewhere)))
    ending = set(here)
    cancel_pending(connection, [task for task in chosen if task.job_id in ending])
    return Cancelled(
        job_ids=tuple(here),
        elsewhere=tuple(sorted(elsewhere)),
        cluster_jobs=tuple(live_cluster_jobs(connection, ending)),
    )


def _new_tasks(request: jobs_pb2.SetJobInfoWithoutJobIdRequest) -> list[NewTask]:
    count = len(request.task_ids)
    if not count == len(request.task_names) == len(request.metadata_jsons):
        raise BadRequest(
            f"there are {count} task_ids, {len(request.task_names)} task_names and"
            f" {len(request.metadata_jsons)} metadata_jsons: one of each is needed for each task"
        )
    if not count:
        raise BadRequest("task_ids is empty: a job without a task would never end")
    if len(set(request.task_ids)) < count or min(request.task_ids) < 0:
        raise BadRequest(f"task_ids is {list(request.task_ids)}: different numbers from 0 on are needed")
    flags = list[bool | None](request.is_primary_in_job_groups)
    if len(flags) > count:
        raise BadRequest(f"there are {len(flags)} is_primary_in_job_groups for {count} tasks")
    flags += [None] * (count - len(flags))
    metadata = [_metadata(index, text) for index, text in enumerate(request.metadata_jsons)]
    return [
        NewTask(*task) for task in zip(request.task_ids, request.task_names, metadata, flags, strict=True)
    ]


def _metadata(index: int, text: str) -> dict[str, object]:
    try:
        metadata = json.loads(text)
        json.dumps(metadata, ensure_ascii=False).encode()  # halves of characters cannot be told to anybody
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"metadata_jsons[{index}] is no JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise BadRequest(f"metadata_jsons[{index}] is JSON of another kind: an object is needed")
    return metadata
