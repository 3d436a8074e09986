"""What a job attempt is started with: the user's variables and ours."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.base import Demand, FileTree, GitSource, JobRequest, ManagedTask

if TYPE_CHECKING:
    from airflow_provider.runtime.state import TaskRecord
    from airflow_provider.runtime.task import Candidate


def submission_key(record: TaskRecord) -> str:
    """Return the idempotency key of the present attempt."""
    return f"{record.id}:{record.attempt}"


def job_request(record: TaskRecord, candidate: Candidate, secrets: dict[str, str]) -> JobRequest:
    """Return the present attempt of the task, ready to submit.

    Args:
        record: The managed task.
        candidate: The resources that were chosen.
        secrets: Values of the task's secrets by name.
    """
    order = record.order
    task = order.task
    task_ids = record.task_ids()
    gpus = str(_gpus_per_node(candidate))
    ours = {
        "SKYPILOT_TASK_ID": task_ids[order.chain.index],
        "SKYPILOT_TASK_IDS": "\n".join(task_ids),
        "SKYPILOT_MANAGED_JOB_ID": str(record.job_id),
        "SKYPILOT_JOB_RANK": "0",
        "SKYPILOT_USER": order.user,
        "SKYPILOT_CLUSTER_INFO": json.dumps(
            {
                "cluster_name": record.cluster_name,
                "cloud": (record.cluster or {}).get("infra"),
                "region": None,
                "zone": None,
            }
        ),
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": gpus,
        "TASK_ATTEMPT": str(record.attempt),
    }
    envs = {name: value for name, value in task.envs.items() if value is not None}
    return JobRequest(
        name=task.name,
        setup=task.setup or "",
        run=task.run or "",
        envs={**envs, **ours},
        # They are laid over the variables on the cluster, and ours come first there too.
        secrets={name: value for name, value in secrets.items() if name not in ours},
        files=tuple(FileTree(tree.digest, tree.kind, tree.destination) for tree in order.files),
        grace_seconds=order.grace_seconds,
        demand=Demand(
            cpus=None if candidate.cpus is None else candidate.cpus.amount,
            memory=0.0 if candidate.memory_gb is None else candidate.memory_gb.amount,
            accelerators=dict(candidate.accelerators),
        ),
        managed=ManagedTask(
            job_id=record.job_id,
            job_name=order.chain.name,
            task_id=order.chain.index,
            task_name=task.name,
            user=order.user,
            attempt=record.attempt,
            infra=str((record.cluster or {}).get("infra", "")),
            resources=_in_words(candidate),
        ),
        git=None if task.git is None else GitSource(task.git.url, task.git.ref or ""),
        node_ips=_node_ips(record),
    )


def _node_ips(record: TaskRecord) -> tuple[str, ...]:
    """Return how others reach the nodes, by rank; nothing where the infra does not say: a node alone needs no address."""
    address = (record.cluster or {}).get("address")
    found = address.get("node_ip") if isinstance(address, dict) else None
    return (found,) if isinstance(found, str) and found.strip() else ()


def _in_words(candidate: Candidate) -> str:
    """Return the resources of one node as SkyPilot writes them."""
    parts = [f"{name}:{count:g}" for name, count in candidate.accelerators.items()]
    if not parts and candidate.cpus is not None:
        parts = [f"CPU:{candidate.cpus.amount:g}"]
    return f"1x[{', '.join(parts)}]"


def _gpus_per_node(candidate: Candidate) -> int:
    gpus = (count for name, count in candidate.accelerators.items() if not name.lower().startswith("tpu"))
    return math.ceil(max(gpus, default=0))
