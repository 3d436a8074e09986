"""The controller against a cluster that fails by script: what it makes of each fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.client.base import (
    AgentFailed,
    FileProgress,
    Heartbeat,
    LinkLost,
    LogBytes,
    NoSuchJob,
    RequestRefused,
)
from airflow_provider.runtime.control import machine
from airflow_provider.runtime.control.controller import SecretMissing
from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.control.taskstate import Step
from airflow_provider.runtime.infra.base import Health, InfraError, NotFeasible, NothingFree, OutOfReach
from airflow_provider.runtime.state import FileTreeRef
from tests.unit.control.bench import CANCEL, HELLO, Bench
from tests.unit.control.scripted import (
    BREAK,
    FAILED,
    RUNNING,
    SUCCEEDED,
    until,
)

pytestmark = pytest.mark.usefixtures("no_waiting")


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
        "TornDown",
    ]
    assert bench.sink.said == [
        f"cluster train-{record.id} is up: infra scripted",
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


async def test_a_task_waits_for_a_free_host_and_says_so_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    taken, other = NothingFree("a is taken by site two"), NothingFree("a is taken by site three")
    bench.infra.errors["provision"] = [taken, taken, other, *[taken] * machine.MAX_LAUNCH_FAILURES]
    record = await bench.run()
    assert (record.status, record.state.launch_failures) == (Status.SUCCEEDED, 0)
    assert "tear_down" not in bench.infra.calls[:-1], "there is nothing to remove while it waits"
    assert [line for line in bench.sink.said if line.startswith("waiting")] == [
        "waiting: a is taken by site two",
        "waiting: a is taken by site three",
        "waiting: a is taken by site two",
    ]
    assert record.state.waiting_for == ""
    stored = [event.event for event in bench.store.events(record.id)]
    assert stored.count("LaunchFailed") == 3, "only what changes is stored, not every look"


async def test_a_task_that_waits_for_a_free_host_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_BACKOFF_LIMIT_SECONDS", 3600.0)
    bench = Bench(tmp_path)
    bench.infra.errors["provision"] = [NothingFree("a is taken by site two")]
    controller = bench.controller()
    running = asyncio.create_task(controller.run())
    await until(lambda: controller.state.waiting_for == "a is taken by site two")
    assert (controller.state.status, controller.state.step) == (Status.STARTING, Step.PROVISION)
    controller.stop(CANCEL)
    record = await asyncio.wait_for(running, 5)
    assert (record.status, record.state.waiting_for) == (Status.CANCELLED, "")


async def test_a_task_that_waits_for_a_free_host_ends_at_its_deadline(tmp_path: Path) -> None:
    bench = Bench(tmp_path, deadline=time.time() + 0.3)
    bench.infra.errors["provision"] = [NothingFree("a is taken by site two")] * 100_000
    record = await bench.run()
    assert record.status is Status.FAILED
    assert record.state.outcome is not None
    assert "execution_timeout" in record.state.outcome.reason


async def test_where_a_cluster_is_about_to_be_made_is_known_to_whoever_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.infra.intends = "about to be"
    bench.infra.errors["provision"] = [InfraError("the host went away"), NothingFree("a is taken")]
    record = await bench.run()
    assert record.status is Status.SUCCEEDED
    instances = [None if handle is None else handle.instance for handle in bench.infra.torn_down]
    assert instances == ["about to be", "one"], "what a failed launch left is removed from where it was"
    previous = [None if handle is None else handle.instance for handle in bench.infra.previous]
    assert previous == [None, None, "about to be"]


async def test_a_lost_cluster_that_does_not_answer_is_left_to_its_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RUNNING, BREAK], HELLO)
    bench.infra.health = [Health.UNREACHABLE, Health.ALIVE]
    bench.infra.errors["tear_down"] = [OutOfReach("host a does not answer")]
    record = await bench.run(unreachable_timeout=0.0)
    assert (record.status, record.recoveries) == (Status.SUCCEEDED, 1)
    assert bench.infra.calls.count("tear_down") == 2, "once for each cluster"
    assert bench.infra.previous == [None, None], "the new launch does not begin with the lost cluster"
    assert "what is left of the cluster ends by its lease: host a does not answer" in bench.sink.said


async def test_a_task_that_ends_on_a_host_that_does_not_answer_leaves_it_behind_at_last(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.infra.errors["tear_down"] = [OutOfReach("host a does not answer")] * machine.MAX_TEAR_DOWNS
    record = await bench.run()
    assert (record.status, record.state.leaked) == (Status.SUCCEEDED, True)
    assert record.cluster is not None, "the next try looks for it there"
    assert bench.sink.said[-1] == (
        "the cluster could not be removed and is left behind: host a does not answer (its lease ends it)"
    )


async def test_files_on_their_way_are_told_of(tmp_path: Path) -> None:
    bench = Bench(tmp_path, files=(FileTreeRef("ab" * 32, 5_000_000, "directory", "~/sky_workdir"),))
    bench.client.progress = [FileProgress(read=5_000_000, sent=400_000, size=5_000_000)]
    assert (await bench.run()).status is Status.SUCCEEDED
    (line,) = [line for line in bench.sink.said if line.startswith("files: ")]
    assert line.startswith("files: 5.0 MB there after 0.")
    assert line.endswith("s, of which 400 KB had to be sent")


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
    bench.infra.health = [Health.UNREACHABLE, Health.UNREACHABLE, Health.ALIVE]
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
