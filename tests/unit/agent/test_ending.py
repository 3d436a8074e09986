"""How a cluster ends: what comes first, and what may stop it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.autostop.autostop import Decision
from airflow_provider.runtime.agent.autostop.ending import before_end, run_command, until_due
from airflow_provider.runtime.agent.autostop.hooks import Hook
from airflow_provider.runtime.agent.autostop.idle import Action
from airflow_provider.runtime.agent.lease import Lease
from tests.unit.agent.made_up_cluster import (
    DOWN,
    Cluster,
    until,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def noting(what: list[str], word: str) -> None:
    what.append(word)


async def test_an_end_runs_its_hooks_and_then_ends_the_jobs(cluster: Cluster, tmp_path: Path) -> None:
    autostop = await cluster.agent()
    await autostop.set(
        DOWN, (Hook(f"echo > {tmp_path}/ran", ("down",), 60.0), Hook("echo no", ("stop",), 60.0))
    )
    done: list[str] = []
    for _ in range(2):
        assert await before_end(
            Decision(Action.DOWN, "test"),
            stop=asyncio.Event(),
            autostop=autostop,
            directory=tmp_path / "hooks",
            cancel_jobs=lambda: noting(done, "jobs"),
        )
        assert (tmp_path / "ran").exists() is (len(done) == 1), "hooks run once"
        (tmp_path / "ran").unlink(missing_ok=True)
    assert done == ["jobs", "jobs"]


async def test_a_stop_signal_ends_the_hooks_and_leaves_the_jobs(cluster: Cluster, tmp_path: Path) -> None:
    autostop = await cluster.agent()
    await autostop.set(DOWN, (Hook(f"echo > {tmp_path}/begun; sleep 100", ("down",), 60.0),))
    stop = asyncio.Event()
    done: list[str] = []
    ending = asyncio.create_task(
        before_end(
            Decision(Action.DOWN, "test"),
            stop=stop,
            autostop=autostop,
            directory=tmp_path / "hooks",
            cancel_jobs=lambda: noting(done, "jobs"),
        )
    )
    await until((tmp_path / "begun").exists, "the hook to begin")
    stop.set()
    assert await asyncio.wait_for(ending, 10) is False
    assert done == []


@pytest.mark.parametrize("reason", ["stop", "lease", "autostop"])
async def test_the_first_reason_to_end_counts(cluster: Cluster, reason: str) -> None:
    autostop = await cluster.agent(DOWN._replace(idle_seconds=0.0 if reason == "autostop" else 3600.0))
    stop = asyncio.Event()
    if reason == "stop":
        stop.set()
    lease = Lease(0.05 if reason == "lease" else 3600)
    decision = await asyncio.wait_for(until_due(stop, lease, autostop, cluster.gate), 10)
    if reason == "stop":
        assert decision is None
        assert not cluster.gate.closed
    else:
        assert decision is not None
        assert decision.action is Action.DOWN
        assert ("controller" in decision.why) is (reason == "lease")
        assert cluster.gate.closed
        assert autostop.state().autostopping is (reason == "autostop")


async def test_a_command_is_tried_again_a_few_times(tmp_path: Path) -> None:
    twice = f"echo >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) -ge 2 ]"
    assert await run_command(twice, pause_seconds=0)
    assert (tmp_path / "tries").read_text() == "\n\n"
    assert not await run_command(f"echo >> {tmp_path}/failed; exit 1", pause_seconds=0)
    assert (tmp_path / "failed").read_text() == "\n\n\n"
