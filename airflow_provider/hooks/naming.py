"""Which connection a task's clusters come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider.runtime.task import TaskSpec


def connection_of(task: TaskSpec, conn_id: str) -> str:
    """Return the id of the connection that clusters for ``task`` come from.

    Args:
        task: ``infra: ssh/<pool>`` in its resources names the connection.
        conn_id: The connection for a task that names none.

    Raises:
        ValueError: its candidates name several pools; no connection serves them all.
    """
    named = {_pool(candidate.infra) for candidate in task.resources.candidates} - {""}
    if len(named) > 1:
        raise ValueError(
            f"task {task.name}: its resources name the pools {', '.join(sorted(named))}; a task can use one pool"
        )
    return named.pop() if named else conn_id


def _pool(infra: str | None) -> str:
    """Return the pool that ``infra`` names, "" when it names none."""
    kind, _, place = (infra or "").partition("/")
    pool = place.partition("/")[0]
    return pool if kind == "ssh" and pool != "*" else ""
