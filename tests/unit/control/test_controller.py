"""The controller against a cluster that fails by script: what it makes of each fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.client.base import (
    AgentFailed,
    Heartbeat,
    LinkLost,
    LogBytes,
    NoSuchJob,
    RequestRefused,
)
from airflow_provider.runtime.control import machine
from airflow_provider.runtime.control.controller import Controller, SecretMissing
from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.files.blobs import BlobStore
from airflow_provider.runtime.infra.base import Health, InfraError, NotFeasible
from airflow_provider.runtime.state import FileTreeRef, StateStore, StoreUnavailable, TaskRecord
from airflow_provider.runtime.task.spec import JobRecovery
from tests.unit.control.scripted import (
    BREAK,
    FAILED,
    RUNNING,
    SUCCEEDED,
    Lines,
    Said,
    ScriptedClient,
    ScriptedInfra,
    until,
)
from tests.unit.state.orders import KEY, order

HELLO: list[Said] = [RUNNING, LogBytes(0, b"hello\n"), SUCCEEDED]
CANCEL = Outcome(Status.CANCELLED, "a user cancelled")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_BACKOFF_LIMIT_SECONDS", 0.001)


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Bench:
    """One managed task, its store, and the scripted cluster."""

    def __init__(self, folder: Path, *streams: list[Said], **values: Any) -> None:
        self.store: Any = StateStore.connect(f"sqlite:///{folder}/store.db")
        self.blobs = BlobStore.local(folder / "blobs")
        self.client = ScriptedClient(*(streams or [HELLO]))
        self.infra = ScriptedInfra(self.client)
        self.sink = Lines()
        self.secrets: dict[str, str] | Exception = {}
        self.record: TaskRecord = self.store.intend(
            KEY, owner="try-1", max_tries=0, order=order(**values), decide=lambda found: State()
        )

    def controller(self, **values: Any) -> Controller:
        async def secrets(references: dict[str, str]) -> dict[str, str]:
            if isinstance(self.secrets, Exception):
                raise self.secrets
            return self.secrets

        given: dict[str, Any] = {"store": self.store, "infra": self.infra, "blobs": self.blobs, **values}
        return Controller(self.record, secrets=secrets, sink=self.sink, **given)

    async def run(self, **values: Any) -> TaskRecord:
        self.record = await asyncio.wait_for(self.controller(**values).run(), 20)
        return self.record

    def history(self) -> list[str]:
        return [event.event for event in self.store.events(self.record.id)]


async def test_a_task_is_launched_followed_and_cleaned_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    record = await bench.run()
    assert record.status is Status.SUCCEEDED
    assert bench.sink.lines == ["hello"]
    assert bench.infra.calls == ["provision", "connect", "tear_down"]
    assert record.cluster is None
    assert bench.client.closed == 1
    assert bench.history() == [
        "Intended",
        "LaunchBegun",
        "ClusterUp",
        "Provisioned",
        "Submitted",
        "JobStarted",
        "JobEnded",
        "ClusterDown",
        "TornDown",
    ]
    assert bench.sink.said == [
        f"cluster train-{record.id} is up (scripted)",
        f"── digits: train (1 of 1), attempt 1, cluster train-{record.id} ──",
    ]


async def test_a_finished_task_is_left_as_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.run()
    calls = list(bench.infra.calls)
    assert (await bench.run()).status is Status.SUCCEEDED
    assert bench.infra.calls == calls


async def test_a_failure_is_told_with_its_last_lines(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, LogBytes(0, b"one\ntwo"), FAILED])
    record = await bench.run()
    assert record.state.outcome == Outcome(Status.FAILED, "exit code 3", (3,), None, ("one", "two"))


async def test_a_job_that_fails_with_its_node_counts_as_lost(tmp_path: Path) -> None:
    """A node on its way down ends the jobs on it first; that is no failure of the user's code."""
    bench = Bench(tmp_path, [RUNNING, FAILED], HELLO)
    bench.infra.health = [Health.GONE, Health.ALIVE]
    record = await bench.run()
    assert (record.status, record.recoveries, record.attempt) == (Status.SUCCEEDED, 1, 2)


