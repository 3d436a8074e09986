"""Operations on a host that come at the same time, or are killed half-way."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host import clusters
from tests.integration.agent.this_host import ThisHost, this_host
from tests.integration.clusters import eventually


@pytest.fixture
async def here(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ThisHost]:
    async with this_host() as host:
        monkeypatch.setenv("HOME", str(host.home))
        yield host


async def test_two_who_come_at_once_find_one_cluster(here: ThisHost) -> None:
    answers = await asyncio.gather(*(here.ask_elsewhere("up", **here.wish()) for _ in range(4)))
    assert {answer["status"] for answer in answers} == {"up"}
    assert len({answer["instance"] for answer in answers}) == 1
    assert [answer["adopted"] for answer in answers].count(False) == 1
    agents = [pid for pid in here.users_of("r1") if "--instance" in here.command_line(pid)]
    assert agents == [here.probe()["pid"]]


async def test_of_two_clusters_that_come_at_once_one_gets_the_host(here: ThisHost) -> None:
    wishes = [here.wish(name=f"c{number}", instance=f"i{number}") for number in range(3)]
    answers = await asyncio.gather(*(here.ask_elsewhere("up", **wish) for wish in wishes))
    assert sorted(str(answer["status"]) for answer in answers) == ["taken", "taken", "up"]
    assert len(list(here.base.glob("clusters/*"))) == 1


async def test_up_and_down_at_once_leave_a_whole_cluster_or_none(here: ThisHost) -> None:
    for number in range(4):
        going_up = asyncio.create_task(here.ask_elsewhere("up", **here.wish(instance=f"i{number}")))
        if number:
            # Earlier or later in what the other one does.
            await eventually([here.lease.exists, (here.base / "clusters").exists][number % 2], "it to begin")
        down = await here.ask_elsewhere("down", name="train", instance=None)
        up = await going_up
        assert up["status"] == "up"
        probe = here.probe(up["instance"])
        if down["found"] and not probe["present"]:
            assert here.left() == []
            assert here.processes(up["root"]) == set()
        else:
            assert (probe["present"], probe["agent"], probe["lease"]) == (True, True, "ours")
            here.down()


async def test_an_operation_that_is_killed_at_any_moment_is_finished_by_the_next(here: ThisHost) -> None:
    for number, delay in enumerate((0.1, 0.2, 0.3, 0.45, 0.6)):
        for operation in ("up", "down"):
            process = await here.begin(operation, **here.wish(instance=f"i{number}"))
            try:
                await asyncio.wait_for(process.wait(), delay)
            except asyncio.TimeoutError:
                process.kill()
                await process.communicate()
        up = await asyncio.to_thread(here.up, instance=f"i{number}")
        assert up["status"] == "up"
        assert here.probe(up["instance"])["lease"] == "ours"
        assert (await asyncio.to_thread(here.down))["found"]
        assert here.left() == []


def test_a_removal_that_a_crash_left_is_finished_by_who_takes_the_host_next(here: ThisHost) -> None:
    root = Path(here.up()["root"])
    here.down()
    remains = [root.with_name(f".removed-{name}-{'0' * 32}") for name in (root.name, "0123456789ab")]
    for directory in remains:
        (directory / "jobs" / "1").mkdir(parents=True)
    here.up(name="other", instance="i2")
    assert not any(directory.exists() for directory in remains)


async def test_a_lock_that_hangs_is_told(here: ThisHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_LOCK_SECONDS", 0.05)
    root = Path(here.up()["root"])
    lock = root.with_suffix(".lock")
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    cause, remedy = here.problem("down", name="train", instance=None)
    os.close(handle)
    assert str(lock) in cause
    assert "fuser" in remedy
