"""What the state store keeps, as values."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.task import ChainPlace, TaskSpec

if TYPE_CHECKING:
    from airflow_provider.runtime.control.machine import State
    from airflow_provider.runtime.control.status import Status


@dataclass(frozen=True)
class TaskKey:
    """The Airflow task that a managed task belongs to, over all its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


@dataclass(frozen=True)
class FileTreeRef:
    """An archive in the blob store and where it goes on the cluster. ``size`` in bytes."""

    digest: str
    size: int
    kind: str
    destination: str


@dataclass(frozen=True)
class TaskOrder:
    """What the user asked for, complete but for the values of secrets.

    Attributes:
        task: The task, resolved.
        files: What to unpack on the cluster.
        chain: Its place in the chain.
        conn_id: The Airflow connection that its clusters come from.
        user: Who the run belongs to.
        deadline: When the task must have ended, in seconds since the epoch; None: no limit.
        grace_seconds: Seconds between SIGTERM and SIGKILL on cancel.
    """

    task: TaskSpec
    files: tuple[FileTreeRef, ...]
    chain: ChainPlace
    conn_id: str
    user: str
    deadline: float | None
    grace_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return JSON scalars, lists and string-keyed dictionaries."""
        data = asdict(self)
        data["task"] = self.task.to_json()
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TaskOrder:
        """Build from what ``to_json`` returned."""
        chain = data["chain"]
        return cls(
            task=TaskSpec.from_json(data["task"]),
            files=tuple(FileTreeRef(**item) for item in data["files"]),
            chain=ChainPlace(chain["chain_id"], chain["name"], tuple(chain["task_names"]), chain["index"]),
            conn_id=data["conn_id"],
            user=data["user"],
            deadline=data["deadline"],
            grace_seconds=data["grace_seconds"],
        )


@dataclass(frozen=True)
class TaskRecord:
    """One managed task as stored.

    Attributes:
        id: Its number in the store.
        job_id: Number of the managed job (one chain in one DAG run) that it is a stage of.
        job_created_at: When the job was first seen, in seconds since the epoch.
        key: The Airflow task.
        cluster_name: Name of its cluster: the same for every attempt and try, so that one is taken over, never doubled.
        owner: Id of the Airflow task instance (one try) that may control it.
        generation: Fencing token; grows with each claim.
        max_tries: Airflow's own count at the time of the intent; clearing a task raises it, a retry does not.
        state: The machine's state.
        order: What the user asked for.
        cluster: Handle of the present cluster.
        updated_at: Time of the last change, in seconds since the epoch.
    """

    id: int
    job_id: int
    job_created_at: float
    key: TaskKey
    cluster_name: str
    owner: str
    generation: int
    max_tries: int
    state: State
    order: TaskOrder
    cluster: dict[str, Any] | None
    updated_at: float

    @property
    def task_id(self) -> str:
        """Id of the Airflow task."""
        return self.key.task_id

    @property
    def status(self) -> Status:
        """What the user sees."""
        return self.state.status

    @property
    def attempt(self) -> int:
        """Number of the present job attempt, from 1."""
        return self.state.attempt

    @property
    def recoveries(self) -> int:
        """Clusters lost and replaced in the present try."""
        return self.state.recoveries

    @property
    def output(self) -> str | None:
        """JSON text that the task left as its result."""
        return self.state.outcome.output if self.state.outcome else None

    def task_ids(self) -> list[str]:
        """Return ``SKYPILOT_TASK_ID`` of every stage of the chain, in order.

        Made of stored facts alone, so that they stay the same over recoveries, restarts and tries.
        """
        chain = self.order.chain
        at = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime(self.job_created_at))
        at += f"-{int(self.job_created_at % 1 * 1_000_000):06d}"
        several = len(chain.task_names) > 1
        return [
            f"sky-managed-{at}_{chain.name}{'_' + name if several else ''}_{self.job_id}-{index}"
            for index, name in enumerate(chain.task_names)
        ]


@dataclass(frozen=True)
class TaskEvent:
    """One line of a task's history. ``at`` in seconds since the epoch."""

    at: float
    generation: int
    event: str
    status: str
    message: str
