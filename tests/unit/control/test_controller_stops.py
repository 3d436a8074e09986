"""Cancels, deadlines and shutdowns, whatever is under way."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.client.base import (
    AgentFailed,
    LinkLost,
    LogBytes,
    NoSuchJob,
)
from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.infra.base import Health
from tests.unit.control.bench import CANCEL, HELLO, Bench
from tests.unit.control.scripted import (
    BREAK,
    FAILED,
    RUNNING,
    until,
)

pytestmark = pytest.mark.usefixtures("no_waiting")


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
    bench = Bench(tmp_path, [RUNNING, asyncio.Event()], [FAILED], deadline=time.time() + 1.5)
    record = await bench.run()
    assert record.status is Status.FAILED
    assert bench.client.cancelled == 1


async def test_a_deadline_does_not_disturb_the_clean_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, deadline=time.time() + 1.5)
    bench.infra.hold["tear_down"] = asyncio.Event()
    running = asyncio.create_task(bench.run())
    await bench.infra.reached.wait()
    await asyncio.sleep(1.5)
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
