"""What a job of a named cluster is started with, and what comes of it."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_provider.runtime.client.base import Demand, FileTree, GitSource, JobRequest, JobStatus
from airflow_provider.runtime.task import TaskSpec, task_from_definition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.client.base import JobState
    from airflow_provider.runtime.infra.base import ClusterHandle
    from airflow_provider.runtime.state import FileTreeRef
    from airflow_provider.runtime.task import Candidate

LAST_LINES = 20


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        job_id: Its number on the cluster.
        status: One of the terminal ones.
        exit_codes: Of each node.
        reason: Why it did not succeed.
        output: The JSON that it wrote to the file named by ``TASK_OUTPUT_FILE``; None when it wrote none.
        last_lines: The last lines of its log.
    """

    job_id: int
    status: JobStatus
    exit_codes: tuple[int, ...] = ()
    reason: str = ""
    output: Any = None
    last_lines: tuple[str, ...] = field(default=(), repr=False)

    @property
    def succeeded(self) -> bool:
        """Whether all went well."""
        return self.status is JobStatus.SUCCEEDED


class JobFailed(AirflowException):
    """A job did not succeed; ``result`` says how it ended, and the text shows the last lines of its log."""

    def __init__(self, result: JobResult) -> None:
        self.result = result
        lines = [f"job {result.job_id} ended {result.status.value}: {result.reason or 'no reason is known'}"]
        if result.exit_codes:
            lines[0] += f" [exit codes: {', '.join(map(str, result.exit_codes))}]"
        lines += [f"  {line}" for line in result.last_lines]
        super().__init__("\n".join(lines))


def task_of(task: str | Mapping[str, object] | TaskSpec) -> TaskSpec:
    """Return the task that a caller means, resolved.

    Args:
        task: A shell command, a mapping with the keys of a task YAML, or a task.

    Raises:
        TaskValidationError: it is not a valid task; lists every problem with its place and remedy.
        TypeError: it is none of these.
    """
    if isinstance(task, TaskSpec):
        return task.resolve()
    if not isinstance(task, (str, Mapping)):
        raise TypeError(f"a task is a command, a mapping or a TaskSpec, and this is a {type(task).__name__}")
    definition = {"run": task} if isinstance(task, str) else dict(task)
    return task_from_definition({"name": "job", **definition}).resolve()


def result_of(state: JobState, last_lines: Sequence[str]) -> JobResult:
    """Return how a job ended."""
    output = None if state.output is None else json.loads(state.output)
    return JobResult(state.job_id, state.status, state.exit_codes, state.reason, output, tuple(last_lines))


def request_of(
    task: TaskSpec,
    candidate: Candidate,
    handle: ClusterHandle,
    *,
    name: str,
    secrets: Mapping[str, str],
    files: Sequence[FileTreeRef],
    grace_seconds: float,
) -> JobRequest:
    """Return the task, ready to submit to the cluster that people call ``name``."""
    gpus = str(_gpus(candidate))
    at = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime())
    ours = {
        "SKYPILOT_TASK_ID": f"sky-{at}_{name}_{uuid.uuid4().hex[:8]}",
        "SKYPILOT_CLUSTER_INFO": json.dumps(
            {"cluster_name": name, "cloud": handle.infra, "region": None, "zone": None}
        ),
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": gpus,
    }
    envs = {key: value for key, value in task.envs.items() if value is not None}
    address = handle.address.get("node_ip")
    return JobRequest(
        name=task.name,
        setup=task.setup or "",
        run=task.run or "",
        envs={**envs, **ours},
        secrets={key: value for key, value in secrets.items() if key not in ours},
        files=tuple(FileTree(tree.digest, tree.kind, tree.destination) for tree in files),
        grace_seconds=grace_seconds,
        demand=Demand(
            cpus=None if candidate.cpus is None else candidate.cpus.amount,
            memory=0.0 if candidate.memory_gb is None else candidate.memory_gb.amount,
            accelerators=dict(candidate.accelerators),
        ),
        git=None if task.git is None else GitSource(task.git.url, task.git.ref or ""),
        node_ips=(address,) if address else (),
    )


def _gpus(candidate: Candidate) -> int:
    counts = (count for model, count in candidate.accelerators.items() if not model.lower().startswith("tpu"))
    return math.ceil(max(counts, default=0))
