"""The table of the agent's jobs without an agent that runs them, and requests for tests of managed jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from airflow_provider.runtime.agent.jobs.job import UnknownJob
from airflow_provider.runtime.agent.jobs.table import JobTable, NewJob
from airflow_provider.runtime.wire import agent_pb2, jobs_pb2

Result = TypeVar("Result")

_keys = itertools.count()


class StoredJobs:
    """What managed jobs ask of the agent's jobs, answered from a table alone."""

    def __init__(self, path: Path) -> None:
        self.table = JobTable(path)

    async def read(self, look: Callable[[JobTable], Result]) -> Result:
        return look(self.table)

    async def get(self, job_id: int) -> None:
        raise UnknownJob(f"job {job_id} runs nowhere")

    def add(self, status: str = "INIT", **fields: object) -> int:
        row = self.table.add(NewJob(key=f"key {next(_keys)}", name="job", marker="m"))
        self.table.move("INIT", replace(row, status=status, **fields))  # type: ignore[arg-type]
        return row.job_id


def spec(job_id: int = 1, task_id: int = 0, **fields: object) -> agent_pb2.JobSpec:
    values: dict[str, object] = {"job_name": "chain", "task_name": f"task-{task_id}", "attempt": 1}
    task = agent_pb2.ManagedTask(job_id=job_id, task_id=task_id, **{**values, **fields})  # type: ignore[arg-type]
    return agent_pb2.JobSpec(name="job", managed=task)


def registration(
    tasks: int = 2, num_jobs: int = 1, **fields: object
) -> jobs_pb2.SetJobInfoWithoutJobIdRequest:
    values: dict[str, object] = {
        "name": "chain",
        "workspace": "default",
        "task_ids": list(range(tasks)),
        "task_names": [f"task-{index}" for index in range(tasks)],
        "metadata_jsons": ["{}"] * tasks,
        "num_jobs": num_jobs,
    }
    return jobs_pb2.SetJobInfoWithoutJobIdRequest(**{**values, **fields})  # type: ignore[arg-type]
