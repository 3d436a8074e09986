"""Cancelling: for real, and CANCELLED only when nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from airflow_provider.runtime.agent import processes
from airflow_provider.runtime.client import JobStatus
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.clusters import OWNER, Cluster

STUBBORN = "trap '' TERM; (setsid bash -c \"trap '' TERM; while :; do sleep 100; done\" &); echo ready; while :; do sleep 100; done"


def job_processes(cluster: Cluster, job_id: int) -> set[int]:
    marker = cluster.job_directory(job_id).order().marker
    return processes.marked(processes.JOB_MARKER, marker)


async def cancel_at_once(cluster: Cluster, job_id: int) -> pb.JobState:
    request = pb.CancelRequest(
        job_id=job_id, owner=pb.Owner(id="task-instance", generation=1), grace_seconds=0
    )
    return await rpcs.CANCEL.unary(cluster.client._channel)(request, timeout=30)


async def test_a_job_that_heeds_sigterm_ends_at_once(cluster: Cluster) -> None:
    job_id = await cluster.start(
        "trap 'echo saved; exit' TERM; echo ready; while :; do sleep 0.01; done", grace_seconds=600.0
    )
    state = await cluster.client.cancel(job_id, OWNER, limit=30)
    assert (state.status, state.reason) == (JobStatus.CANCELLED, "cancelled")
    assert (await cluster.follow_to_end(job_id)).text.endswith("saved\n")


async def test_a_job_that_ignores_sigterm_is_killed_after_its_grace(cluster: Cluster) -> None:
    job_id = await cluster.start(
        f"trap 'echo asked' TERM; ({STUBBORN.replace('ready', 'and')}) & echo ready; while :; do sleep 0.01; done",
        grace_seconds=1.5,
    )
    state = await cluster.client.cancel(job_id, OWNER, limit=30)
    assert state.status is JobStatus.CANCELLED
    assert "asked" in (await cluster.follow_to_end(job_id)).text, "it was asked first, and had time to answer"
    assert job_processes(cluster, job_id) == set()


async def test_a_cancel_without_grace_kills_at_once(cluster: Cluster) -> None:
    job_id = await cluster.start(STUBBORN, grace_seconds=600.0)
    state = await cancel_at_once(cluster, job_id)
    assert state.status == pb.CANCELLED
    assert job_processes(cluster, job_id) == set()


async def test_a_cancel_without_grace_overtakes_one_with_grace(cluster: Cluster) -> None:
    job_id = await cluster.start(STUBBORN, grace_seconds=600.0)
    slow = asyncio.create_task(cluster.client.cancel(job_id, OWNER, limit=60))
    await cluster.until_status(job_id, JobStatus.CANCELLING)
    assert (await cancel_at_once(cluster, job_id)).status == pb.CANCELLED
    assert (await slow).status is JobStatus.CANCELLED


async def test_a_job_that_has_only_just_been_submitted_can_be_cancelled(cluster: Cluster) -> None:
    for _ in range(5):
        job_id = await cluster.submit("echo started; sleep 100", grace_seconds=0.2)
        assert (await cluster.client.cancel(job_id, OWNER, limit=30)).status is JobStatus.CANCELLED
        assert job_processes(cluster, job_id) == set()


async def test_a_finished_job_stays_what_it_is(cluster: Cluster) -> None:
    seen = await cluster.run("exit 3")
    state = await cluster.client.cancel(seen.end.job_id, OWNER, limit=10)
    assert state == seen.end
    assert state.status is JobStatus.FAILED


async def test_cancelling_again_is_no_error(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    states = await asyncio.gather(*(cluster.client.cancel(job_id, OWNER, limit=30) for _ in range(5)))
    assert {state.status for state in states} == {JobStatus.CANCELLED}
    assert (await cluster.client.cancel(job_id, OWNER, limit=30)) == states[0]


async def test_a_cancel_whose_caller_gave_up_goes_on(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    for _ in range(3):
        call = asyncio.create_task(cluster.client.cancel(job_id, OWNER, limit=30))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert (await cluster.client.cancel(job_id, OWNER, limit=30)).status is JobStatus.CANCELLED


async def test_a_cancel_and_the_natural_end_agree_on_one_end(cluster: Cluster) -> None:
    chance = random.Random(3)
    for _ in range(12):
        job_id = await cluster.submit("sleep 0.03; echo '1' > $TASK_OUTPUT_FILE")
        await asyncio.sleep(chance.uniform(0.05, 0.25))
        state = await cluster.client.cancel(job_id, OWNER, limit=30)
        assert state.status in (JobStatus.SUCCEEDED, JobStatus.CANCELLED)
        assert (state.output is not None) == (state.status is JobStatus.SUCCEEDED)
        assert await cluster.client.status(job_id) == state
        assert (await cluster.follow_to_end(job_id)).end == state


async def test_the_stream_tells_of_the_cancel_and_ends(cluster: Cluster) -> None:
    job_id = await cluster.start(STUBBORN, grace_seconds=0.2)
    following = asyncio.create_task(cluster.follow_to_end(job_id))
    await cluster.client.cancel(job_id, OWNER, limit=30)
    seen = await asyncio.wait_for(following, 10)
    assert [state.status for state in seen.states][-2:] == [JobStatus.CANCELLING, JobStatus.CANCELLED]


async def test_neighbours_on_the_cluster_go_on(cluster: Cluster) -> None:
    other = await cluster.start("echo ready; until [ -e go ]; do sleep 0.01; done")
    job_id = await cluster.start("echo ready; sleep 100")
    await cluster.client.cancel(job_id, OWNER, limit=30)
    (cluster.job_directory(other).path / "home" / "sky_workdir" / "go").touch()
    assert (await cluster.follow_to_end(other)).end.status is JobStatus.SUCCEEDED


@pytest.mark.own_cluster
async def test_a_cancel_begun_under_a_dead_agent_is_finished_by_the_next(cluster: Cluster) -> None:
    job_id = await cluster.start(STUBBORN, grace_seconds=1.0)
    call = asyncio.create_task(cluster.client.cancel(job_id, OWNER, limit=30))
    await cluster.until_status(job_id, JobStatus.CANCELLING)
    await cluster.kill_agent()
    await asyncio.gather(call, return_exceptions=True)
    await cluster.restart_agent()
    assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.CANCELLED
    assert job_processes(cluster, job_id) == set()


async def test_a_driver_told_to_end_by_somebody_else_is_no_cancel(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    os.kill(cluster.driver_pid(job_id), signal.SIGTERM)
    assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.FAILED_DRIVER


async def test_a_storm_of_forks_is_ended(cluster: Cluster) -> None:
    job_id = await cluster.start(
        "trap '' TERM; echo ready; while :; do sleep 100 & sleep 0.002; done", grace_seconds=0.1
    )
    assert (await cluster.client.cancel(job_id, OWNER, limit=60)).status is JobStatus.CANCELLED
    assert job_processes(cluster, job_id) == set()
