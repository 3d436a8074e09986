"""The trigger by itself: real store, real cluster, no triggerer around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider import settings
from airflow_provider.hooks.connection import local_settings
from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.infra.local import LocalInfra
from airflow_provider.runtime.state import StateStore, TaskKey, TaskOrder, TaskRecord
from airflow_provider.runtime.task import ChainPlace, task_from_definition
from airflow_provider.triggers import managed_task
from airflow_provider.triggers.managed_task import ManagedTaskTrigger


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(managed_task, "_SETTLE_SECONDS", 0.0)


@pytest.fixture
def store() -> StateStore:
    return settings.state_store()


@pytest.fixture(autouse=True)
async def _nothing_left() -> AsyncIterator[None]:
    yield
    assert LocalInfra(local_settings().root).clusters() == []


def intend(
    store: StateStore,
    run: str,
    owner: str = "try-1",
    conn_id: str = "managed_cluster_default",
    **definition: Any,
) -> TaskRecord:
    spec = task_from_definition({"name": "work", "run": run, **definition}).resolve()
    order = TaskOrder(spec, (), ChainPlace("c", "c", ("work",), 0), conn_id, "me", None, 1.0)
    return store.intend(
        TaskKey("d", "r", "work"),
        owner=owner,
        max_tries=0,
        order=order,
        decide=lambda found: found.state if found else State(),
    )


async def events(trigger: ManagedTaskTrigger) -> list[TriggerEvent]:
    return [event async for event in trigger.run()]


async def started(store: StateStore, record: TaskRecord) -> None:
    async def wait() -> None:
        while store.get(record.id).status.value != "RUNNING":  # noqa: ASYNC110 - a database tells nobody
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), 20)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def interrupted(store: StateStore, record: TaskRecord) -> ManagedTaskTrigger:
    """A trigger of the first try that was cancelled while its job ran, as before ``on_kill``."""
    trigger = ManagedTaskTrigger(task=record.id, owner="try-1")
    running = asyncio.create_task(events(trigger))
    await started(store, record)
    await cancelled(running)
    return trigger


async def test_it_ends_with_one_small_event(store: StateStore) -> None:
    record = intend(store, "echo '{\"a\": 1}' > $TASK_OUTPUT_FILE")

    (event,) = await events(ManagedTaskTrigger(task=record.id, owner="try-1", resume=False))

    # Without a task instance (`airflow dags test`) the operator must always be resumed.
    assert not isinstance(event, TaskSuccessEvent)
    assert event.payload == {"v": 1, "task": record.id, "status": "SUCCEEDED", "reason": ""}
    assert store.get(record.id).output == '{"a": 1}\n'


@pytest.mark.parametrize(
    ("conn_id", "reason"),
    [
        ("absent", "the Airflow connection 'absent', which clusters come from, does not exist; create it"),
        ("BAD_KEY", "connection BAD_KEY: key_file /absent/id does not exist on "),
        ("OTHER_INFRA", "connection OTHER_INFRA: infra is 'slurm'; this version has: local, ssh"),
    ],
)
async def test_k17_a_connection_that_is_of_no_use_to_the_triggerer_fails_the_task_with_the_reason(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, conn_id: str, reason: str
) -> None:
    extra = {"hosts": ["gpu1"], "user": "ada", "key_file": "/absent/id"}
    monkeypatch.setenv("AIRFLOW_CONN_BAD_KEY", json.dumps({"conn_type": "managed_cluster", "extra": extra}))
    other = {"conn_type": "managed_cluster", "extra": {"infra": "slurm"}}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER_INFRA", json.dumps(other))
    record = intend(store, "true", conn_id=conn_id)

    (event,) = await events(ManagedTaskTrigger(task=record.id, owner="try-1"))

    assert event.payload["status"] == "FAILED_CONTROLLER"
    assert reason in event.payload["reason"]
    assert (await asyncio.to_thread(store.get, record.id)).status.value == "PENDING", "a retry can begin"


async def test_the_pool_that_a_task_names_is_the_connection_of_its_clusters(store: StateStore) -> None:
    record = intend(store, "true", conn_id="unused", resources={"infra": "ssh/gpus"})

    (event,) = await events(ManagedTaskTrigger(task=record.id, owner="try-1"))

    assert "the Airflow connection 'gpus'" in event.payload["reason"]


async def test_a_kill_that_cannot_reach_the_cluster_says_who_ends_it(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = intend(store, "true", conn_id="absent")
    trigger = ManagedTaskTrigger(task=record.id, owner="try-1")
    said: list[str] = []

    async def warn(text: str) -> None:
        said.append(text)

    monkeypatch.setattr(ManagedTaskTrigger, "log", SimpleNamespace(awarning=warn))
    await trigger.on_kill()

    (line,) = said
    assert line.startswith("cannot clean up, the cluster's lease ends it: the Airflow connection 'absent'")


async def test_a_record_that_only_the_worker_can_see_fails_the_task_with_that_reason() -> None:
    (event,) = await events(ManagedTaskTrigger(task=77, owner="try-1"))

    assert event.payload["status"] == "FAILED_CONTROLLER"
    assert "does not have managed task 77, which the worker wrote" in event.payload["reason"]
    assert "[managed_jobs] database_url" in event.payload["reason"]


async def test_the_trigger_of_an_earlier_try_lets_go_and_stays_silent(store: StateStore) -> None:
    intend(store, "true", owner="try-1")
    record = intend(store, "true", owner="try-2")
    late = asyncio.create_task(events(ManagedTaskTrigger(task=record.id, owner="try-1")))

    await events(ManagedTaskTrigger(task=record.id, owner="try-2"))

    assert store.get(record.id).owner == "try-2"
    assert not late.done(), "a trigger that ends without an event fails the task of whoever runs it now"
    await cancelled(late)


async def test_a_second_trigger_of_the_same_try_makes_the_first_let_go(store: StateStore) -> None:
    record = intend(store, "sleep 1.5; echo once >> $HOME/../once; echo done")
    first = asyncio.create_task(events(ManagedTaskTrigger(task=record.id, owner="try-1")))
    await started(store, record)

    second = await events(ManagedTaskTrigger(task=record.id, owner="try-1"))

    assert [event.payload["status"] for event in second] == ["SUCCEEDED"]
    assert not first.done()
    await cancelled(first)
    assert store.get(record.id).attempt == 1


async def test_on_kill_ends_the_job_and_removes_the_cluster(store: StateStore) -> None:
    record = intend(store, "sleep 300")
    trigger = await interrupted(store, record)

    await trigger.on_kill()

    assert store.get(record.id).status.value == "CANCELLED"


async def test_on_kill_survives_being_cancelled_again_and_again(store: StateStore) -> None:
    record = intend(store, "trap '' TERM; while :; do sleep 0.1; done")
    trigger = await interrupted(store, record)

    killing = asyncio.create_task(trigger.on_kill())
    while not (await asyncio.wait({killing}, timeout=0.1))[0]:
        killing.cancel()

    assert store.get(record.id).status.value == "CANCELLED"


async def test_on_kill_does_nothing_while_airflow_says_that_the_task_is_deferred(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = intend(store, "sleep 300")
    trigger = await interrupted(store, record)
    state = "deferred"
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: {"r": {"work": state}})
    trigger._task_instance = SimpleNamespace(dag_id="d", task_id="work", run_id="r", map_index=-1)

    await trigger.on_kill()
    assert store.get(record.id).status.value == "RUNNING"

    state = "failed"
    await trigger.on_kill()
    assert store.get(record.id).status.value == "CANCELLED"


async def test_a_late_on_kill_of_an_earlier_try_leaves_the_new_one_alone(store: StateStore) -> None:
    record = intend(store, "sleep 300")
    old = await interrupted(store, record)
    intend(store, "sleep 300", owner="try-2")
    new = ManagedTaskTrigger(task=record.id, owner="try-2")

    await old.on_kill()
    assert store.get(record.id).status.value == "RUNNING"

    await new.on_kill()
    assert store.get(record.id).status.value == "CANCELLED", "also when it is killed before it could claim"
