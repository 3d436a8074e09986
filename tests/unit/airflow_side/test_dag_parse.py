"""What a DAG file pays for the provider, and what its tasks look like (K70, K59)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_provider import ManagedTaskOperator, managed_job
from airflow_provider.runtime.task import TaskValidationError
from benchmarks.imports import HEAVY, cost


def test_k70_importing_the_operators_adds_no_heavy_module() -> None:
    _, modules = cost()

    assert [name for name in modules if name.partition(".")[0] in HEAVY] == []


def test_k70_a_cluster_by_name_at_the_top_of_a_dag_file_costs_no_heavy_module() -> None:
    program = """
import json, sys
from airflow.sdk import BaseHook
before = set(sys.modules)
from airflow_provider import ClusterHook
ClusterHook("nowhere").cluster("digits")
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    added = json.loads(done.stdout.splitlines()[-1])
    assert "airflow_provider.hooks.named_cluster" in added
    heavy = (
        *HEAVY,
        "asyncssh",
        "airflow_provider.runtime.state",
        "airflow_provider.runtime.control.controller",
    )
    assert [name for name in added if name.startswith(heavy)] == []


def test_k70_a_dag_with_many_tasks_needs_neither_connections_nor_grpc_nor_the_state_store() -> None:
    program = """
import json, sys
from airflow.sdk import DAG
from airflow_provider import managed_job
with DAG("many", schedule=None):
    for number in range(100):
        managed_job(tasks=[{"run": "a"}, {"run": "b"}, {"run": "c"}], name=f"chain-{number}", conn_id="nowhere")
print(json.dumps([name for name in ("grpc", "paramiko", "airflow_provider.runtime.state.store") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_chain_becomes_a_group_of_tasks_in_order(tmp_path: Path) -> None:
    source = tmp_path / "chain.yaml"
    source.write_text("name: my.chain\n---\nname: one\nrun: a\n---\nrun: b\n")

    with DAG("d", schedule=None) as dag:
        group = managed_job(source, envs={"X": "{{ ds }}"}, retries=2)

    assert group.group_id == "my-chain"
    assert dag.task_ids == ["my-chain.one", "my-chain.my.chain-1"]
    one = dag.get_task("my-chain.one")
    assert one.downstream_task_ids == {"my-chain.my.chain-1"}
    assert one.retries == 2
    assert isinstance(one, ManagedTaskOperator)
    assert one.envs == {"X": "{{ ds }}"}
    assert set(one.template_fields) == {"envs", "workdir"}, "Jinja never touches the definition"


def test_a_relative_path_is_looked_up_beside_the_dag_file(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text("name: beside\nrun: a\n")
    source = "from airflow_provider import managed_job\ngroup = managed_job('chain.yaml')\n"
    names: dict[str, object] = {}

    with DAG("d", schedule=None) as dag:
        exec(compile(source, str(tmp_path / "dag.py"), "exec"), names)  # noqa: S102 - as Airflow loads a DAG file

    assert dag.task_ids == ["beside.beside"]


def test_the_same_chain_twice_in_a_dag_needs_a_group_id_of_its_own(tmp_path: Path) -> None:
    source = tmp_path / "chain.yaml"
    source.write_text("name: twice\nrun: a\n")

    with DAG("d", schedule=None) as dag:
        managed_job(source)
        managed_job(source, group_id="again")

    assert dag.task_ids == ["twice.twice", "again.twice"]


@pytest.mark.parametrize("arguments", [{}, {"source": "x.yaml", "tasks": [{"run": "a"}]}])
def test_a_chain_comes_from_one_place(arguments: dict[str, object]) -> None:
    with (
        DAG("d", schedule=None),
        pytest.raises(ValueError, match="either the path of a chain YAML or tasks="),
    ):
        managed_job(**arguments)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with DAG("d", schedule=None), pytest.raises(TaskValidationError, match=r"absent\.yaml"):
        managed_job(tmp_path / "absent.yaml")


def test_a_bad_definition_is_an_error_of_the_dag_file_that_names_the_field() -> None:
    with DAG("d", schedule=None), pytest.raises(TaskValidationError, match="num_workers"):
        managed_job(tasks=[{"run": "a", "num_workers": 2}])


def test_an_operator_refuses_a_chain_file(tmp_path: Path) -> None:
    source = tmp_path / "chain.yaml"
    source.write_text("run: a\n---\nrun: b\n")

    with DAG("d", schedule=None), pytest.raises(ValueError, match="use managed_job"):
        ManagedTaskOperator(task_id="t", definition=source)


@pytest.mark.parametrize("seconds", [-1, 601, float("nan")])
def test_an_impossible_grace_period_is_refused(seconds: float) -> None:
    with DAG("d", schedule=None), pytest.raises(ValueError, match="grace_seconds"):
        ManagedTaskOperator(task_id="t", definition={"run": "a"}, grace_seconds=seconds)
