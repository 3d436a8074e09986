"""The state store: intents, claims, transitions and their history."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider.runtime.control import events
from airflow_provider.runtime.control.machine import State, Step, begin_afresh
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.infra.base import HANDLE_VERSION, ClusterHandle
from airflow_provider.runtime.state import (
    FileTreeRef,
    NoRecord,
    StateStore,
    StoreUnavailable,
    TaskKey,
    TaskRecord,
    engine,
    tables,
)
from airflow_provider.runtime.task.spec import Candidate, JobRecovery, Quantity
from tests.unit.state import other_processes
from tests.unit.state.orders import ENDED, KEY, order
from tests.unit.state.other_processes import Processes

HANDLE = ClusterHandle("local", "train-1", "one", {"directory": "/x"})
DIGEST = "ab" * 32
FILES = (FileTreeRef(DIGEST, 10, "directory", "~/sky_workdir"),)
STARTING = State(Status.STARTING)


def intend(
    store: StateStore,
    key: TaskKey = KEY,
    *,
    owner: str = "try-1",
    max_tries: int = 0,
    decide: Callable[[TaskRecord | None], State] = lambda found: State(),
    **values: Any,
) -> TaskRecord:
    return store.intend(key, owner=owner, max_tries=max_tries, order=order(**values), decide=decide)


def move(store: StateStore, record: TaskRecord, state: State, **values: Any) -> TaskRecord:
    given = {"event": "Event", "message": "", "cluster": record.cluster, **values}
    return store.transition(record, state=state, **given)


class TestIntents:
    def test_the_first_intent_makes_the_record(self, store: StateStore) -> None:
        record = intend(store, max_tries=2, run="python train.py", envs={"A": "é\n$x"})
        assert (record.key, record.owner, record.generation, record.max_tries) == (KEY, "try-1", 1, 2)
        assert record.state == State()
        assert record.order == order("python train.py", envs={"A": "é\n$x"})
        assert record.cluster is None
        assert store.get(record.id) == record

    def test_an_order_comes_back_whole(self, store: StateStore) -> None:
        values: dict[str, Any] = {
            "files": FILES,
            "deadline": 1234.5,
            "recovery": JobRecovery("NONE", 3, (1, 2)),
            "candidate": Candidate("local", Quantity(4, True), accelerators={"A100": 0.5}),
            "secrets": {"TOKEN": "variable:token"},
        }
        assert intend(store, **values).order == order(**values)

    def test_a_later_try_finds_the_record_and_takes_it_over(self, store: StateStore) -> None:
        first = move(store, intend(store), STARTING, cluster=HANDLE.to_json())
        found: list[TaskRecord | None] = []

        def decide(earlier: TaskRecord | None) -> State:
            found.append(earlier)
            return begin_afresh(STARTING)

        second = intend(store, owner="try-2", max_tries=5, decide=decide, run="false")
        assert found == [first]
        assert (second.id, second.owner, second.generation, second.max_tries) == (first.id, "try-2", 2, 5)
        assert second.order.task.run == "false"
        assert second.cluster == HANDLE.to_json(), "what runs is not forgotten"

    def test_a_cluster_keeps_its_name_when_the_task_is_renamed(self, store: StateStore) -> None:
        first = intend(store, name="train")
        renamed = intend(store, owner="try-2", name="train-better")
        assert renamed.cluster_name == first.cluster_name == f"train-{first.id}"

    def test_a_decision_that_fails_leaves_nothing(self, store: StateStore) -> None:
        with pytest.raises(ZeroDivisionError):
            intend(store, decide=lambda found: State(attempt=1 // 0))
        assert store.find(dag_id="dag", run_id="run") == []

    def test_stages_of_a_chain_share_a_managed_job(self, store: StateStore) -> None:
        stages = ("prepare", "train")
        jobs = {
            intend(store, TaskKey("dag", "run", name), name=name, stages=stages).job_id for name in stages
        }
        assert len(jobs) == 1

    def test_other_runs_chains_and_mapped_groups_have_jobs_of_their_own(self, store: StateStore) -> None:
        records = [
            intend(store, TaskKey("dag", "run", "a")),
            intend(store, TaskKey("dag", "run-2", "a")),
            intend(store, TaskKey("dag-2", "run", "a")),
            intend(store, TaskKey("dag", "run", "b"), chain_id="other"),
            intend(store, TaskKey("dag", "run", "a", 0)),
            intend(store, TaskKey("dag", "run", "a", 1)),
        ]
        assert len({record.job_id for record in records}) == len(records)


class TestClaims:
    def test_each_claim_is_the_next_generation(self, store: StateStore) -> None:
        record = intend(store)
        assert [store.claim(record.id, "try-1").generation for _ in range(3)] == [2, 3, 4]

    def test_another_try_cannot_claim(self, store: StateStore) -> None:
        record = intend(store)
        intend(store, owner="try-2")
        with pytest.raises(Superseded, match="belongs to try try-2, not to try-1"):
            store.claim(record.id, "try-1")

    def test_an_unknown_task_is_no_record(self, store: StateStore) -> None:
        with pytest.raises(NoRecord, match="no managed task 99"):
            store.claim(99, "try-1")
        with pytest.raises(NoRecord):
            store.get(99)

    def test_a_later_claim_fences_all_earlier_ones(self, store: StateStore) -> None:
        intended = intend(store)
        first = store.claim(intended.id, "try-1")
        second = store.claim(intended.id, "try-1")
        for stale in (intended, first):
            with pytest.raises(Superseded, match=r"controlled by try-1 \(generation 3\)"):
                move(store, stale, STARTING)
        assert store.get(intended.id).state == State()
        assert move(store, second, STARTING).state == STARTING
        assert [event.generation for event in store.events(intended.id)] == [1, 2, 3, 3]

    def test_threads_claiming_at_once_get_generations_of_their_own(self, store: StateStore) -> None:
        task = intend(store).id
        generations: list[int] = []
        barrier = threading.Barrier(6)

        def claim() -> None:
            barrier.wait()
            for _ in range(5):
                generations.append(store.claim(task, "try-1").generation)

        threads = [threading.Thread(target=claim) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(generations) == list(range(2, 32))


class TestTransitions:
    def test_a_transition_stores_state_cluster_and_event(self, store: StateStore) -> None:
        record = move(
            store, intend(store), STARTING, event="LaunchBegun", message="hello", cluster=HANDLE.to_json()
        )
        assert record == store.get(record.id)
        assert (record.state, record.cluster) == (STARTING, HANDLE.to_json())
        last = store.events(record.id)[-1]
        assert (last.event, last.status, last.message) == ("LaunchBegun", "STARTING", "hello")

    def test_a_terminal_status_is_final(self, store: StateStore) -> None:
        record = move(store, intend(store), ENDED)
        with pytest.raises(Superseded, match="is SUCCEEDED"):
            move(store, record, STARTING)
        assert store.get(record.id).state == ENDED

    def test_a_terminal_transition_may_be_repeated(self, store: StateStore) -> None:
        """The answer to the first call may have been lost with the connection."""
        record = intend(store)
        assert move(store, record, ENDED).state == ENDED
        assert move(store, record, ENDED).state == ENDED
        assert [event.event for event in store.events(record.id)] == ["Intended", "Event"]

    def test_a_new_try_may_leave_a_terminal_status(self, store: StateStore) -> None:
        move(store, intend(store), ENDED)
        again = intend(store, owner="try-2", decide=lambda found: begin_afresh(ENDED))
        assert again.state == State(attempt=2)

    @pytest.mark.parametrize("message", ["NUL \0 here", "lone \udcff surrogate", "x" * 100_000, "🦉"])
    def test_any_message_can_be_stored(self, store: StateStore, message: str) -> None:
        outcome = events.Outcome(Status.FAILED, message, last_lines=(message,))
        record = move(store, intend(store), replace(STARTING, outcome=outcome), message=message)
        assert store.get(record.id).state.outcome == outcome
        assert len(store.events(record.id)[-1].message) >= len(message) - 1

    def test_a_handle_of_a_later_version_is_kept_and_refused_by_who_reads_it(self, store: StateStore) -> None:
        newer = {**HANDLE.to_json(), "v": HANDLE_VERSION + 1, "colour": "blue"}
        record = move(store, intend(store), STARTING, cluster=newer)
        assert record.cluster == newer
        with pytest.raises(ValueError, match="upgrade it on this host"):
            ClusterHandle.from_json(record.cluster)


class TestReading:
    def test_find_returns_the_tasks_of_one_run_oldest_first(self, store: StateStore) -> None:
        for task in ("b", "a", "c"):
            intend(store, TaskKey("dag", "run", task))
        intend(store, TaskKey("dag", "other", "a"))
        assert [record.task_id for record in store.find(dag_id="dag", run_id="run")] == ["b", "a", "c"]
        assert store.find(dag_id="dag", run_id="none") == []

    def test_the_history_is_in_order(self, store: StateStore) -> None:
        record = store.claim(intend(store).id, "try-1")
        for number in range(5):
            record = move(store, record, STARTING, event=f"Event{number}")
        history = store.events(record.id)
        assert [event.event for event in history][2:] == [f"Event{number}" for number in range(5)]
        assert [event.at for event in history] == sorted(event.at for event in history)
        assert store.events(99) == []


class TestProcesses:
    def test_an_empty_database_may_be_met_by_all_at_once(self, url: str, processes: Processes) -> None:
        arguments = [(url, TaskKey("dag", "run", name), "try-1", name) for name in ("prepare", "train") * 2]
        results = processes.at_once(other_processes.intend, arguments)
        assert len({task for task, _, _ in results}) == 2
        assert len({job for _, job, _ in results}) == 1, "stages that are made at once share their job"
        assert sorted(generation for *_, generation in results) == [1, 1, 2, 2]

    def test_generations_are_unique_over_processes(self, url: str, processes: Processes) -> None:
        store = StateStore.connect(url)
        task = intend(store).id
        results = processes.at_once(other_processes.claim_many, [(url, task, "try-1", 20)] * 4)
        generations = sorted(number for numbers, _ in results for number in numbers)
        assert generations == list(range(2, 82))
        written = sum(count for _, count in results)
        history = [event for event in store.events(task) if event.event.startswith("by ")]
        assert len(history) == written
        assert all(event.event == f"by {event.generation}" for event in history)

    def test_an_archive_that_a_live_task_needs_is_never_removed(
        self, url: str, tmp_path: Path, processes: Processes
    ) -> None:
        blobs = tmp_path / "blobs"
        blobs.mkdir()
        arguments = [(url, blobs, worker, 12) for worker in range(4)]
        results = processes.at_once(other_processes.use_and_drop_files, arguments)
        assert [problem for problems in results for problem in problems] == []
        assert list(blobs.rglob("*.tar")) == []


class TestBlobs:
    def _collect(self, store: StateStore) -> list[str]:
        deleted: list[str] = []
        assert store.collect_blobs(deleted.append) == deleted
        return deleted

    def test_an_archive_goes_with_the_last_task_that_needs_it(self, store: StateStore) -> None:
        one = intend(store, TaskKey("dag", "run", "one"), files=FILES)
        two = intend(store, TaskKey("dag", "run", "two"), files=FILES * 2)
        assert self._collect(store) == []
        move(store, one, ENDED)
        assert self._collect(store) == []
        move(store, two, ENDED)
        assert self._collect(store) == [DIGEST]
        assert self._collect(store) == []

    def test_a_later_try_needs_its_own_archives_only(self, store: StateStore) -> None:
        intend(store, files=FILES)
        intend(store, owner="try-2", files=(replace(FILES[0], digest="cd" * 32),))
        assert self._collect(store) == [DIGEST]

    def test_a_try_that_finds_the_task_done_needs_none(self, store: StateStore) -> None:
        move(store, intend(store, files=FILES), ENDED)
        intend(store, owner="try-2", files=FILES, decide=lambda found: ENDED)
        assert self._collect(store) == [DIGEST]

    def test_an_archive_that_cannot_be_deleted_is_tried_again(self, store: StateStore) -> None:
        move(store, intend(store, files=FILES), ENDED)

        def refuse(digest: str) -> None:
            raise PermissionError(digest)

        with pytest.raises(PermissionError):
            store.collect_blobs(refuse)
        assert self._collect(store) == [DIGEST]

    def test_an_intent_during_the_removal_waits_and_finds_the_archive_gone(self, store: StateStore) -> None:
        move(store, intend(store, files=FILES), ENDED)
        removing, intended = threading.Event(), threading.Event()
        order_of_events: list[str] = []

        def delete(digest: str) -> None:
            removing.set()
            assert not intended.wait(0.2), "the intent waits for the removal"
            order_of_events.append("removed")

        def begin() -> None:
            removing.wait(10)
            intend(store, TaskKey("dag", "run", "two"), files=FILES)
            intended.set()
            order_of_events.append("intended")

        beginning = threading.Thread(target=begin)
        beginning.start()
        assert store.collect_blobs(delete) == [DIGEST]
        beginning.join()
        assert order_of_events == ["removed", "intended"]
        assert self._collect(store) == [], "now it is needed again"


class TestDatabases:
    def test_a_newer_schema_is_refused(self, url: str) -> None:
        connected = StateStore.connect(url)
        with connected._engine.begin() as connection:
            connection.execute(sa.insert(tables.schema).values(version=tables.SCHEMA_VERSION + 1))
        engine._engine.cache_clear()
        with pytest.raises(engine.NewerSchema, match="upgrade airflow-provider-managed-jobs on this host"):
            StateStore.connect(url)

    def test_one_process_has_one_engine_for_a_url(self, url: str) -> None:
        assert engine.engine_for(url) is engine.engine_for(url)

    def test_records_survive_a_new_connection(self, url: str) -> None:
        record = intend(StateStore.connect(url))
        engine._engine.cache_clear()
        assert StateStore.connect(url).get(record.id) == record

    def test_a_database_that_cannot_be_opened_is_unavailable(self, tmp_path: Path) -> None:
        (tmp_path / "store.db").mkdir()
        with pytest.raises(StoreUnavailable, match="unable to open"):
            StateStore.connect(f"sqlite:///{tmp_path}/store.db")

    def test_a_locked_database_is_unavailable_and_nothing_is_half_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "_BUSY_SECONDS", 0.05)
        store = StateStore.connect(f"sqlite:///{tmp_path}/store.db")
        record = intend(store)
        with sqlite3.connect(tmp_path / "store.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                move(store, record, STARTING)
            assert store.get(record.id) == record, "readers are not held up"
            other.execute("ROLLBACK")
        other.close()
        assert move(store, record, STARTING).state == STARTING

    def test_the_database_of_one_user_is_in_a_directory_of_their_own(self, tmp_path: Path) -> None:
        StateStore.connect(f"sqlite:///{tmp_path}/new/store.db")
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700

    def test_no_secret_value_has_a_column(self, store: StateStore) -> None:
        record = intend(store, secrets={"TOKEN": "variable:token"})
        with store._engine.connect() as connection:
            text = connection.scalar(sa.select(tables.tasks.c.task_order))
        assert json.loads(text or "")["task"]["secrets"] == {"TOKEN": "variable:token"}
        assert record.state.step is Step.PROVISION
