"""Jobs that get in the way: of their driver, of their files, of each other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import grpc.aio
import pytest

from airflow_provider.runtime.client import JobState, JobStatus
from airflow_provider.runtime.client.base import Demand
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import jobs_pb2, rpcs
from tests.integration.clusters import OWNER, Cluster, eventually

FOREVER = "echo ready; while :; do sleep 100; done"


def jobs_that_run(cluster: Cluster) -> list[str]:
    return [line for _, line in cluster.programs() if "run.sh" in line or "sleep 100" in line]


async def cancel_at_once(cluster: Cluster, job_id: int, *, limit: float) -> pb.JobState:
    """Cancel without a grace period."""
    request = pb.CancelRequest(
        job_id=job_id, owner=pb.Owner(id=OWNER.id, generation=OWNER.generation), grace_seconds=0
    )
    return await rpcs.CANCEL.unary(cluster.client._channel)(request, timeout=limit)


@pytest.mark.parametrize("how", ["each", "all"])
async def test_a_queued_job_that_is_cancelled_while_room_is_made_never_starts(
    node_with_gpus: Cluster, how: str
) -> None:
    cluster = node_with_gpus
    for _ in range(3):
        ids = [await cluster.submit(FOREVER, demand=Demand(cpus=0.5), grace_seconds=0.1) for _ in range(16)]
        if how == "all":
            request = jobs_pb2.CancelJobsRequest(cancel_all=True)
            await rpcs.CANCEL_JOBS.unary(cluster.client._channel)(request, timeout=30)
        else:
            await asyncio.gather(*(cluster.client.cancel(job_id, OWNER, limit=30) for job_id in ids))
        for job_id in ids:
            assert (await cluster.client.status(job_id)).status is JobStatus.CANCELLED
        await eventually(lambda: jobs_that_run(cluster) == [], "the jobs to be gone")
    (node,) = (await cluster.client.health()).nodes
    assert node.cpus_taken == 0


async def test_secrets_of_a_job_that_never_started_are_gone(node_with_gpus: Cluster) -> None:
    running = await node_with_gpus.submit(FOREVER, demand=Demand(cpus=2), grace_seconds=0.1)
    waiting = await node_with_gpus.submit("true", secrets={"TOKEN": "s3cret"}, demand=Demand(cpus=2))
    file = node_with_gpus.job_directory(waiting).variables_file
    assert "s3cret" in file.read_text()
    await node_with_gpus.client.cancel(waiting, OWNER, limit=10)
    await eventually(lambda: not file.exists(), "the variables to be gone")
    await node_with_gpus.client.cancel(running, OWNER, limit=10)


@pytest.mark.own_cluster
async def test_a_waiting_job_that_does_not_fit_any_more_fails_and_lets_the_others_run(
    node_with_gpus: Cluster,
) -> None:
    cluster = node_with_gpus
    running = await cluster.submit(FOREVER, demand=Demand(cpus=2), grace_seconds=0.1)
    large = await cluster.submit("true", demand=Demand(cpus=2))
    small = await cluster.submit("echo small", demand=Demand(cpus=1))
    await cluster.kill_agent()
    (cluster.directory / "agent" / "node.json").write_text(json.dumps({"cpus": 1, "memory": 8}))
    await cluster.restart_agent()
    end = (await cluster.follow_to_end(large)).end
    assert end.status is JobStatus.FAILED_DRIVER
    assert end.reason == "the job can never run on this node: cpus: 2 wanted, the node has 1"
    await cluster.client.cancel(running, OWNER, limit=30)
    assert (await cluster.follow_to_end(small)).text == "small\n"


async def test_a_cancel_without_grace_overtakes_one_with(cluster: Cluster) -> None:
    job_id = await cluster.start(f"trap '' TERM; {FOREVER}", grace_seconds=300.0)
    patient = asyncio.create_task(cluster.client.cancel(job_id, OWNER, limit=60))
    await cluster.until_status(job_id, JobStatus.CANCELLING)
    begin = time.monotonic()
    assert (await cancel_at_once(cluster, job_id, limit=20)).status == pb.CANCELLED
    assert time.monotonic() - begin < 5
    assert (await patient).status is JobStatus.CANCELLED


async def test_a_cancel_without_grace_hurries_the_sweep_after_a_dead_driver(cluster: Cluster) -> None:
    job_id = await cluster.start(f"trap '' TERM; {FOREVER}", grace_seconds=300.0)
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    begin = time.monotonic()
    assert (await cancel_at_once(cluster, job_id, limit=20)).status == pb.CANCELLED
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("grace", [0.0, None])
async def test_a_job_that_stops_its_driver_is_ended(cluster: Cluster, grace: float | None) -> None:
    job_id = await cluster.start(f"kill -STOP $PPID; {FOREVER}", grace_seconds=0.2)
    if grace is None:
        assert (await cluster.client.cancel(job_id, OWNER, limit=20)).status is JobStatus.CANCELLED
    else:
        assert (await cancel_at_once(cluster, job_id, limit=20)).status == pb.CANCELLED
    assert jobs_that_run(cluster) == []


@pytest.mark.parametrize("file", ["report.json", "driver.json", "driver.log", "run.log"])
async def test_a_job_that_puts_a_fifo_in_the_place_of_a_file_holds_up_nobody(
    cluster: Cluster, file: str
) -> None:
    place = (
        "${HOME%/*/home}/../sky_logs/$SKYPILOT_INTERNAL_JOB_ID-test" if file == "run.log" else "${HOME%/home}"
    )
    job_id = await cluster.start(
        f'echo ready; rm -f "{place}/{file}"; mkfifo "{place}/{file}"; touch ~/made; {FOREVER}',
        grace_seconds=0.2,
    )
    home = cluster.directory / "jobs" / str(job_id) / "home"
    await eventually((home / "made").exists, "the FIFO to be there")
    stream = await cluster.follow(job_id)
    assert isinstance(await anext(aiter(stream)), JobState)
    await stream.close()
    queue = await rpcs.GET_JOB_QUEUE.unary(cluster.client._channel)(jobs_pb2.GetJobQueueRequest(), timeout=10)
    assert [job.job_id for job in queue.jobs] == [job_id]
    assert (await cancel_at_once(cluster, job_id, limit=20)).status == pb.CANCELLED
    assert (await cluster.run("echo next")).text == "next\n"


@pytest.mark.parametrize(
    "report",
    [
        '{"status": "SUCCEEDED", "exit_codes": [0], "reason": "", "output": null, "started_at": 1, "ended_at": 1}',
        '{"status": "FAILED", "exit_codes": [1e99], "reason": "", "output": null, "started_at": 1, "ended_at": 1}',
        '{"status": "FAILED", "exit_codes": [4294967296], "reason": "", "output": null, "started_at": 1, "ended_at": 1}',
        '{"status": "FAILED", "exit_codes": [1], "reason": "\\ud800", "output": null, "started_at": 1, "ended_at": 1}',
        '{"status": "RUNNING", "exit_codes": [], "reason": "", "output": null, "started_at": NaN, "ended_at": 0}',
    ],
    ids=["forged end", "no integer", "too large", "no text", "no number"],
)
async def test_a_report_that_is_not_the_drivers_ends_no_job(cluster: Cluster, report: str) -> None:
    job_id = await cluster.start(FOREVER, grace_seconds=0.2)
    file = cluster.job_directory(job_id).report_file
    part = file.with_name("forged")
    part.write_text(report)
    part.replace(file)
    health = await rpcs.STATUS.unary(cluster.client._channel)(pb.StatusRequest(job_id=job_id), timeout=10)
    assert health.status == pb.RUNNING
    assert (await cluster.client.cancel(job_id, OWNER, limit=20)).status is JobStatus.CANCELLED
    assert jobs_that_run(cluster) == []


async def test_a_job_that_takes_its_drivers_lock_is_ended_all_the_same(cluster: Cluster) -> None:
    job_id = await cluster.start(
        f'(flock 9; {FOREVER}) 9<>"${{HOME%/home}}/driver.lock" & echo ready; wait', grace_seconds=0.2
    )
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.FAILED_DRIVER
    assert jobs_that_run(cluster) == []


async def test_who_follows_a_job_of_addjob_does_not_take_it_away(cluster: Cluster) -> None:
    channel: grpc.aio.Channel = cluster.client._channel
    added = await rpcs.ADD_JOB.unary(channel)(jobs_pb2.AddJobRequest(job_name="p"), timeout=10)
    stream = await cluster.follow(added.job_id)
    assert isinstance(await anext(aiter(stream)), JobState)
    request = jobs_pb2.QueueJobRequest(job_id=added.job_id, codegen="print('ran')")
    await rpcs.QUEUE_JOB.unary(channel)(request, timeout=10)
    assert (await cluster.follow_to_end(added.job_id)).text == "ran\n"
    await stream.close()
