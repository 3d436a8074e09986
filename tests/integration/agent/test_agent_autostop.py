"""Agents that stop or go down by themselves: real processes, hooks and commands in bash."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.wire import agent_pb2 as agent
from airflow_provider.runtime.wire import autostop_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.agents import Agent, refused
from tests.integration.clusters import eventually, exited

SOON = 1 / 60
"""A second of idleness, in the minutes of the command line; the wire knows whole minutes only."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "cluster"
    directory.mkdir()
    return directory


@pytest.fixture
async def cluster(root: Path) -> AsyncIterator[Agent]:
    """A root on which no agent runs yet."""
    made = Agent(root)
    try:
        yield made
    finally:
        await made.close()
        made.end()


def until(path: Path) -> str:
    """Return a command that ends when the file is there."""
    return f"until [ -e {path} ]; do sleep 0.05; done"


async def test_an_idle_cluster_goes_down_for_good_within_two_seconds(cluster: Agent) -> None:
    await cluster.start("--autostop", SOON, "--autostop-down", disposable=True)
    pid, begin = cluster.pid, time.monotonic()
    await exited(pid)
    assert 0.5 < time.monotonic() - begin < 1 + 2 + 2  # to be idle, to be noticed, and to end
    assert list(cluster.root.parent.iterdir()) == []


async def test_an_idle_cluster_that_stops_keeps_its_directory_and_runs_its_command(
    cluster: Agent, tmp_path: Path
) -> None:
    await cluster.start("--autostop", SOON, "--on-stop", f"echo > {tmp_path}/stopped", "--on-down", "exit 1")
    await exited(cluster.pid)
    assert (tmp_path / "stopped").exists()


async def test_a_cluster_that_goes_down_runs_the_other_command(cluster: Agent, tmp_path: Path) -> None:
    options = (
        "--autostop",
        SOON,
        "--autostop-down",
        "--on-down",
        f"echo > {tmp_path}/gone",
        "--on-stop",
        "exit 1",
    )
    await cluster.start(*options)
    await exited(cluster.pid)
    assert (tmp_path / "gone").exists()
    assert cluster.root.exists()


async def test_an_agent_without_a_command_says_that_the_machine_stays(cluster: Agent) -> None:
    await cluster.start("--autostop", SOON)
    await exited(cluster.pid)
    assert "no command to end its machine" in cluster.log


async def test_an_agent_started_again_after_its_end_counts_anew(cluster: Agent) -> None:
    await cluster.start("--autostop", SOON)
    await exited(cluster.pid)
    await cluster.start("--autostop", 60)
    assert not await cluster.autostopping()
    assert (await cluster.health()).autostop.idle_minutes == 0
    await exited(cluster.pid)


async def test_k37_the_setting_of_the_command_line_is_there_from_the_start(cluster: Agent) -> None:
    await cluster.start("--autostop", 7, "--autostop-down", "--autostop-wait-for", "jobs")
    state = (await cluster.health()).autostop
    assert (state.set, state.idle_minutes, state.down, state.wait_for) == (True, 7, True, "jobs")


@pytest.mark.parametrize("minutes", ["-1", "nan", "inf", "x"])
async def test_minutes_that_make_no_sense_are_refused_at_the_start(cluster: Agent, minutes: str) -> None:
    with pytest.raises(AssertionError, match="--autostop"):
        await cluster.start(f"--autostop={minutes}")


async def test_k37_a_killed_agent_is_followed_by_one_with_its_setting_and_its_clock(cluster: Agent) -> None:
    await cluster.start()
    await cluster.set(idle_minutes=5, down=True, wait_for=pb.AUTOSTOP_WAIT_FOR_JOBS)
    set_at = time.monotonic()
    await asyncio.sleep(0.5)
    await cluster.kill()
    await cluster.start()
    state = (await cluster.health()).autostop
    assert (state.set, state.idle_minutes, state.down, state.wait_for) == (True, 5, True, "jobs")
    assert 0.5 <= state.idle_seconds <= time.monotonic() - set_at + 0.5


async def test_k37_another_chain_does_not_touch_the_setting(cluster: Agent) -> None:
    await cluster.start()
    await cluster.set(idle_minutes=5, down=True)
    await cluster.submit("true")
    assert (await cluster.health()).autostop.set


async def test_a_live_job_keeps_the_cluster_and_its_end_does_not(cluster: Agent, tmp_path: Path) -> None:
    await cluster.start()
    await cluster.submit(until(tmp_path / "go"))
    await cluster.set(idle_minutes=0)
    pid = cluster.pid
    with pytest.raises(asyncio.TimeoutError):
        await exited(pid, seconds=1)
    assert not await cluster.autostopping()
    (tmp_path / "go").touch()
    await exited(pid)


async def test_k23_a_daemon_that_an_ended_job_left_keeps_nothing(cluster: Agent) -> None:
    await cluster.start()
    await cluster.submit("setsid nohup sleep 1000 >/dev/null 2>&1 & sleep 0.5")
    await cluster.set(idle_minutes=0)
    await exited(cluster.pid)
    assert processes.marked(processes.CLUSTER_MARKER, str(cluster.root)) == set()