async def test_a_job_that_fails_as_contact_is_lost_is_looked_at_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, FAILED], [FAILED])
    bench.infra.health = [Health.UNREACHABLE, Health.UNREACHABLE, Health.ALIVE]
    record = await bench.run()
    assert (record.status, record.recoveries, record.attempt) == (Status.FAILED, 0, 1)
    assert record.state.outcome is not None
    assert record.state.outcome.exit_codes == (3,)


async def test_broken_streams_go_on_where_they_were(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        [RUNNING, LogBytes(0, b"one\nt"), BREAK],
        [Heartbeat(), BREAK],
        [LogBytes(5, b"wo\n"), BREAK],
        [SUCCEEDED],
    )
    record = await bench.run()
    assert record.status is Status.SUCCEEDED
    assert bench.sink.lines == ["one", "two"]
    assert bench.client.offsets == [None, 5, 5, 8]
    assert bench.history().count("Heard") == 2
    assert record.state.link_failures == 1


async def test_an_agent_that_fails_on_its_side_is_asked_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, AgentFailed("INTERNAL database is locked")], HELLO)
    bench.client.errors = {"submit": [AgentFailed("disk full"), LinkLost("reset")]}
    record = await bench.run()
    assert (record.status, record.attempt) == (Status.SUCCEEDED, 1)


async def test_an_agent_that_is_down_is_restarted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, BREAK], HELLO)
    bench.infra.health = [Health.AGENT_DOWN, Health.ALIVE]
    record = await bench.run()
    assert (record.status, record.attempt) == (Status.SUCCEEDED, 1)
    assert "restart_agent" in bench.infra.calls


@pytest.mark.parametrize("evidence", ["gone", "no such job", "another cluster"])
async def test_a_lost_cluster_is_replaced(tmp_path: Path, evidence: str) -> None:
    error = NoSuchJob("no job 1") if evidence == "no such job" else BREAK
    bench = Bench(tmp_path, [RUNNING, LogBytes(0, b"first\n"), error], HELLO)
    if evidence != "no such job":
        bench.infra.health = [Health.GONE, Health.ALIVE]
    record = await bench.run()
    assert (record.status, record.recoveries) == (Status.SUCCEEDED, 1)
    assert [key for key, *_ in bench.client.submitted] == [f"{record.id}:1", f"{record.id}:2"]
    assert bench.client.offsets == [None, None], "the new job's log is read from its own begin"
    assert bench.sink.lines == ["first", "hello"]


async def test_another_cluster_under_the_same_name_is_not_talked_to(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.client.instance = "two"
    bench.infra.health = [Health.GONE]
    controller = bench.controller()
    running = asyncio.create_task(controller.run())
    await until(lambda: controller.state.recoveries == 2)
    controller.stop(CANCEL)
    assert (await running).status is Status.CANCELLED
    assert bench.client.submitted == []


@pytest.mark.parametrize("error", [InfraError("quota"), LinkLost("ssh: refused"), AgentFailed("no")])
async def test_whatever_fails_while_launching_is_a_failed_launch(tmp_path: Path, error: Exception) -> None:
    bench = Bench(tmp_path)
    bench.infra.errors["provision"] = [error]
    record = await bench.run()
    assert record.status is Status.SUCCEEDED
    assert bench.infra.calls[:3] == ["provision", "tear_down", "provision"]


async def test_a_task_that_fits_nowhere_is_not_launched(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.infra.errors["choose"] = [NotFeasible("cpus: 64 wanted")]
    assert (await bench.run()).status is Status.FAILED_PRECHECKS


@pytest.mark.parametrize("error", [InfraError("busy"), LinkLost("ssh: reset"), OSError("disk")])
async def test_whatever_fails_while_tearing_down_is_tried_again(tmp_path: Path, error: Exception) -> None:
    bench = Bench(tmp_path)
    bench.infra.errors["tear_down"] = [error]
    record = await bench.run()
    assert (record.status, record.state.leaked) == (Status.SUCCEEDED, False)
    assert bench.infra.calls.count("tear_down") == 2


@pytest.mark.parametrize("error", [InfraError("api down"), LinkLost("ssh: reset"), TypeError("bug")])
async def test_a_probe_that_fails_tells_nothing_against_the_cluster(tmp_path: Path, error: Exception) -> None:
    bench = Bench(tmp_path, [RUNNING, BREAK], HELLO)
    bench.infra.health = [error, Health.ALIVE]
    record = await bench.run()
    assert (record.status, record.attempt) == (Status.SUCCEEDED, 1)


@pytest.mark.parametrize("error", [InfraError("no python3"), LinkLost("ssh: reset")])
async def test_an_agent_that_does_not_restart_at_first_is_tried_again(
    tmp_path: Path, error: Exception
) -> None:
    bench = Bench(tmp_path, [RUNNING, BREAK], HELLO)
    bench.infra.health = [Health.AGENT_DOWN, Health.AGENT_DOWN, Health.ALIVE]
    bench.infra.errors["restart_agent"] = [error]
    record = await bench.run()
    assert (record.status, record.attempt) == (Status.SUCCEEDED, 1)
    assert bench.infra.calls.count("restart_agent") == 2


async def test_a_cluster_out_of_reach_for_too_long_is_given_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, BREAK], HELLO)
    bench.infra.health = [Health.UNREACHABLE] * 3 + [Health.ALIVE]
    record = await bench.run(unreachable_timeout=0.0)
    assert (record.status, record.recoveries) == (Status.SUCCEEDED, 1)


