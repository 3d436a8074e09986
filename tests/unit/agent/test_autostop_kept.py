"""What a restarted agent knows of autostop, and what becomes of a setting that cannot be stored."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.autostop import autostop as autostop_module
from airflow_provider.runtime.agent.autostop.autostop import FILE_NAME
from airflow_provider.runtime.agent.autostop.hooks import Hook
from airflow_provider.runtime.agent.autostop.idle import Action, WaitFor
from airflow_provider.runtime.agent.jobs.job import Closing
from airflow_provider.runtime.agent.jobs.jobdir import write_private
from tests.unit.agent.conftest import wait_for
from tests.unit.agent.made_up_cluster import (
    DOWN,
    HOOK,
    STOP,
    Cluster,
    decided,
    until,
    watched,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(autostop_module, "write_private", refuse)
        yield


async def test_hooks_stay_until_others_are_given_or_they_are_cleared(cluster: Cluster) -> None:
    other = Hook("echo", ("stop",), 5.0)
    for given, kept in [((HOOK,), (HOOK,)), (None, (HOOK,)), ((other,), (other,)), ((), ())]:
        autostop = await cluster.agent()
        await autostop.set(DOWN, given)
        assert await (await cluster.agent()).claim_hooks() == kept


async def test_hooks_outlive_a_cancelled_setting(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN, (HOOK,))
    await autostop.set(None)
    assert await (await cluster.agent()).claim_hooks() == (HOOK,)


async def test_k37_a_restarted_agent_keeps_the_setting_and_the_clock(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(STOP._replace(wait_for=WaitFor.JOBS))
    async with watched(autostop):
        cluster.now += 20
        autostop.activity()
        await autostop.look()
    cluster.now += 30
    state = (await cluster.agent()).state()
    assert (state.set, state.idle_minutes, state.down, state.wait_for) == (True, 1, False, "jobs")
    assert state.idle_seconds == 30


async def test_k37_a_restarted_agent_keeps_the_plain_timer_while_jobs_of_the_last_one_end(
    cluster: Cluster,
) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN._replace(wait_for=WaitFor.NONE))
    cluster.jobs = 3
    cluster.now += 50
    autostop = await cluster.agent()
    cluster.jobs = 2
    autostop.activity()
    async with watched(autostop) as due:
        assert autostop.state().idle_seconds == 50
        await cluster.pass_time(autostop, 10)
        assert await decided(due) is Action.DOWN


async def test_the_clock_begins_with_an_agent_whose_predecessor_died_busy(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    cluster.sessions = 1
    async with watched(autostop):
        pass
    cluster.sessions = 0
    cluster.now += 3600
    autostop = await cluster.agent()
    assert autostop.state().idle_seconds == 0
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 59)
        assert not due.done()
        await cluster.pass_time(autostop, 1)
        assert await decided(due) is Action.DOWN


async def test_after_a_reboot_the_setting_stays_and_the_clock_begins_anew(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    cluster.boot_id = "boot 2"
    cluster.now = 5.0
    autostop = await cluster.agent()
    assert autostop.state().set
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 59)
        assert not due.done()
        await cluster.pass_time(autostop, 1)
        assert await decided(due) is Action.DOWN


async def test_k37_the_setting_of_the_start_counts_from_boot_until_another_is_stored(
    cluster: Cluster,
) -> None:
    assert (await cluster.agent(DOWN)).state().down
    assert (await cluster.agent()).state().down, "it was not stored"
    autostop = await cluster.agent(DOWN)
    await autostop.set(STOP)
    assert not (await cluster.agent(DOWN)).state().down
    await autostop.set(None)
    assert not (await cluster.agent(DOWN)).state().set


async def test_a_file_that_makes_no_sense_leaves_the_setting_of_the_start(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("", "[]", '{"boot_id": 1}', "\0"):
        (cluster.directory / FILE_NAME).write_text(text)
        assert (await cluster.agent(DOWN)).state().down
    assert "cannot be read" in caplog.text


async def test_a_setting_that_cannot_be_stored_leaves_the_old_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN, (HOOK,))
    with full_disk(monkeypatch), pytest.raises(OSError, match="No space"):
        await autostop.set(None, ())
    for agent in (autostop, await cluster.agent()):
        assert agent.state().down
        assert await agent.claim_hooks() == (HOOK,)


async def test_a_full_disk_does_not_keep_the_cluster_alive(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    with full_disk(monkeypatch):
        async with watched(autostop) as due:
            await cluster.pass_time(autostop, 60)
            assert await decided(due) is Action.DOWN


async def test_two_settings_at_once_leave_one_of_them_in_file_and_memory(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    for _ in range(20):
        await asyncio.gather(
            autostop.set(DOWN, (HOOK,)), autostop.set(STOP, ()), autostop.set(None), autostop.set(DOWN)
        )
        stored = (await cluster.agent()).state()
        assert stored.set == autostop.state().set
        assert stored.down == autostop.state().down


async def test_a_caller_that_gives_up_leaves_file_and_memory_alike(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    autostop = await cluster.agent()
    writing, go_on = threading.Event(), threading.Event()

    def slow(path: Path, text: str) -> None:
        writing.set()
        go_on.wait(10)
        write_private(path, text)

    monkeypatch.setattr(autostop_module, "write_private", slow)
    setting = asyncio.create_task(autostop.set(DOWN))
    await asyncio.to_thread(writing.wait, 10)
    setting.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await setting
    await until(lambda: autostop.state().set, "the setting to be there")
    assert (await cluster.agent()).state().set


async def test_the_end_is_marked_and_the_gate_closed_before_anything_is_done(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    assert not autostop.state().autostopping
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        await decided(due)
    assert cluster.gate.closed
    assert autostop.state().autostopping
    assert (await cluster.agent()).state().autostopping


async def test_the_mark_of_another_boot_means_nothing(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        await decided(due)
    cluster.boot_id = "boot 2"
    autostop = await cluster.agent()
    assert not autostop.state().autostopping
    assert not cluster.gate.closed


async def test_an_agent_that_died_in_the_middle_is_followed_by_one_that_goes_on(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(STOP, (HOOK,))
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        await decided(due)
    cluster.jobs = 1
    autostop = await cluster.agent()
    assert cluster.gate.closed
    assert (await autostop.due()).action is Action.STOP
    assert await autostop.claim_hooks() == (HOOK,), "they had not begun"
    autostop = await cluster.agent()
    assert (await autostop.due()).action is Action.STOP
    assert await autostop.claim_hooks() == (), "they had begun"


async def test_an_agent_started_again_after_the_end_begins_anew(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(STOP, (HOOK,))
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        await decided(due)
    await autostop.claim_hooks()
    await autostop.finished()
    autostop = await cluster.agent()
    assert not autostop.state().autostopping
    assert autostop.state().idle_seconds == 0
    assert autostop.state().set
    assert await autostop.claim_hooks() == (HOOK,)


async def test_a_job_that_passed_the_gate_in_the_last_moment_takes_the_end_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    loop = asyncio.get_running_loop()

    def submit() -> None:
        cluster.jobs = 1
        autostop.activity()

    def write(path: Path, text: str) -> None:
        if json.loads(text)["stopping"] != "nothing" and cluster.jobs == 0:
            loop.call_soon_threadsafe(submit)
            wait_for(lambda: cluster.jobs, "the job")
        write_private(path, text)

    monkeypatch.setattr(autostop_module, "write_private", write)
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        await until(lambda: cluster.jobs, "the job")
        await autostop.look()
        assert not due.done()
        assert not cluster.gate.closed
        assert not autostop.state().autostopping
        assert not (await cluster.agent()).state().autostopping


async def test_jobs_cost_no_file_while_the_cluster_stays_busy(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    written: list[str] = []
    async with watched(autostop):
        cluster.jobs = 1
        autostop.activity()
        await autostop.look()
        monkeypatch.setattr(autostop_module, "write_private", lambda path, text: written.append(text))
        for cluster.jobs in (2, 3, 2, 1):
            cluster.now += 10
            autostop.activity()
            await autostop.look()
    assert written == []


async def test_an_end_of_a_cluster_without_autostop_leaves_the_next_start_its_setting(
    cluster: Cluster,
) -> None:
    await (await cluster.agent()).finished()
    assert (await cluster.agent(DOWN)).state().down


async def test_a_setting_is_refused_once_the_end_is_decided(cluster: Cluster) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN)
    async with watched(autostop) as due:
        await cluster.pass_time(autostop, 60)
        await decided(due)
    with pytest.raises(Closing, match="ending"):
        await autostop.set(None)
    assert autostop.state().set
