"""A cluster that no controller talks to ends its jobs and removes itself."""

from __future__ import annotations

import asyncio
import math

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.client import LinkLost
from airflow_provider.runtime.transport.channel import UnixChannel
from airflow_provider.runtime.wire import agent_pb2, rpcs
from tests.integration.clusters import ANY_CHOICE, Cluster, eventually, exited, quiet

pytestmark = pytest.mark.own_cluster


@pytest.mark.parametrize("lease_seconds", [1.0])
async def test_a_lease_that_runs_out_ends_everything(cluster: Cluster) -> None:
    await cluster.submit("trap '' TERM; setsid sleep 100 & sleep 100", grace_seconds=0.1)
    agent = cluster.agent_pid
    await cluster.client.close()
    await exited(agent)
    assert cluster.processes() == set()
    assert list(cluster.root.iterdir()) == []


@pytest.mark.parametrize("lease_seconds", [1.0])
async def test_an_open_stream_keeps_the_cluster_alive(cluster: Cluster) -> None:
    seen = await cluster.run("sleep 3; echo done")
    assert seen.text == "done\n"


@pytest.mark.parametrize("lease_seconds", [1.0])
async def test_a_cluster_whose_lease_is_over_can_be_made_anew(cluster: Cluster) -> None:
    agent = cluster.agent_pid
    await exited(agent)
    handle = await cluster.infra.provision(cluster.handle.name, ANY_CHOICE, quiet)
    assert handle.instance != cluster.handle.instance
    client = await cluster.infra.connect(handle)
    assert await client.handshake(lease_seconds=600) == handle.instance
    await client.close()


async def test_a_handshake_shortens_the_lease(cluster: Cluster) -> None:
    await cluster.client.handshake(lease_seconds=0.2)
    await exited(cluster.agent_pid, seconds=5)
    with pytest.raises(LinkLost):
        await cluster.client.handshake()


@pytest.mark.parametrize("lease_seconds", [0.5])
async def test_a_handshake_lengthens_the_lease(cluster: Cluster) -> None:
    await cluster.client.handshake(lease_seconds=600)
    agent = cluster.agent_pid
    with pytest.raises(asyncio.TimeoutError):
        await exited(agent, seconds=1.5)


@pytest.mark.parametrize("lease_seconds", [1.0])
async def test_a_job_is_refused_while_the_cluster_ends(cluster: Cluster) -> None:
    await cluster.submit("trap '' TERM; while :; do sleep 100; done", grace_seconds=2.0)
    log = cluster.directory / "agent" / "agent.log"
    await eventually(lambda: "ending all jobs" in log.read_text(), "the end of the lease")
    with pytest.raises(LinkLost, match="ending"):
        await cluster.submit("true")
    await exited(cluster.agent_pid)


@pytest.mark.parametrize("lease_seconds", [1.0])
async def test_a_hold_keeps_a_cluster_beyond_its_lease(cluster: Cluster) -> None:
    agent = cluster.agent_pid
    left = await hold(cluster, 3.0)
    assert left == pytest.approx(3.0, abs=0.5)
    with pytest.raises(asyncio.TimeoutError):
        await exited(agent, seconds=2)
    await exited(agent)


@pytest.mark.parametrize("lease_seconds", [1.0])
async def test_a_hold_that_is_let_go_leaves_the_lease(cluster: Cluster) -> None:
    agent = cluster.agent_pid
    await hold(cluster, 600.0)
    with pytest.raises(asyncio.TimeoutError):
        await exited(agent, seconds=1.5)
    assert await hold(cluster, 0.0) == pytest.approx(1.0, abs=0.5)
    await exited(agent)


@pytest.mark.parametrize(
    ("holder", "seconds"), [("", 1.0), ("a", -1.0), ("a", math.nan), ("a", 1e9), ("x" * 300, 1.0)]
)
async def test_a_hold_that_makes_no_sense_is_refused(cluster: Cluster, holder: str, seconds: float) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await hold(cluster, seconds, holder=holder)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ("holder" if seconds == 1.0 else "seconds") in (failure.value.details() or "")


async def hold(cluster: Cluster, seconds: float, *, holder: str = "controller") -> float:
    unix = UnixChannel(cluster.directory / "agent", "agent.sock")
    try:
        request = agent_pb2.LeaseRequest(holder=holder, seconds=seconds)
        return (await rpcs.LEASE.unary(unix.channel)(request, timeout=10)).left
    finally:
        await unix.close()
