"""What `execute` does before anything is deferred; the state store and the blobs are real."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider import ManagedTaskOperator, settings
from airflow_provider.operators import triggerer_health
from airflow_provider.operators.managed_task import ManagedTaskFailed
from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.control.taskstate import State, Step


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(triggerer_health, "why_no_triggerer", lambda: None)


def operator(**arguments: Any) -> ManagedTaskOperator:
    with DAG("d", schedule=None):
        return ManagedTaskOperator(task_id="work", **{"definition": {"run": "true"}, **arguments})


def context(try_id: str = "try-1", max_tries: int = 0) -> Any:
    now = datetime.now(timezone.utc)
    return {
        "ti": SimpleNamespace(
            id=try_id,
            dag_id="d",
            run_id="r",
            task_id="work",
            map_index=-1,
            max_tries=max_tries,
            start_date=now,
        )
    }


def test_it_writes_the_intent_sends_the_files_and_defers(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print('hi')\n")

    with pytest.raises(TaskDeferred) as deferred:
        operator(workdir=str(tmp_path / "code")).execute(context())

    (record,) = settings.state_store().find(dag_id="d", run_id="r")
    assert record.status.value == "PENDING"
    assert record.order.task.name == "work", "a task without a name has that of its Airflow task"
    assert settings.blob_store().digests() == {record.order.files[0].digest}
    assert deferred.value.trigger.serialize()[1] == {
        "task": record.id,
        "owner": "try-1",
        "resume": False,
        "v": 1,
    }
    assert deferred.value.timeout is None


def test_what_cannot_be_packed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code").mkdir()
    os.mkfifo(tmp_path / "code" / "pipe")

    with pytest.raises(TaskDeferred):
        operator(workdir=str(tmp_path / "code")).execute(context())

    assert "not packed for ~/sky_workdir (no files): pipe" in capsys.readouterr().out


@pytest.mark.parametrize("deferrable", [True, False])
def test_k35_a_sigterm_before_the_job_is_started_is_not_forgotten(deferrable: bool) -> None:
    work = operator(deferrable=deferrable)
    work.on_kill()

    with pytest.raises(ManagedTaskFailed, match="before its job was started"):
        work.execute(context())


def test_a_null_variable_that_nobody_gave_fails_the_task_without_retries() -> None:
    with pytest.raises(AirflowFailException, match="RUN_DIR"):
        operator(definition={"run": "true", "envs": {"RUN_DIR": None}}).execute(context())


def test_envs_that_are_no_mapping_once_rendered_are_refused() -> None:
    work = operator(envs="{{ params.envs }}")

    with pytest.raises(AirflowFailException, match="envs is str; it must be a mapping"):
        work.execute(context())


async def test_waiting_in_the_worker_is_refused_where_an_event_loop_runs() -> None:
    with pytest.raises(AirflowFailException, match="an event loop is running already"):
        operator(deferrable=False).execute(context())

    assert settings.state_store().find(dag_id="d", run_id="r") == []


@pytest.mark.parametrize("definition", [None, 5])
def test_a_definition_of_another_type_is_refused(definition: object) -> None:
    with pytest.raises(TypeError, match="it must be a mapping or the path of a YAML file"):
        operator(definition=definition)


def test_a_deferral_that_must_be_resumed_says_so(tmp_path: Path) -> None:
    from airflow.sdk import Asset

    with pytest.raises(TaskDeferred) as deferred:
        operator(outlets=[Asset("a")]).execute(context())

    assert deferred.value.trigger.serialize()[1]["resume"] is True


def test_a_task_that_names_two_pools_is_refused_before_anything_is_written() -> None:
    pools = {"run": "true", "resources": {"any_of": [{"infra": "ssh/a"}, {"infra": "ssh/b"}]}}

    with pytest.raises(AirflowFailException, match="name the pools a, b; a task can use one pool"):
        operator(definition=pools).execute(context())

    assert settings.state_store().find(dag_id="d", run_id="r") == []


@pytest.mark.parametrize(
    ("unreachable_since", "words"),
    [
        (None, "could not be removed; remove it by hand."),
        (1000.0, "could not be removed; its host does not answer, and its lease ends it there."),
    ],
)
def test_a_cluster_that_was_left_behind_is_told_of(unreachable_since: float | None, words: str) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        operator().execute(context())
    store = settings.state_store()
    record = store.get(deferred.value.trigger.managed_task)
    left = State(
        Status.FAILED,
        Step.DONE,
        outcome=Outcome(Status.FAILED, "exit code 3"),
        leaked=True,
        unreachable_since=unreachable_since,
    )
    store.transition(record, state=left, event="TearDownFailed", message="", cluster=None)

    event = {"v": 1, "task": record.id, "status": "FAILED", "reason": ""}
    with pytest.raises(ManagedTaskFailed, match=words):
        operator().execute_complete(context(), event)
