"""What the demo shows of each task of the chain, put together from the state store and from Airflow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from harness import TaskInstance

if TYPE_CHECKING:
    from airflow_provider.runtime.state import TaskRecord


@dataclass(frozen=True)
class Stage:
    """One task of the chain at a moment."""

    task_id: str
    status: str
    attempt: int
    recoveries: int
    elapsed: float | None
    """Seconds since Airflow started the task, or that it took; None before its start."""
    ended: bool
    """Whether Airflow's task has ended."""
    output: str | None
    """JSON text."""
    cluster: str | None

    @property
    def name(self) -> str:
        """The task's name within the chain."""
        return self.task_id.rpartition(".")[2]

    @property
    def active(self) -> bool:
        """Whether it has a log that may grow."""
        return self.status in ("STARTING", "RUNNING", "RECOVERING", "CANCELLING")


def stages_of(tasks: Iterable[TaskInstance], records: Iterable[TaskRecord]) -> list[Stage]:
    """Return the chain's stages in the order in which they run."""
    known = {record.task_id: record for record in records}
    stages = []
    for task in tasks:
        record = known.get(task.task_id)
        stages.append(
            Stage(
                task_id=task.task_id,
                # Before its own record exists, a task's state is what Airflow says.
                status=record.status.value if record else (task.state or "waiting").lower(),
                attempt=record.attempt if record else 0,
                recoveries=record.recoveries if record else 0,
                elapsed=_elapsed(task),
                ended=task.ended,
                output=record.output if record else None,
                cluster=record.cluster["name"] if record and record.cluster else None,
            )
        )
    order = {task_id: number for number, task_id in enumerate(known)}
    return sorted(stages, key=lambda stage: order.get(stage.task_id, len(order)))


def _elapsed(task: TaskInstance) -> float | None:
    if task.start is None:
        return None
    return ((task.end or datetime.now(timezone.utc)) - task.start).total_seconds()