@pytest.mark.parametrize(
    "error", [RequestRefused("name is empty"), SecretMissing("variable token does not exist")]
)
async def test_a_job_that_can_never_run_fails_at_once(tmp_path: Path, error: Exception) -> None:
    bench = Bench(tmp_path)
    if isinstance(error, SecretMissing):
        bench.secrets = error
    else:
        bench.client.errors["submit"] = [error]
    record = await bench.run()
    assert record.status is Status.FAILED_PRECHECKS
    assert record.state.outcome is not None
    assert record.state.outcome.reason == str(error)


async def test_an_archive_that_is_missing_fails_the_task_with_the_remedy(tmp_path: Path) -> None:
    tree = FileTreeRef("ab" * 32, 1, "directory", "~/sky_workdir")
    bench = Bench(tmp_path, files=(tree,))

    async def send_files(digest: str, size: int, read: Callable[[], Any], progress: Any = None) -> None:
        read()

    bench.client.send_files = send_files  # type: ignore[method-assign]
    record = await bench.run()
    assert record.status is Status.FAILED_PRECHECKS
    assert record.state.outcome is not None
    assert "workers and triggerers must share the blob store" in record.state.outcome.reason


async def test_a_bug_is_survived_a_few_times_and_then_ends_the_task(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.client.errors["submit"] = [TypeError("bug")] * (machine.MAX_CONTROLLER_ERRORS + 1)
    record = await bench.run()
    assert record.status is Status.FAILED_CONTROLLER
    assert bench.infra.calls[-1] == "tear_down"
    assert bench.client.closed == machine.MAX_CONTROLLER_ERRORS + 1, "no connection is left"


async def test_a_sink_that_fails_now_and_then_loses_no_line(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, LogBytes(0, b"one\n")], [LogBytes(4, b"two\n"), SUCCEEDED])
    bench.sink.errors = [OSError("disk full")]
    assert (await bench.run()).status is Status.SUCCEEDED
    assert bench.sink.lines == ["one", "two"]


