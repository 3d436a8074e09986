"""Autostop as its callers see it: what they may set, and what they hear."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.wire import autostop_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.agents import Agent, refused
from tests.integration.clusters import exited


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


async def test_a_setting_is_cancelled_by_a_negative_number(cluster: Agent) -> None:
    await cluster.start("--autostop", 5)
    await cluster.set(idle_minutes=-1)
    assert not (await cluster.health()).autostop.set
    await cluster.kill()
    await cluster.start("--autostop", 5)
    assert not (await cluster.health()).autostop.set


async def test_who_does_not_say_waits_for_jobs_and_ssh(cluster: Agent) -> None:
    await cluster.start()
    await cluster.set(idle_minutes=5)
    assert (await cluster.health()).autostop.wait_for == "jobs_and_ssh"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"wait_for": 9}, "wait_for is 9"),
        ({"hooks": [pb.Hook(run=" ")]}, "hooks[0].run is ' '"),
        ({"hooks": [pb.Hook(run="true"), pb.Hook(run="true", timeout=-1)]}, "hooks[1].timeout is -1"),
        ({"hooks": [pb.Hook(run="true", events=[4])]}, "hooks[0].events holds 4"),
        ({"hooks": [pb.Hook(run="true", events=[pb.EVENT_UNSPECIFIED])]}, "hooks[0].events holds 0"),
        ({"hook": "true", "hook_timeout": -2}, "hook_timeout is -2"),
    ],
)
async def test_a_bad_value_is_named_and_changes_nothing(
    cluster: Agent, fields: dict[str, object], text: str
) -> None:
    await cluster.start("--autostop", 5)
    error = await refused(cluster.set(idle_minutes=9, **fields))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in (error.details() or "")
    assert (await cluster.health()).autostop.idle_minutes == 5


async def stored_hooks(cluster: Agent) -> str:
    return await asyncio.to_thread((cluster.root / "agent" / "autostop.json").read_text)


async def test_hooks_are_kept_cleared_and_given_their_defaults(cluster: Agent) -> None:
    await cluster.start()
    await cluster.set(idle_minutes=5, hooks=[pb.Hook(run="echo a")])
    default = '{"run": "echo a", "events": ["stop", "preemption", "down"], "timeout": 3600.0}'
    assert default in await stored_hooks(cluster)
    assert "hooks of preemption are stored" in cluster.log
    await cluster.set(idle_minutes=5)
    assert default in await stored_hooks(cluster)
    await cluster.set(idle_minutes=5, clear_hooks=True, hooks=[pb.Hook(run="echo b")])
    assert '"hooks": []' in await stored_hooks(cluster)


@pytest.mark.parametrize(("down", "event"), [(True, "down"), (False, "stop")])
async def test_the_one_hook_of_older_clients_belongs_to_what_autostop_does(
    cluster: Agent, down: bool, event: str
) -> None:
    await cluster.start()
    await cluster.set(idle_minutes=5, down=down, hook="echo a", hook_timeout=7)
    assert f'{{"run": "echo a", "events": ["{event}"], "timeout": 7.0}}' in await stored_hooks(cluster)


async def test_a_setting_that_cannot_be_stored_is_an_error_and_leaves_the_old_one(cluster: Agent) -> None:
    await cluster.start("--autostop", 5)
    # Where the new file is to be written lies a directory: the nearest thing to a full disk that any user can make.
    (cluster.root / "agent" / f".autostop.json.{cluster.pid}").mkdir()
    error = await refused(cluster.set(idle_minutes=9))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await cluster.health()).autostop.idle_minutes == 5


async def test_two_settings_at_once_leave_one_of_them(cluster: Agent) -> None:
    await cluster.start()
    await asyncio.gather(*(cluster.set(idle_minutes=minutes) for minutes in range(1, 30)))
    minutes = (await cluster.health()).autostop.idle_minutes
    await cluster.kill()
    await cluster.start()
    assert (await cluster.health()).autostop.idle_minutes == minutes


async def test_an_agent_that_is_told_to_end_is_not_stopping(cluster: Agent, tmp_path: Path) -> None:
    await cluster.start("--autostop", 5, "--on-stop", f"echo > {tmp_path}/stopped")
    pid = cluster.pid
    os.kill(pid, signal.SIGTERM)
    await exited(pid)
    assert not (tmp_path / "stopped").exists()
    await cluster.start()
    assert (await cluster.health()).autostop.set


async def test_services_and_pools_are_answered_with_what_is_missing(cluster: Agent) -> None:
    await cluster.start()
    for rpc in rpcs.SERVE_RPCS:
        error = await refused(rpc.unary(cluster.channel)(rpc.request(), timeout=10))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert f"{rpc.name}: this agent runs jobs" in (error.details() or "")
