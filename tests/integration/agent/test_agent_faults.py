"""What the agent makes of a locked or full disk, a long history, and clients that vanish."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider.runtime.agent.jobs.jobdir import Order
from airflow_provider.runtime.agent.jobs.jobs import Jobs
from airflow_provider.runtime.agent.jobs.placement import Demand, Node
from airflow_provider.runtime.agent.jobs.table import NewJob
from airflow_provider.runtime.agent.lease import Lease
from airflow_provider.runtime.client import AgentFailed, ClientError, JobStatus
from airflow_provider.runtime.infra.local import LocalInfra
from tests.integration.clusters import ANY_CHOICE, OWNER, Cluster, eventually, quiet

pytestmark = pytest.mark.own_cluster


@pytest.fixture
def locked(cluster: Cluster) -> Iterator[None]:
    """Somebody else holds the lock of the job table."""
    other = sqlite3.connect(cluster.directory / "agent" / "jobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.close()


async def test_k30_a_locked_table_holds_up_no_reader(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    job_id = await cluster.start("echo ready; read -r _ < <(sleep 100)")
    request.getfixturevalue("locked")
    begin = time.monotonic()
    assert (await cluster.client.status(job_id)).status is JobStatus.RUNNING
    assert time.monotonic() - begin < 1


async def test_k30_a_job_that_ends_while_the_table_is_locked_is_known_and_stored_later(
    cluster: Cluster,
) -> None:
    job_id = await cluster.start("echo ready; until [ -e go ]; do sleep 0.05; done")
    other = sqlite3.connect(cluster.directory / "agent" / "jobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    (cluster.directory / "jobs" / str(job_id) / "home" / "sky_workdir" / "go").touch()
    # The table is waited for, ten seconds long; then the one who follows hears of the end all the same.
    assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.SUCCEEDED
    other.close()
    stored = sqlite3.connect(f"file:{cluster.directory}/agent/jobs.db?mode=ro", uri=True)

    def status() -> str:
        found: tuple[str] = stored.execute("SELECT status FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return found[0]

    await eventually(lambda: status() == "SUCCEEDED", "the end to be stored")
    stored.close()


@pytest.mark.usefixtures("locked")
async def test_k30_a_submit_that_cannot_be_stored_is_unavailable_and_leaves_nothing(cluster: Cluster) -> None:
    with pytest.raises(ClientError):
        await cluster.submit("true", key="k")
    assert not (cluster.directory / "jobs").exists() or not list((cluster.directory / "jobs").iterdir())


@pytest.fixture
async def small_disk(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster on a disk of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    root = tmp_path / "disk"
    root.mkdir()
    await _run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(root))
    infra = LocalInfra(root)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    cluster = Cluster(infra, root, handle, await infra.connect(handle))
    try:
        yield cluster
        await cluster.remove()
    finally:
        await _run("umount", "-l", str(root))


async def _run(*command: str) -> None:
    assert await _code(*command) == 0


async def _code(*command: str) -> int:
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    return await process.wait()


async def test_a_job_that_fills_the_disk_ends_and_the_next_one_runs(small_disk: Cluster) -> None:
    seen = await small_disk.run("echo begin; head -c 100M /dev/zero > full; echo status $?; rm full")
    assert seen.end.status is JobStatus.SUCCEEDED
    assert "begin" in seen.text
    assert (await small_disk.run("echo after")).text == "after\n"


async def test_a_submit_on_a_full_disk_is_refused_with_the_reason_and_works_when_there_is_room(
    small_disk: Cluster,
) -> None:
    filler = small_disk.directory / "filler"
    assert await _code("bash", "-c", f"head -c 8M /dev/zero > '{filler}'") != 0
    with pytest.raises(AgentFailed, match=r"RESOURCE_EXHAUSTED.*(No space left|full)"):
        await small_disk.submit("true", envs={"LARGE": "x" * 100_000})
    filler.unlink()
    assert (await small_disk.run("echo after")).text == "after\n"


async def test_ten_thousand_ended_jobs_cost_neither_memory_nor_time(cluster: Cluster) -> None:
    await cluster.kill_agent()
    table = sqlite3.connect(cluster.directory / "agent" / "jobs.db")
    table.executemany(
        "INSERT INTO jobs (key, name, marker, status, owner_id, generation, grace_seconds, submitted_at, output, logs)"
        " VALUES (?, 'old', 'm', 'SUCCEEDED', 'o', 1, 5, 1, ?, ?)",
        [(f"old-{number}", '"' + "x" * 2000 + '"', f"{number}-old") for number in range(1, 10_001)],
    )
    table.commit()
    table.close()
    begin = time.monotonic()
    await cluster.restart_agent()
    assert time.monotonic() - begin < 3
    begin = time.monotonic()
    assert (await cluster.run("echo new")).text == "new\n"
    assert time.monotonic() - begin < 1
    assert len(await cluster.client.jobs(all=True)) == 10_001
    assert (await cluster.client.status(5_000)).status is JobStatus.SUCCEEDED
    assert psutil.Process(cluster.agent_pid).memory_info().rss < 80e6


async def test_clients_that_vanish_in_mid_stream_leave_nothing_in_the_agent(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; while :; do echo line; sleep 0.01; done")
    agent = psutil.Process(cluster.agent_pid)
    before = agent.num_fds()
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from airflow_provider.runtime.client import Owner\n"
        "from airflow_provider.runtime.client.agent import AgentClient\n"
        "from airflow_provider.runtime.transport.channel import UnixChannel\n"
        "async def main():\n"
        "    client = AgentClient(UnixChannel(Path(sys.argv[1]), 'agent.sock'))\n"
        "    streams = [await client.follow(int(sys.argv[2]), Owner('task-instance', 1), offset=0) for _ in range(20)]\n"
        "    await asyncio.gather(*(anext(aiter(stream)) for stream in streams))\n"
        "    print('following', flush=True)\n"
        "    await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(cluster.directory / "agent"), str(job_id)),
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"following\n"
    assert agent.num_fds() >= before + 20
    client.kill()
    await client.wait()
    await eventually(lambda: agent.num_fds() <= before, "the agent to let go of the streams")
    await cluster.client.cancel(job_id, OWNER, limit=30)


@pytest.mark.parametrize("jump", [86_400, -86_400])
async def test_a_clock_that_jumps_ends_neither_a_lease_nor_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    (tmp_path / "agent").mkdir()
    jobs = Jobs(root=tmp_path, cluster=str(tmp_path), private_home=True, capacity=Node(2, 8))
    await jobs.load()
    lease = Lease(60.0)
    added = await jobs.add(NewJob(key="added", name="-", run_timestamp="t"), demand=Demand())
    job, _ = await jobs.submit(
        NewJob(key="k", name="n", owner_id="o"),
        demand=Demand(),
        order=lambda marker, home: Order(marker, "", "sleep 0.3; echo done", home, [], 5.0),
        variables={},
    )
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump)
    await asyncio.wait_for(jobs.ended(job), 10)
    assert job.row.status == "SUCCEEDED"
    assert added.row.status == "INIT"
    assert lease.left() > 50
    await jobs.cancel(added)
    await jobs.close()
