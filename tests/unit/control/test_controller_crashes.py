"""Controllers that die, are superseded, or lose the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.client.base import (
    LogBytes,
    NoSuchJob,
)
from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.state import StoreUnavailable
from airflow_provider.runtime.task.spec import JobRecovery
from tests.unit.control.bench import HELLO, Bench, Died, Store
from tests.unit.control.scripted import (
    BREAK,
    FAILED,
    RUNNING,
    Said,
)

pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.mark.parametrize("fault", ["away", "lost_answers"])
async def test_a_store_that_is_away_for_a_while_holds_the_task_up_and_no_more(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    store = bench.store = Store(bench.store)
    monkeypatch.setattr(
        "airflow_provider.runtime.control.ledger.wait_random_exponential",
        lambda **values: lambda state: 0,
    )
    setattr(store, fault, 25)
    record = await bench.run()
    assert record.status is Status.SUCCEEDED
    assert getattr(store, fault) == 0
    assert bench.sink.lines == ["hello"]


async def test_a_store_that_stays_away_is_told_to_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    bench.store = Store(bench.store)
    bench.store.away = 10_000
    monkeypatch.setattr("airflow_provider.runtime.control.ledger._PATIENCE_SECONDS", 0.01)
    with pytest.raises(StoreUnavailable):
        await bench.run()


async def test_archives_that_cannot_be_removed_do_not_change_the_result(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def fail(delete: object) -> None:
        raise PermissionError("the blob store is read-only")

    bench.store.collect_blobs = fail
    assert (await bench.run()).status is Status.SUCCEEDED


TWICE: list[list[Said]] = [
    [RUNNING, LogBytes(0, b"one\n"), BREAK],
    [LogBytes(4, b"two\n"), NoSuchJob("no job 1")],
    HELLO,
]
"""A run with a broken link, a lost cluster and a recovery."""


async def test_a_controller_that_dies_after_any_transition_is_replaced_by_one_that_finishes(
    tmp_path: Path,
) -> None:
    died = 0
    for k in range(1, 100):
        (tmp_path / str(k)).mkdir()
        bench = Bench(tmp_path / str(k), *TWICE)
        store = bench.store = Store(bench.store)
        store.die_after = k
        try:
            await bench.run()
        except Died:
            died += 1
            bench.client.scripts = bench.client.scripts or [HELLO]
            bench.record = bench.store.claim(bench.record.id, "try-1")
            await bench.run()
        else:
            break
        assert bench.record.status is Status.SUCCEEDED, k
        assert bench.infra.calls[-1] == "tear_down"
        assert bench.record.cluster is None
        keys = [key for key, *_ in bench.client.submitted]
        assert set(keys) == {f"{bench.record.id}:{attempt + 1}" for attempt in range(bench.record.attempt)}
        assert len(keys) <= len(set(keys)) + 1, "at most one is repeated, with its idempotency key"
    assert died > 12


async def test_a_controller_that_was_superseded_touches_nothing(tmp_path: Path) -> None:
    """Wherever it wakes up: it neither launches nor submits nor tears down any more."""
    bench = Bench(tmp_path)
    bench.store.claim(bench.record.id, "try-1")
    with pytest.raises(Superseded):
        await bench.run()
    assert bench.infra.calls == []


@pytest.mark.parametrize("at", ["provision", "tear_down"])
async def test_a_claim_is_checked_before_a_cluster_is_made_or_removed_by_name(
    tmp_path: Path, at: str
) -> None:
    bench = Bench(tmp_path)
    store = bench.store = Store(bench.store)
    controller = bench.controller()
    original = controller._perform

    async def perform() -> Any:
        if (
            controller.state.step.value.replace(" ", "_") == at
            and controller.state.status is not Status.PENDING
        ):
            store.claim(bench.record.id, "try-1")
        return await original()

    controller._perform = perform  # type: ignore[method-assign]
    with pytest.raises(Superseded):
        await controller.run()
    assert at not in bench.infra.calls
    assert bench.client.closed == len([call for call in bench.infra.calls if call == "connect"])


async def test_a_cluster_that_says_superseded_is_let_go(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, Superseded("generation 2 owns the job")])
    with pytest.raises(Superseded):
        await bench.run()
    assert "tear_down" not in bench.infra.calls
    assert bench.client.closed == 1
    assert bench.client.streams[0].closed


async def test_a_cluster_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    handle = {"v": 99, "infra": "scripted", "name": "x", "instance": "one", "address": {}}
    bench.record = bench.store.transition(
        bench.record, state=replace(State(), status=Status.STARTING), event="", message="", cluster=handle
    )
    with pytest.raises(ValueError, match="upgrade it on this host"):
        await bench.run()
    assert bench.infra.calls == []


async def test_restarts_stay_within_their_budget_over_crashes(tmp_path: Path) -> None:
    fail: list[Said] = [RUNNING, FAILED]
    bench = Bench(tmp_path, *([fail] * 9), recovery=JobRecovery(max_restarts_on_errors=2))
    store = bench.store = Store(bench.store)
    for crash in range(3, 40, 4):
        store.die_after = crash
        try:
            await bench.run()
            break
        except Died:
            bench.record = bench.store.claim(bench.record.id, "try-1")
    store.die_after = -1
    record = await bench.run()
    assert (record.status, record.state.restarts_on_errors, record.attempt) == (Status.FAILED, 2, 3)
