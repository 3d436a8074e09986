"""An agent that has run very many jobs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.table import JobTable
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.agent.jobs_wire import FAILED, SUCCEEDED, Wire
from tests.integration.clusters import Cluster

COUNT = 20_000


@pytest.fixture
async def wire(cluster: Cluster) -> Wire:
    """An agent whose table is full of jobs that have ended."""
    await cluster.kill_agent()
    fill(cluster.directory / "agent" / "jobs.db")
    await cluster.restart_agent()
    return Wire(cluster)


def fill(path: Path) -> None:
    table = JobTable(path)
    with table.connection:
        table.connection.execute("BEGIN")
        table.connection.executemany(
            "INSERT INTO jobs (key, name, marker, status, owner_id, generation, grace_seconds, submitted_at, ended_at,"
            " username, run_timestamp, resources, logs) VALUES (?, ?, '', ?, '', 0, 5, ?, ?, 'me', ?, ?, ?)",
            (
                (
                    f"key {number}",
                    f"a job with a name of some length, number {number}",
                    "FAILED" if number % 10 == 0 else "SUCCEEDED",
                    float(number),
                    number + 0.5,
                    f"sky-2026-11-30-{number:06}",
                    "1x[CPU:0.5]",
                    f"{number}-a-job-with-a-name-of-some-length",
                )
                for number in range(1, COUNT + 1)
            ),
        )
    table.close()


@pytest.mark.own_cluster
async def test_k84_a_queue_of_20000_jobs_is_shown_and_keeps_nobody_waiting(wire: Wire) -> None:
    """More than the 4 MB that a message has by default."""
    listing = asyncio.ensure_future(wire.jobs())
    slowest = 0.0
    while not listing.done():
        begin = time.monotonic()
        assert await wire.status(10) == FAILED
        slowest = max(slowest, time.monotonic() - begin)
    jobs = await listing
    assert [job.job_id for job in jobs] == list(range(COUNT, 0, -1))
    assert sum(job.ByteSize() for job in jobs) > 4 << 20
    assert (jobs[0].submitted_at, jobs[0].end_at, jobs[0].status) == (COUNT, COUNT + 0.5, FAILED)
    assert slowest < 1
    assert await wire.jobs(all_jobs=False) == []


@pytest.mark.own_cluster
async def test_many_jobs_are_asked_for_at_once(wire: Wire) -> None:
    ids = range(1, COUNT + 1)
    statuses = (
        await rpcs.GET_JOB_STATUS.unary(wire.channel)(pb.GetJobStatusRequest(job_ids=ids), timeout=30)
    ).job_statuses
    assert len(statuses) == COUNT
    assert sum(status == FAILED for status in statuses.values()) == COUNT // 10
    request = pb.GetLogDirsForJobsRequest(job_ids=ids)
    logs = (await rpcs.GET_LOG_DIRS_FOR_JOBS.unary(wire.channel)(request, timeout=30)).job_log_dirs
    assert logs[7] == f"{wire.cluster.directory}/sky_logs/7-a-job-with-a-name-of-some-length"
    begin = time.monotonic()
    job_id = await wire.program("")
    assert job_id == COUNT + 1
    assert await wire.ended(job_id) == SUCCEEDED
    assert time.monotonic() - begin < 3, "as fast as with few jobs"
