"""The autostop setting, the idle clock and the moment of the end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.autostop.autostop import Autostop
from airflow_provider.runtime.agent.autostop.idle import Action, WaitFor
from airflow_provider.runtime.agent.gate import Gate
from tests.unit.agent.made_up_cluster import (
    DOWN,
    STOP,
    Cluster,
    decided,
    watched,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def test_an_idle_cluster_is_due_when_its_time_is_over(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 59)
        assert not due.done()
        assert autostop.state().idle_seconds == 59
        await cluster.pass_time(autostop, 1)
        assert await decided(due) is Action.DOWN


async def test_without_down_it_is_to_stop(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(STOP)
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        assert await decided(due) is Action.STOP


async def test_a_live_job_keeps_it_and_its_end_begins_the_clock(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    async with watched(autostop) as due:
        cluster.jobs = 1
        autostop.activity()
        await cluster.pass_time(autostop, 3600)
        assert autostop.state().idle_seconds == 0
        cluster.jobs = 0
        autostop.activity()
        await autostop.look()
        await cluster.pass_time(autostop, 59)
        assert not due.done()
        await cluster.pass_time(autostop, 1)
        assert await decided(due) is Action.DOWN


async def test_a_job_too_short_for_any_look_restarts_the_clock(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 50)
        cluster.jobs = 1
        autostop.activity()
        cluster.jobs = 0
        autostop.activity()
        await cluster.pass_time(autostop, 50)
        assert not due.done()


async def test_k23_an_open_session_keeps_it_by_default(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    cluster.sessions = 1
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 3600)
        cluster.sessions = 0
        await cluster.pass_time(autostop, 5)
        await cluster.pass_time(autostop, 59)
        assert not due.done()
        await cluster.pass_time(autostop, 1)
        assert await decided(due) is Action.DOWN


async def test_k23_sessions_are_not_looked_for_where_they_do_not_count(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN._replace(wait_for=WaitFor.JOBS))
    cluster.sessions = 1
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        assert await decided(due) is Action.DOWN
    assert cluster.looks == 0


async def test_k23_a_hold_keeps_it_until_it_is_over(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    async with watched(autostop) as due:
        cluster.held = 600
        await autostop.look()
        await cluster.pass_time(autostop, 599)
        cluster.held = 0
        await cluster.pass_time(autostop, 1)
        await cluster.pass_time(autostop, 59)
        assert not due.done()
        await cluster.pass_time(autostop, 1)
        assert await decided(due) is Action.DOWN


async def test_k23_the_plain_timer_ends_a_cluster_whose_job_hangs(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN._replace(wait_for=WaitFor.NONE))
    cluster.held = 3600
    cluster.sessions = 1
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 30)
        cluster.jobs = 1
        autostop.activity()
        await cluster.pass_time(autostop, 59)
        assert autostop.state().idle_seconds == 59
        assert not due.done()
        await cluster.pass_time(autostop, 1)
        assert await decided(due) is Action.DOWN


async def test_the_end_of_a_job_does_not_restart_the_plain_timer(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN._replace(wait_for=WaitFor.NONE))
    async with watched(autostop):
        for cluster.jobs in (1, 2):
            autostop.activity()
        await cluster.pass_time(autostop, 40)
        cluster.jobs = 1
        autostop.activity()
        assert autostop.state().idle_seconds == 40


async def test_only_the_first_setting_restarts_the_clock(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    cluster.now += 500
    await autostop.set(DOWN)
    assert autostop.state().idle_seconds == 0
    cluster.now += 30
    await autostop.set(STOP)
    assert autostop.state().idle_seconds == 30
    await autostop.set(None)
    assert not autostop.state().set
    await autostop.set(DOWN)
    assert autostop.state().idle_seconds == 0


async def test_a_cancelled_setting_ends_nothing(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    await autostop.set(None)
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 3600)
        assert not due.done()


async def test_a_shorter_setting_counts_at_once(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN._replace(idle_seconds=3600))
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 100)
        assert not due.done()
        await autostop.set(DOWN)
        assert await decided(due) is Action.DOWN


async def test_it_is_due_within_a_moment_of_its_time(tmp_path: Path) -> None:
    autostop = Autostop(
        directory=tmp_path, boot_id="boot", live=lambda: 0, held=lambda: 0.0, gate=Gate(), sessions=lambda: 0
    )
    await autostop.load()
    begin = time.monotonic()
    await autostop.set(DOWN._replace(idle_seconds=0.5))
    await asyncio.wait_for(autostop.due(), 10)
    assert 0.45 <= time.monotonic() - begin < 2.5


async def test_a_quiet_cluster_is_not_looked_at_all_the_time(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    async with watched(autostop):
        before = cluster.looks
        await asyncio.sleep(0.5)
        assert cluster.looks == before
