"""Where a task stands among the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChainPlace:
    """Where in its chain a task stands.

    Attributes:
        chain_id: tells chains of one DAG run apart.
        name: of the chain.
        task_names: of all its tasks, in order.
        index: of this task among them, from 0.
    """

    chain_id: str
    name: str
    task_names: tuple[str, ...]
    index: int