async def test_k23_a_follower_of_an_ended_job_keeps_nothing(cluster: Agent) -> None:
    await cluster.start()
    job = await cluster.submit("echo line")
    call = rpcs.FOLLOW.duplex(cluster.channel)()
    start = agent.FollowStart(job_id=job, owner=agent.Owner(id="test", generation=1), offset=0)
    await call.write(agent.FollowRequest(start=start))
    while (await call.read()).state.status != agent.SUCCEEDED:
        pass
    await cluster.set(idle_minutes=0)
    await exited(cluster.pid)
    call.cancel()


async def test_i1_10_a_job_that_resists_its_cancel_keeps_the_cluster(cluster: Agent) -> None:
    await cluster.start()
    job = await cluster.submit("trap '' TERM; echo ready; while :; do sleep 100; done")
    await eventually(lambda: list(cluster.root.glob("sky_logs/*/run.log")), "the job to start")
    request = agent.CancelRequest(job_id=job, owner=agent.Owner(id="test", generation=1))
    cancelling = asyncio.create_task(_call(rpcs.CANCEL.unary(cluster.channel), request))
    await cluster.until_status(job, agent.CANCELLING, agent.CANCELLED)
    await cluster.set(idle_minutes=0)
    assert (await cancelling).status == agent.CANCELLED
    await exited(cluster.pid)


async def _call(method: Callable[..., object], request: agent.CancelRequest) -> agent.JobState:
    answer: agent.JobState = await method(request, timeout=30)  # type: ignore[misc]
    return answer


async def test_k23_the_plain_timer_ends_a_cluster_whose_job_hangs(cluster: Agent) -> None:
    await cluster.start()
    await cluster.submit("sleep 1000")
    await cluster.set(idle_minutes=0, wait_for=pb.AUTOSTOP_WAIT_FOR_NONE)
    await exited(cluster.pid)
    assert processes.marked(processes.CLUSTER_MARKER, str(cluster.root)) == set()


async def test_k23_a_hold_keeps_the_cluster_until_it_is_let_go(cluster: Agent) -> None:
    await cluster.start()
    assert await cluster.hold(900) == pytest.approx(900, abs=5)
    await cluster.set(idle_minutes=0)
    pid = cluster.pid
    with pytest.raises(asyncio.TimeoutError):
        await exited(pid, seconds=1)
    assert await cluster.hold(0) == pytest.approx(600, abs=5)
    await exited(pid)


async def test_k23_a_hold_does_not_restart_the_plain_timer(cluster: Agent) -> None:
    await cluster.start("--autostop", 5, "--autostop-wait-for", "none")
    await asyncio.sleep(0.5)
    await cluster.hold(60)
    assert (await cluster.health()).autostop.idle_seconds >= 0.5


async def test_a_hold_that_is_over_keeps_nothing(cluster: Agent) -> None:
    await cluster.start()
    await cluster.hold(1)
    await cluster.set(idle_minutes=0)
    begin = time.monotonic()
    await exited(cluster.pid)
    assert 0.5 < time.monotonic() - begin < 1 + 2 + 2


async def test_hooks_run_before_the_end_and_jobs_are_refused_meanwhile(
    cluster: Agent, tmp_path: Path
) -> None:
    await cluster.start()
    await cluster.set(
        idle_minutes=0,
        down=True,
        hooks=[
            pb.Hook(run=f"{until(tmp_path / 'go')}; echo $SKYPILOT_HOOK_EVENT"),
            pb.Hook(run="echo not me", events=[pb.EVENT_STOP]),
            pb.Hook(run="exit 3"),
        ],
    )
    await cluster.until_autostopping()
    for call in (cluster.submit("true"), cluster.hold(60), cluster.set(idle_minutes=-1)):
        error = await refused(call)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "the cluster is ending: autostop" in (error.details() or "")
    pid = cluster.pid
    (tmp_path / "go").touch()
    await exited(pid)
    output = (cluster.root / "agent" / "hooks" / "down.log").read_text()
    assert output.startswith("down\n")
    assert "not me" not in output
    assert "exited with 3" in cluster.log


async def test_i1_57_a_hook_that_takes_its_time_blocks_neither_jobs_nor_calls(
    cluster: Agent, tmp_path: Path
) -> None:
    await cluster.start()
    job = await cluster.submit(until(tmp_path / "go"))
    hook = pb.Hook(run=f"touch {tmp_path}/go; sleep 1000", timeout=3)
    await cluster.set(idle_minutes=0, wait_for=pb.AUTOSTOP_WAIT_FOR_NONE, hooks=[hook])
    pid = cluster.pid
    await cluster.until_status(job, agent.SUCCEEDED)
    assert await cluster.autostopping()
    await exited(pid, seconds=20)
    assert "did not end in its 3 s" in cluster.log
    assert processes.marked(processes.CLUSTER_MARKER, str(cluster.root)) == set()


async def test_an_agent_killed_while_hooks_run_is_followed_by_one_that_ends_without_them(
    cluster: Agent, tmp_path: Path
) -> None:
    await cluster.start()
    await cluster.set(idle_minutes=0, hooks=[pb.Hook(run=f"echo >> {tmp_path}/hooks; sleep 1000")])
    await eventually((tmp_path / "hooks").exists, "the hook to begin")
    await cluster.kill()
    await cluster.start("--on-stop", f"echo > {tmp_path}/stopped")
    await eventually((tmp_path / "stopped").exists, "the command to run")
    assert (tmp_path / "hooks").read_text() == "\n"
