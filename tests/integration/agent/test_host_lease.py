"""The agent of a host's cluster keeps the host, lets it go, and gives way where it has lost it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from airflow_provider.runtime.agent.host.hostlease import Claim, HostLease
from airflow_provider.runtime.wire import agent_pb2 as agent
from airflow_provider.runtime.wire import autostop_pb2, rpcs
from tests.integration.agent.this_host import ThisHost, this_host
from tests.integration.agents import Agent
from tests.integration.clusters import eventually, exited

OTHER = Claim("serve", "i9", "airflow two", "/base/clusters/0123456789ab")


@pytest.fixture
async def here(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ThisHost]:
    async with this_host() as host:
        monkeypatch.setenv("HOME", str(host.home))
        yield host


async def start(here: ThisHost, lease_seconds: float) -> Agent:
    return here.agent(await asyncio.to_thread(here.up, lease_seconds=lease_seconds))


async def test_the_host_is_kept_for_as_long_as_the_agent_serves(here: ThisHost) -> None:
    cluster = await start(here, 2.0)
    lease = HostLease(here.lease)
    await cluster.hold(60)
    for _ in range(25):  # two lengths of the lease
        held = lease.read()
        assert held is not None
        assert held.claim == Claim("train", "i1", "airflow one", str(cluster.root))
        assert lease.take(OTHER, 60) is not None
        await asyncio.sleep(0.16)


async def test_a_cluster_that_hears_nobody_leaves_the_host_as_it_was(here: ThisHost) -> None:
    (here.home / "mine").touch()
    cluster = await start(here, 2.0)
    job = await cluster.submit("echo > ~/made; sleep 1000")
    await cluster.until_status(job, agent.RUNNING)
    await cluster.close()
    await exited(cluster.pid, 15)
    assert here.left() == []
    assert here.processes(str(cluster.root)) == set()
    assert sorted(os.listdir(here.home)) == ["made", "mine"]


async def test_a_killed_agents_host_is_free_when_the_lease_is_over(here: ThisHost) -> None:
    cluster = await start(here, 2.0)
    await cluster.hold(60)
    await cluster.kill()
    killed = time.monotonic()
    lease = HostLease(here.lease)
    assert lease.take(OTHER, 60) is not None
    await eventually(lambda: lease.take(OTHER, 60) is None, "the lease to end")
    assert time.monotonic() - killed < 2.0 + 0.5
    assert (await asyncio.to_thread(here.ask, "restart", **here.wish()))["status"] == "taken"
    assert not here.probe("i1")["agent"]


async def test_an_agent_that_was_frozen_gives_way_to_who_has_the_host(here: ThisHost) -> None:
    cluster = await start(here, 2.0)
    await cluster.hold(60)
    job = await cluster.submit(f"echo $$ > {here.home}/pid; sleep 1000")
    await cluster.until_status(job, agent.RUNNING)
    await eventually(lambda: (here.home / "pid").exists(), "the job to begin")
    shell = int((here.home / "pid").read_text())
    pid = cluster.pid
    os.kill(pid, signal.SIGSTOP)
    lease = HostLease(here.lease)
    await eventually(lambda: lease.take(OTHER, 60) is None, "the lease to end")
    os.kill(shell, 0)
    os.kill(pid, signal.SIGCONT)
    await exited(pid, 20)
    await exited(shell)
    assert here.processes(str(cluster.root)) == set()
    assert not cluster.root.exists()
    held = lease.read()
    assert held is not None
    assert held.claim == OTHER


async def test_an_agent_that_was_frozen_keeps_a_host_that_nobody_took(here: ThisHost) -> None:
    cluster = await start(here, 2.0)
    await cluster.hold(60)
    os.kill(cluster.pid, signal.SIGSTOP)
    lease = HostLease(here.lease)
    await eventually(lambda: lease.read() is None, "the lease to end")
    os.kill(cluster.pid, signal.SIGCONT)
    await eventually(lambda: lease.read() is not None, "it to be renewed")
    job = await cluster.submit("true")
    await cluster.until_status(job, agent.SUCCEEDED)


async def test_a_lease_that_cannot_be_renewed_costs_nobody_a_job(here: ThisHost) -> None:
    cluster = await start(here, 2.0)
    await cluster.hold(60)
    for record in here.lease.iterdir():
        record.unlink()
    here.lease.rmdir()
    here.lease.write_text("in the way")
    await eventually(lambda: "not renewed" in cluster.log, "the agent to notice")
    job = await cluster.submit("true")
    await cluster.until_status(job, agent.SUCCEEDED)
    here.lease.unlink()
    await eventually(lambda: HostLease(here.lease).read() is not None, "it to be renewed")


async def test_going_down_by_autostop_lets_the_host_go(here: ThisHost) -> None:
    cluster = await start(here, 600)
    await cluster.set(idle_minutes=0, down=True, wait_for=autostop_pb2.AUTOSTOP_WAIT_FOR_NONE)
    await exited(cluster.pid, 15)
    assert here.left() == []


async def test_chunks_are_kept_for_all_clusters_of_the_account(here: ThisHost) -> None:
    cluster = await start(here, 600)

    async def chunks() -> AsyncIterator[agent.PutChunksRequest]:
        yield agent.PutChunksRequest(data=b"some of a file")

    await rpcs.PUT_CHUNKS.upload(cluster.channel)(chunks(), timeout=10)
    assert [path.read_bytes() for path in here.base.glob("chunks/*/*") if path.is_file()] == [
        b"some of a file"
    ]
