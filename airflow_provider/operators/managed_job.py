"""A chain of tasks as a task group."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup
from airflow.sdk import chain as in_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.task import Chain

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]+")


def managed_job(
    source: str | os.PathLike[str] | None = None,
    *,
    tasks: Sequence[Mapping[str, object]] | None = None,
    name: str | None = None,
    envs: Mapping[str, str] | None = None,
    group_id: str | None = None,
    **operator_arguments: Any,
) -> TaskGroup:
    """Return a task group with one Airflow task for each task of a chain, run one after the other.

    Args:
        source: Path of the chain's YAML; a relative one is looked up beside the file that calls.
        tasks: Task definitions as mappings with the keys of a task YAML, instead of ``source``.
        name: Name of the chain when it is built from ``tasks``.
        envs: Environment variables for every task, replacing those of the definition. Jinja is rendered here.
        group_id: Id of the task group; by default the chain's name.
        operator_arguments: Given to each ``ManagedTaskOperator``: ``conn_id``, ``retries``, ``execution_timeout`` …

    Raises:
        TaskValidationError: the chain is not valid; lists every problem with its place and remedy.
    """
    from airflow_provider.operators.managed_task import ManagedTaskOperator
    from airflow_provider.runtime.task import ChainPlace

    # sys._getframe: the path of the DAG file that calls, without the cost of a whole stack trace.
    caller = Path(sys._getframe(1).f_code.co_filename).parent
    chain = _load(source, tasks, name, caller)
    with TaskGroup(group_id or _NOT_IN_IDS.sub("-", chain.name)) as group:
        names = tuple(task.name for task in chain.tasks)
        in_sequence(
            *(
                ManagedTaskOperator(
                    task_id=task.name,
                    definition=task,
                    envs=envs,
                    chain=ChainPlace(str(group.group_id), chain.name, names, index),
                    **operator_arguments,
                )
                for index, task in enumerate(chain.tasks)
            )
        )
    return group


def _load(
    source: str | os.PathLike[str] | None,
    tasks: Sequence[Mapping[str, object]] | None,
    name: str | None,
    caller: Path,
) -> Chain:
    from airflow_provider.runtime.task import chain_from_definitions, load_chain_file

    if (source is None) == (tasks is None):
        raise ValueError("managed_job() takes either the path of a chain YAML or tasks=[…]")
    if tasks is not None:
        return chain_from_definitions(tasks, name=name, base_dir=caller)
    if name is not None:
        raise ValueError("name= goes with tasks=; a chain YAML has its name in its header")
    return load_chain_file(caller / Path(os.fspath(source)).expanduser())  # type: ignore[arg-type]  # checked above