async def test_a_log_that_takes_no_messages_does_not_end_the_task(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def say(message: str) -> None:
        raise OSError("disk full")

    bench.sink.say = say  # type: ignore[method-assign]
    assert (await bench.run()).status is Status.SUCCEEDED


class Store:
    """A store that is away, or whose caller dies, at chosen calls."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.away = 0
        self.lost_answers = 0
        self.transitions = 0
        self.die_after = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, task: int) -> TaskRecord:
        self._maybe_away()
        return self._store.get(task)

    def transition(self, record: TaskRecord, **values: Any) -> TaskRecord:
        self._maybe_away()
        after = self._store.transition(record, **values)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnavailable("the connection broke before the answer came")
        self.transitions += 1
        if self.transitions == self.die_after:
            raise Died
        return after

    def _maybe_away(self) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("connection refused")


class Died(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("fault", ["away", "lost_answers"])
async def test_a_store_that_is_away_for_a_while_holds_the_task_up_and_no_more(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    store = bench.store = Store(bench.store)
    monkeypatch.setattr(
        "airflow_provider.runtime.control.controller.wait_exponential_jitter",
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
    monkeypatch.setattr("airflow_provider.runtime.control.controller._STORE_PATIENCE_SECONDS", 0.01)
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


@pytest.mark.parametrize("held", ["provision", "connect", "probe", "restart_agent", "tear_down"])
async def test_a_stop_interrupts_whatever_is_under_way(tmp_path: Path, held: str) -> None:
    bench = Bench(tmp_path, [RUNNING, BREAK], HELLO)
    bench.infra.health = [Health.GONE if held == "tear_down" else Health.AGENT_DOWN]
    bench.infra.hold[held] = asyncio.Event()
    controller = bench.controller()
    running = asyncio.create_task(controller.run())
    await bench.infra.reached.wait()
    del bench.infra.hold[held]
    controller.stop(CANCEL)
    controller.stop(Outcome(Status.FAILED, "the second one does not count"))
    record = await asyncio.wait_for(running, 10)
    assert record.status is Status.CANCELLED
    assert bench.infra.calls[-1] == "tear_down"


async def test_a_stop_while_following_cancels_the_job_and_reads_its_log_to_the_end(tmp_path: Path) -> None:
    hold = asyncio.Event()
    bench = Bench(
        tmp_path,
        [RUNNING, LogBytes(0, b"working\n"), hold],
        [LogBytes(8, b"caught SIGTERM\n"), FAILED],
    )
    controller = bench.controller()
    running = asyncio.create_task(controller.run())
    await bench.sink.writing.wait()
    controller.stop(CANCEL)
    record = await running
    assert record.status is Status.CANCELLED
    assert bench.client.cancelled == 1
    assert bench.sink.lines == ["working", "caught SIGTERM"]


async def test_a_stop_before_the_start_launches_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    controller = bench.controller()
    controller.stop(CANCEL)
    assert (await controller.run()).status is Status.CANCELLED
    assert bench.infra.calls == ["tear_down"]


async def test_a_deadline_that_has_passed_launches_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, deadline=time.time() - 1)
    record = await bench.run()
    assert record.status is Status.FAILED
    assert record.state.outcome is not None
    assert "ran out of time" in record.state.outcome.reason
    assert bench.infra.calls == ["tear_down"]


async def test_a_deadline_ends_a_job_that_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, asyncio.Event()], [FAILED], deadline=time.time() + 0.3)
    record = await bench.run()
    assert record.status is Status.FAILED
    assert bench.client.cancelled == 1


async def test_a_deadline_does_not_disturb_the_clean_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, deadline=time.time() + 0.3)
    bench.infra.hold["tear_down"] = asyncio.Event()
    running = asyncio.create_task(bench.run())
    await bench.infra.reached.wait()
    await asyncio.sleep(0.35)
    bench.infra.hold["tear_down"].set()
    assert (await running).status is Status.SUCCEEDED
    assert bench.infra.calls.count("tear_down") == 1


@pytest.mark.parametrize("error", [LinkLost("reset"), NoSuchJob("no job 1"), AgentFailed("busy")])
async def test_a_job_that_cannot_be_cancelled_goes_with_its_cluster(tmp_path: Path, error: Exception) -> None:
    bench = Bench(tmp_path, [RUNNING, asyncio.Event()], [asyncio.Event()])
    bench.client.errors["cancel"] = [error]
    controller = bench.controller()
    running = asyncio.create_task(controller.run())
    await until(lambda: bool(bench.client.streams))
    controller.stop(CANCEL)
    assert (await running).status is Status.CANCELLED
    assert bench.infra.calls[-1] == "tear_down"


@pytest.mark.parametrize("held", ["provision", "connect", "tear_down", "following"])
async def test_a_cancelled_controller_leaves_no_task_and_no_connection(tmp_path: Path, held: str) -> None:
    """As when a triggerer shuts down; the next one goes on from the record."""
    bench = Bench(tmp_path, [RUNNING, LogBytes(0, b"hello\n"), asyncio.Event()], HELLO)
    if held == "tear_down":
        bench.client.scripts = [HELLO]
    elif held == "following":
        bench.infra.reached = bench.sink.writing
    if held != "following":
        bench.infra.hold[held] = asyncio.Event()
    running = asyncio.create_task(bench.controller().run())
    await bench.infra.reached.wait()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert bench.client.closed <= 1
    assert all(stream.closed for stream in bench.client.streams)
    bench.infra.hold.clear()
    bench.client.scripts = [HELLO]
    bench.record = bench.store.claim(bench.record.id, "try-1")
    assert (await bench.run()).status is Status.SUCCEEDED


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
