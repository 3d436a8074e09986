"""What this machine has, and whether a task fits on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.jobs.placement import Demand, Node, misfit
from airflow_provider.runtime.agent.node import detect
from airflow_provider.runtime.infra.base import Choice, NotFeasible

if TYPE_CHECKING:
    from airflow_provider.runtime.task import Candidate, TaskSpec


def choose_candidate(task: TaskSpec) -> Choice:
    """Return the first of the task's candidate resources that this machine has.

    Raises:
        NotFeasible: there is none; the text says why for each candidate.
    """
    if task.num_nodes > 1:
        raise NotFeasible(
            f"num_nodes: {task.num_nodes}: infra 'local' is one node (this machine). Set num_nodes to 1 or use an "
            "infra with several nodes"
        )
    for destination in task.file_mounts:
        if not destination.startswith("~/"):
            raise NotFeasible(
                f"file_mounts: {destination}: on infra 'local' files go below the task's own home directory only, so "
                f"that nothing of this machine is overwritten. Write ~{destination}"
            )
    reasons: list[str] = []
    machine = detect()
    for candidate in task.resources.candidates:
        reason = _misfit(candidate, machine)
        if reason is None:
            return Choice(candidate, tuple(reasons))
        reasons.append(reason)
    raise NotFeasible("; ".join(reasons))


def _misfit(candidate: Candidate, machine: Node) -> str | None:
    """Return why the candidate does not fit, None when it does."""
    if candidate.infra not in (None, "local"):
        return f"infra {candidate.infra} is not supported yet (this version has: local)"
    return misfit(
        machine,
        Demand(
            cpus=0.0 if candidate.cpus is None else candidate.cpus.amount,
            memory=0.0 if candidate.memory_gb is None else candidate.memory_gb.amount,
            accelerators=candidate.accelerators,
        ),
        where="this machine",
    )
