"""Which managed tasks a question means, and in which order: pure functions over what the table has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.managed.rows import PENDING, Place, TaskRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    SortValue = tuple[str, float]

SORT_KEYS: dict[str, Callable[[TaskRow, float], SortValue]] = {
    "job_id": lambda task, now: ("", task.job_id),
    "id": lambda task, now: ("", task.job_id),
    "job_name": lambda task, now: (task.job_name, 0),
    "name": lambda task, now: (task.job_name, 0),
    "submitted_at": lambda task, now: ("", task.submitted_at),
    "status": lambda task, now: (task.status, 0),
    "job_duration": lambda task, now: ("", task.duration(now)),
    "duration": lambda task, now: ("", task.duration(now)),
    "recovery_count": lambda task, now: ("", task.attempt),
    "recoveries": lambda task, now: ("", task.attempt),
    "resources": lambda task, now: (task.resources, 0),
    "user_hash": lambda task, now: (task.user_hash or "", 0),
    "user": lambda task, now: (task.user_hash or "", 0),
    "cloud": lambda task, now: (task.place.cloud or "", 0),
    "infra": lambda task, now: (task.place.cloud or "", 0),
}
"""What a table may be sorted by: SkyPilot's names, from the task and the present time to a text, or a number of an empty one."""


@dataclass(frozen=True)
class Filters:
    """Which tasks are wanted; what is None is not asked for.

    Attributes:
        skip_finished: Only jobs with a task that has not ended, with all of their tasks.
        workspaces: Names of workspaces.
        job_ids: Ids of managed jobs.
        workspace: Part of the workspace's name; upper and lower case are the same here and below, as with SkyPilot.
        name: Part of the job's name.
        pool: Part of the pool's name.
        infra: The cloud, and how region and zone begin.
        users: User hashes; None among them: those of nobody.
        submitted_after: Seconds since the epoch, itself included.
        submitted_before: Seconds since the epoch, itself included.
    """

    skip_finished: bool = False
    workspaces: frozenset[str] | None = None
    job_ids: frozenset[int] | None = None
    workspace: str | None = None
    name: str | None = None
    pool: str | None = None
    infra: Place | None = None
    users: frozenset[str | None] | None = None
    submitted_after: float | None = None
    submitted_before: float | None = None

    def includes(self, task: TaskRow) -> bool:
        """Return whether a task is wanted, wherever it runs and whatever became of the rest of its job."""
        return (
            (self.workspaces is None or task.workspace in self.workspaces)
            and (self.job_ids is None or task.job_id in self.job_ids)
            and (self.users is None or task.user_hash in self.users)
            and (self.submitted_after is None or task.submitted_at >= self.submitted_after)
            and (self.submitted_before is None or task.submitted_at <= self.submitted_before)
            and (self.workspace is None or _holds(task.workspace, self.workspace))
            and (self.name is None or _holds(task.job_name, self.name))
            and (self.pool is None or (task.pool is not None and _holds(task.pool, self.pool)))
        )


class Order(NamedTuple):
    """How the jobs are sorted: by a key of ``SORT_KEYS`` (None: the newest first), and in which direction."""

    by: str | None = None
    ascending: bool = False


class Page(NamedTuple):
    """Which part of the jobs is wanted: pages of ``limit`` jobs, counted from 1."""

    number: int
    limit: int


@dataclass(frozen=True)
class Found:
    """What a question finds.

    Attributes:
        tasks: The tasks of the page, those of one job together and by index.
        total: Jobs that are wanted, on whichever page.
        total_no_filter: All jobs.
        status_counts: Tasks that are wanted by status, whichever statuses were asked for.
        infra_options: ``cloud/region`` of the tasks that are wanted, wherever they run.
        states: By job id: ``WAITING`` while none of its tasks was started, ``DONE`` when all have ended, else ``ALIVE``.
    """

    tasks: list[TaskRow]
    total: int
    total_no_filter: int
    status_counts: dict[str, int]
    infra_options: list[str]
    states: dict[int, str]


def find(
    tasks: Sequence[TaskRow],
    *,
    filters: Filters,
    statuses: frozenset[str] | None,
    order: Order,
    page: Page | None,
    now: float,
) -> Found:
    """Return what is wanted of all tasks.

    Args:
        tasks: All tasks, by job and index.
        filters: Which of them are wanted.
        statuses: Which statuses are wanted, None: all.
        order: How the jobs are sorted.
        page: Which of the jobs; None: all.
        now: Seconds since the epoch.
    """
    states = _states(tasks)
    wanted = [
        task
        for task in tasks
        if filters.includes(task) and not (filters.skip_finished and states[task.job_id] == "DONE")
    ]
    placed = [task for task in wanted if filters.infra is None or _lies_in(task.place, filters.infra)]
    jobs: dict[int, list[TaskRow]] = {}
    for task in placed:
        if statuses is None or task.status in statuses:
            jobs.setdefault(task.job_id, []).append(task)
    ordered = _ordered(jobs, order, now)
    if page is not None:
        begin = (page.number - 1) * page.limit
        ordered = ordered[begin : begin + page.limit]
    return Found(
        tasks=[task for job in ordered for task in job],
        total=len(jobs),
        total_no_filter=len(states),
        status_counts=dict(Counter(task.status for task in placed)),
        infra_options=sorted({_option(place) for place in {task.place for task in wanted} if place.cloud}),
        states=states,
    )


def _states(tasks: Iterable[TaskRow]) -> dict[int, str]:
    states: dict[int, str] = {}
    for task in tasks:
        state = "WAITING" if task.status == PENDING else "ALIVE" if task.live else "DONE"
        if states.setdefault(task.job_id, state) != state:
            states[task.job_id] = "ALIVE"
    return states


def _ordered(jobs: dict[int, list[TaskRow]], order: Order, now: float) -> list[list[TaskRow]]:
    """Return the jobs in order; a job counts with the largest value of its tasks, equal ones with the newest first."""
    newest_first = sorted(jobs.values(), key=lambda job: min(task.key for task in job), reverse=True)
    if order.by is None:
        return newest_first[::-1] if order.ascending else newest_first
    value_of = SORT_KEYS[order.by]

    def value(job: list[TaskRow]) -> SortValue:
        return max(value_of(task, now) for task in job)

    return sorted(newest_first, key=value, reverse=not order.ascending)


def _holds(text: str, part: str) -> bool:
    return part.casefold() in text.casefold()


def _lies_in(place: Place, wanted: Place) -> bool:
    """Return whether a place is one of those that are wanted: a cloud is named whole, its parts by how they begin."""
    return (
        (wanted.cloud is None or (place.cloud or "").lower() == wanted.cloud.lower())
        and (wanted.region is None or (place.region or "").lower().startswith(wanted.region.lower()))
        and (wanted.zone is None or (place.zone or "").lower().startswith(wanted.zone.lower()))
    )


def _option(place: Place) -> str:
    return f"{place.cloud}/{place.region}" if place.region else str(place.cloud)
