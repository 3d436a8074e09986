"""Chains of tasks on clusters that may vanish, run from Apache Airflow.

Names are imported on first use: a DAG file pays for nothing that it does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.version import VERSION as __version__

if TYPE_CHECKING:
    from airflow_provider.hooks.cluster import ClusterHook
    from airflow_provider.operators.managed_job import managed_job
    from airflow_provider.operators.managed_task import ManagedTaskOperator

__all__ = ["ClusterHook", "ManagedTaskOperator", "__version__", "managed_job"]

_HOMES = {
    "ClusterHook": "airflow_provider.hooks.cluster",
    "ManagedTaskOperator": "airflow_provider.operators.managed_task",
    "managed_job": "airflow_provider.operators.managed_job",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
