"""What this machine has, and whether a task fits on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.infra.base import Choice, NotFeasible

if TYPE_CHECKING:
    from airflow_provider.runtime.task import Candidate, TaskSpec

_GIB = 1 << 30


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
    for candidate in task.resources.candidates:
        reason = _misfit(candidate)
        if reason is None:
            return Choice(candidate, tuple(reasons))
        reasons.append(reason)
    raise NotFeasible("; ".join(reasons))


def _misfit(candidate: Candidate) -> str | None:
    """Return why the candidate does not fit, None when it does."""
    if candidate.infra not in (None, "local"):
        return f"infra {candidate.infra} is not supported yet (this version has: local)"
    cpus = len(os.sched_getaffinity(0))
    if candidate.cpus is not None and candidate.cpus.amount > cpus:
        return f"cpus: {candidate.cpus.amount:g} wanted, this machine has {cpus}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    if candidate.memory_gb is not None and candidate.memory_gb.amount > memory:
        return f"memory: {candidate.memory_gb.amount:g} GiB wanted, this machine has {memory:.1f} GiB"
    if candidate.accelerators:
        return _missing_accelerators(candidate.accelerators)
    return None


def _missing_accelerators(wanted: dict[str, float]) -> str | None:
    present = _gpu_models()
    for name, count in wanted.items():
        matching = [model for model in present if name.lower() in model.lower()]
        if len(matching) < count:
            found = ", ".join(present) or "no NVIDIA GPU"
            return f"accelerators: {name}:{count:g} wanted, this machine has {found}"
    return None


def _gpu_models() -> list[str]:
    """Return the model of each NVIDIA GPU, as the driver names it."""
    models = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in information.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                models.append(value.strip())
    return models
