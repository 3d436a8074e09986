"""Records and orders with as little in them as a test needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.machine import State, Step
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.state import FileTreeRef, TaskKey, TaskOrder, TaskRecord
from airflow_provider.runtime.task import ChainPlace
from airflow_provider.runtime.task.spec import Candidate, JobRecovery, Resources, TaskSpec

KEY = TaskKey("dag", "run", "train")
ENDED = State(Status.SUCCEEDED, Step.DONE, job_id=1, outcome=Outcome(Status.SUCCEEDED, "", (0,), '"fine"'))
_DEFAULT_RECOVERY = JobRecovery()
_ANY_NODE = Candidate()


def order(
    run: str = "true",
    *,
    name: str = "train",
    files: tuple[FileTreeRef, ...] = (),
    deadline: float | None = None,
    grace_seconds: float = 2.0,
    recovery: JobRecovery = _DEFAULT_RECOVERY,
    candidate: Candidate = _ANY_NODE,
    stages: tuple[str, ...] = ("train",),
    chain_id: str = "chain",
    **task: Any,
) -> TaskOrder:
    resources = Resources((candidate,), job_recovery=recovery)
    spec = TaskSpec(name=name, run=run, resources=resources, resolved=True, **task)
    place = ChainPlace(chain_id, "digits", stages, stages.index(name) if name in stages else 0)
    return TaskOrder(spec, files, place, "managed_cluster_default", "ada", deadline, grace_seconds)


def record(**values: Any) -> TaskRecord:
    plain = TaskRecord(
        id=5,
        job_id=3,
        job_created_at=1_700_000_000.25,
        key=KEY,
        cluster_name="train-5",
        owner="try-1",
        generation=1,
        max_tries=0,
        state=State(),
        order=order(),
        cluster=None,
        updated_at=0.0,
    )
    return replace(plain, **values)
