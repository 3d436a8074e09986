"""The queue: what runs together, what waits, and what a dead driver or a restarted agent does to it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from airflow_provider.runtime.client import JobStatus, RequestRefused
from airflow_provider.runtime.client.base import Demand
from tests.integration.clusters import OWNER, Cluster

FULL = Demand(cpus=2)
HALF = Demand(cpus=1)
WAITS = 'echo ready; until [ -e "${HOME%/*/home}/go" ]; do sleep 0.05; done'
"""A job that ends when the test says so."""


@pytest.fixture
def cluster(node_with_gpus: Cluster) -> Cluster:
    return node_with_gpus


async def statuses(cluster: Cluster) -> dict[int, str]:
    return {state.job_id: state.status.value for state in await cluster.client.jobs(all=True)}


def go(cluster: Cluster) -> None:
    (cluster.directory / "jobs" / "go").touch()


async def test_jobs_that_fit_run_together_and_the_others_wait(cluster: Cluster) -> None:
    ids = [await cluster.submit(WAITS, demand=HALF) for _ in range(3)]
    for job_id in ids[:2]:
        await cluster.until_status(job_id, JobStatus.RUNNING)
    assert await statuses(cluster) == {ids[0]: "RUNNING", ids[1]: "RUNNING", ids[2]: "PENDING"}
    go(cluster)
    for job_id in ids:
        assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.SUCCEEDED


async def test_jobs_start_in_the_order_in_which_they_came(cluster: Cluster) -> None:
    ids = [await cluster.submit("date +%s.%N", demand=FULL) for _ in range(6)]
    moments = [float((await cluster.follow_to_end(job_id)).text) for job_id in ids]
    assert moments == sorted(moments)


async def test_a_job_that_was_passed_a_few_times_gets_its_turn(cluster: Cluster) -> None:
    first = await cluster.submit(WAITS, demand=HALF)
    large = await cluster.submit("true", demand=FULL)
    small = [await cluster.submit("true", demand=HALF) for _ in range(30)]
    for job_id in small[:10]:
        await cluster.follow_to_end(job_id)
    assert (await cluster.client.status(large)).status is JobStatus.PENDING
    go(cluster)
    ended = [(await cluster.follow_to_end(job_id)).end for job_id in (large, small[-1])]
    assert ended[0].started_at < ended[1].started_at
    assert (await cluster.client.status(first)).status is JobStatus.SUCCEEDED


async def test_what_the_node_can_never_run_is_refused_with_the_reason(cluster: Cluster) -> None:
    with pytest.raises(RequestRefused, match=r"can never run on this node: cpus: 3 wanted, the node has 2"):
        await cluster.submit("true", demand=Demand(cpus=3))
    with pytest.raises(RequestRefused, match=r"job\.demand\.memory is -1"):
        await cluster.submit("true", demand=Demand(memory=-1))
    assert await cluster.client.jobs(all=True) == []


async def test_each_job_sees_the_devices_that_it_was_given_and_setup_sees_none(cluster: Cluster) -> None:
    demand = Demand(cpus=0, accelerators={"V100": 2})
    show = "echo {}: ${{CUDA_VISIBLE_DEVICES-unset}}"
    ids = [
        await cluster.submit(f"{show.format('run')}; {WAITS}", setup=show.format("setup"), demand=demand)
        for _ in range(2)
    ]
    for job_id in ids:
        await cluster.until_log(job_id, "ready")
    go(cluster)
    texts = [(await cluster.follow_to_end(job_id)).text for job_id in ids]
    assert texts == ["setup: unset\nrun: 0,1\nready\n", "setup: unset\nrun: 2,3\nready\n"]


async def test_fractions_of_a_device_are_shared(cluster: Cluster) -> None:
    demand = Demand(cpus=0, accelerators={"V100": 0.5})
    ids = [await cluster.submit(f"echo $CUDA_VISIBLE_DEVICES; {WAITS}", demand=demand) for _ in range(3)]
    for job_id in ids:
        await cluster.until_log(job_id, "ready")
    go(cluster)
    texts = [(await cluster.follow_to_end(job_id)).text.split()[0] for job_id in ids]
    assert texts == ["0", "0", "1"]


async def test_a_waiting_job_that_is_cancelled_never_starts(cluster: Cluster) -> None:
    running = await cluster.submit(WAITS, demand=FULL)
    await cluster.until_log(running, "ready")
    waiting = await cluster.submit('touch "${HOME%/*/home}/ran"', demand=FULL)
    state = await cluster.client.cancel(waiting, OWNER, limit=10)
    assert state.status is JobStatus.CANCELLED
    go(cluster)
    await cluster.follow_to_end(running)
    assert not (cluster.directory / "jobs" / "ran").exists()


async def test_i1_06_a_driver_that_dies_before_its_job_runs_frees_the_queue_at_once(cluster: Cluster) -> None:
    running = await cluster.submit(WAITS, demand=FULL)
    await cluster.until_log(running, "ready")
    waiting = await cluster.submit("echo next", demand=FULL)
    os.kill(cluster.driver_pid(running), signal.SIGSTOP)
    begin = time.monotonic()
    os.kill(cluster.driver_pid(running), signal.SIGKILL)
    assert (await cluster.follow_to_end(waiting)).text == "next\n"
    # The orphaned job has its grace period; a shell without traps needs none of it.
    assert time.monotonic() - begin < 1.0
    assert (await cluster.client.status(running)).status is JobStatus.FAILED_DRIVER


async def test_a_zygote_that_is_killed_is_replaced(cluster: Cluster) -> None:
    zygotes = [pid for pid, line in cluster.programs() if "zygote import" in line]
    for pid in zygotes:
        os.kill(pid, signal.SIGKILL)
    assert (await cluster.run("echo still there")).text == "still there\n"
    assert zygotes


async def test_what_waits_starts_and_what_runs_keeps_its_room_after_the_agent_was_killed(
    cluster: Cluster,
) -> None:
    demand = Demand(cpus=1, accelerators={"V100": 4})
    running = await cluster.submit(WAITS, demand=demand)
    await cluster.until_log(running, "ready")
    waiting = await cluster.submit("echo $CUDA_VISIBLE_DEVICES", demand=demand)
    small = await cluster.submit("echo small", demand=HALF)
    await cluster.follow_to_end(small)
    await cluster.kill_agent()
    await cluster.restart_agent()
    assert (await cluster.client.status(waiting)).status is JobStatus.PENDING
    health = (await cluster.client.health()).nodes[0]
    assert (health.cpus_taken, [device.taken for device in health.devices]) == (1.0, [1.0] * 4)
    go(cluster)
    assert (await cluster.follow_to_end(running)).end.status is JobStatus.SUCCEEDED
    assert (await cluster.follow_to_end(waiting)).text == "0,1,2,3\n"


async def test_k38_cancelling_some_leaves_their_neighbours_alone(cluster: Cluster) -> None:
    ids = [await cluster.submit("sleep 0.3; echo done", demand=Demand(cpus=0.5)) for _ in range(20)]
    await asyncio.gather(*(cluster.client.cancel(job_id, OWNER, limit=30) for job_id in ids[::3]))
    for number, job_id in enumerate(ids):
        end = (await cluster.follow_to_end(job_id)).end
        assert end.status is (JobStatus.CANCELLED if number % 3 == 0 else JobStatus.SUCCEEDED)


async def test_k30_many_clients_at_once_lose_nothing(cluster: Cluster) -> None:
    clients = [await cluster.infra.connect(cluster.handle) for _ in range(10)]

    async def work(number: int) -> list[str]:
        client, texts = clients[number % 10], []
        for _ in range(4):
            cluster_of_client = Cluster(cluster.infra, cluster.root, cluster.handle, client)
            job_id = await cluster_of_client.submit(f"echo {number}", demand=Demand(cpus=0.1))
            await asyncio.gather(client.status(job_id), client.jobs(all=True), client.health())
            texts.append((await cluster_of_client.follow_to_end(job_id)).text)
        return texts

    texts = await asyncio.gather(*map(work, range(20)))
    assert texts == [[f"{number}\n"] * 4 for number in range(20)]
    for client in clients:
        await client.close()


async def test_health_tells_what_is_taken(cluster: Cluster) -> None:
    job_id = await cluster.submit(WAITS, demand=Demand(cpus=1.5, memory=2, accelerators={"V100": 0.5}))
    await cluster.until_log(job_id, "ready")
    (node,) = (await cluster.client.health()).nodes
    assert (node.cpus, node.cpus_taken, node.memory, node.memory_taken) == (2.0, 1.5, 8.0, 2.0)
    assert [device.taken for device in node.devices] == [0.5, 0, 0, 0]
    assert node.alive
    assert node.disk_free > 0
    assert node.uptime > 0
    go(cluster)
    await cluster.follow_to_end(job_id)


async def test_jobs_are_listed_in_pages_the_newest_first(cluster: Cluster) -> None:
    ids = [await cluster.submit("true", demand=Demand(cpus=0.1)) for _ in range(5)]
    for job_id in ids:
        await cluster.follow_to_end(job_id)
    assert [state.job_id for state in await cluster.client.jobs(all=True)] == ids[::-1]
    assert await cluster.client.jobs() == []
