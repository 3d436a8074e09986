"""Which connection a task's clusters come from."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.hooks.naming import connection_of
from airflow_provider.runtime.task import TaskSpec, task_from_definition


def task(**resources: Any) -> TaskSpec:
    return task_from_definition({"name": "t", "run": "hostname", "resources": resources})


@pytest.mark.parametrize(
    ("resources", "conn_id"),
    [
        ({}, "mine"),
        ({"infra": "local"}, "mine"),
        ({"infra": "ssh"}, "mine"),
        ({"infra": "ssh/*"}, "mine"),
        ({"infra": "ssh/gpus"}, "gpus"),
        ({"ordered": [{"infra": "ssh/gpus", "cpus": 8}, {"infra": "ssh/gpus", "cpus": 4}]}, "gpus"),
        ({"any_of": [{"infra": "ssh/gpus"}, {"infra": "local"}]}, "gpus"),
    ],
)
def test_a_pool_that_a_task_names_is_its_connection(resources: dict[str, Any], conn_id: str) -> None:
    assert connection_of(task(**resources), "mine") == conn_id


def test_a_task_cannot_use_two_pools() -> None:
    both = task(ordered=[{"infra": "ssh/gpus"}, {"infra": "ssh/cpus"}])
    with pytest.raises(
        ValueError, match="task t: its resources name the pools cpus, gpus; a task can use one"
    ):
        connection_of(both, "mine")
