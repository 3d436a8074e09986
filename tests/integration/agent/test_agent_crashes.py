"""Agents and drivers die at the worst moments; jobs, logs and exit codes do not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.client import ClientError, JobStatus, LinkLost
from airflow_provider.runtime.client.base import AgentFailed
from airflow_provider.runtime.infra.base import InfraError
from airflow_provider.runtime.infra.local import LocalInfra
from tests.integration.clusters import ANY_CHOICE, OWNER, Cluster, eventually, exited, quiet

pytestmark = pytest.mark.own_cluster

WAITING = "echo ready; until [ -e go ]; do sleep 0.01; done; seq 1000; printf end; exit 7"


def let_go(cluster: Cluster, job_id: int) -> None:
    (cluster.job_directory(job_id).path / "home" / "sky_workdir" / "go").touch()


EXPECTED = "ready\n" + "".join(f"{n}\n" for n in range(1, 1001)) + "end"


async def test_a_job_outlives_its_agent_and_the_next_one_knows_its_end(cluster: Cluster) -> None:
    job_id = await cluster.start(WAITING)
    await cluster.kill_agent()
    driver = cluster.driver_pid(job_id)
    let_go(cluster, job_id)
    await exited(driver)
    await cluster.restart_agent()
    seen = await cluster.follow_to_end(job_id)
    assert seen.text == EXPECTED
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED, (7,))


async def test_a_restarted_agent_follows_a_job_that_still_runs(cluster: Cluster) -> None:
    job_id = await cluster.start(WAITING)
    await cluster.kill_agent()
    await cluster.restart_agent()
    following = asyncio.create_task(cluster.follow_to_end(job_id))
    let_go(cluster, job_id)
    seen = await following
    assert (seen.text, seen.end.exit_codes) == (EXPECTED, (7,))


async def test_an_agent_told_to_end_leaves_its_jobs_running(cluster: Cluster) -> None:
    job_id = await cluster.start(WAITING)
    following = asyncio.create_task(cluster.follow_to_end(job_id))
    pid = cluster.agent_pid
    os.kill(pid, signal.SIGTERM)
    await exited(pid)
    with pytest.raises(LinkLost):
        await following
    assert cluster.driver_pid(job_id) in processes.process_table()
    await cluster.restart_agent()
    let_go(cluster, job_id)
    assert (await cluster.follow_to_end(job_id)).text == EXPECTED


async def test_a_driver_that_is_killed_is_told_and_its_job_is_ended(cluster: Cluster) -> None:
    job_id = await cluster.start("setsid sleep 100 & echo ready; sleep 100")
    following = asyncio.create_task(cluster.follow_to_end(job_id))
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    end = (await following).end
    assert (end.status, end.reason) == (JobStatus.FAILED_DRIVER, "the job's driver died")
    assert processes.marked(processes.JOB_MARKER, cluster.job_directory(job_id).order().marker) == set()


async def test_when_both_die_the_next_agent_ends_what_is_left(cluster: Cluster) -> None:
    job_id = await cluster.start("trap '' TERM; echo ready; while :; do sleep 100; done", grace_seconds=0.2)
    await cluster.kill_agent()
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    await cluster.restart_agent()
    assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.FAILED_DRIVER
    assert processes.marked(processes.JOB_MARKER, cluster.job_directory(job_id).order().marker) == set()


async def test_what_ran_before_a_boot_has_failed_and_says_why(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    await cluster.kill_agent()
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    table = sqlite3.connect(cluster.directory / "agent" / "jobs.db")
    table.execute("UPDATE jobs SET boot_id = 'the boot before'")
    table.commit()
    table.close()
    await cluster.restart_agent()
    end = (await cluster.follow_to_end(job_id)).end
    assert end.status is JobStatus.FAILED_DRIVER
    assert end.reason == "the machine was booted again while the job ran"
    assert (await cluster.run("echo next")).text == "next\n"


async def test_an_orphaned_job_does_not_hold_up_the_next_agent(cluster: Cluster) -> None:
    job_id = await cluster.start("trap '' TERM; echo ready; while :; do sleep 100; done", grace_seconds=600.0)
    await cluster.kill_agent()
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    await cluster.restart_agent()
    assert (await cluster.client.status(job_id)).status is JobStatus.RUNNING
    marker = cluster.job_directory(job_id).order().marker
    assert processes.marked(processes.JOB_MARKER, marker), "the agent answers before the orphans are ended"
    await asyncio.to_thread(cluster.infra.preempt, "c1")


async def test_agents_killed_at_any_moment_of_a_submit_run_each_job_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    chance = random.Random(4)
    ran = tmp_path / "ran"
    keys = [f"k{number}" for number in range(15)]
    for key in keys:
        killed_after = chance.choice([0.0, 0.001, 0.002, 0.004, 0.006, 0.01, 0.02, 0.05, 0.1])
        call = asyncio.create_task(cluster.submit(f"echo {key} >> {ran}", key=key))
        await asyncio.sleep(killed_after)
        await cluster.kill_agent()
        await asyncio.gather(call, return_exceptions=True)
        await cluster.restart_agent()
        again = await cluster.submit(f"echo {key} >> {ran}", key=key)
        if not isinstance(call.exception(), ClientError):
            assert call.result() == again
    for key in keys:
        job_id = await cluster.submit(f"echo {key} >> {ran}", key=key)
        assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.SUCCEEDED
    assert sorted(ran.read_text().split()) == sorted(keys)


async def test_drivers_killed_at_any_moment_leave_nothing_and_hold_up_nobody(cluster: Cluster) -> None:
    async def kill_after(seconds: float) -> JobStatus:
        job_id = await cluster.submit(
            "setsid sleep 1000 & sleep 0.1; kill $!", setup="true", grace_seconds=0.1
        )
        await asyncio.sleep(seconds)
        pid = cluster.job_directory(job_id).driver_pid()
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return (await cluster.follow_to_end(job_id)).end.status

    ends = await asyncio.gather(*(kill_after(number * 0.01) for number in range(30)))
    assert set(ends) <= {JobStatus.FAILED_DRIVER, JobStatus.SUCCEEDED}
    assert JobStatus.FAILED_DRIVER in ends
    assert not [line for _, line in cluster.programs() if "sleep 1000" in line]
    (node,) = (await cluster.client.health()).nodes
    assert node.cpus_taken == 0
    assert (await cluster.run("echo next")).text == "next\n"


async def test_a_submit_that_was_never_accepted_leaves_no_secrets(cluster: Cluster) -> None:
    job_id = await cluster.submit("true")
    await cluster.follow_to_end(job_id)
    await cluster.kill_agent()
    # As if the agent had died between its first and its second step.
    table = sqlite3.connect(cluster.directory / "agent" / "jobs.db")
    table.execute("UPDATE jobs SET status = 'INIT'")
    table.commit()
    table.close()
    cluster.job_directory(job_id).variables_file.write_text('{"TOKEN": "s3cret"}')
    await cluster.restart_agent()
    assert not list(cluster.directory.glob(f"jobs/{job_id}"))
    assert not list(cluster.directory.glob(f"sky_logs/{job_id}-*"))
    assert await cluster.submit("true") != job_id


async def test_of_two_agents_started_at_once_one_serves(cluster: Cluster) -> None:
    await cluster.kill_agent()
    await asyncio.gather(*(cluster.infra.restart_agent(cluster.handle) for _ in range(4)))
    await cluster.reconnect()
    assert await cluster.client.handshake() == cluster.handle.instance
    assert [pid for pid, line in cluster.programs() if "-m airflow_provider.runtime.agent" in line] == [
        cluster.agent_pid
    ]


async def test_a_socket_that_a_dead_agent_left_is_no_obstacle(cluster: Cluster) -> None:
    await cluster.kill_agent()
    assert (cluster.directory / "agent" / "agent.sock").is_socket()
    await cluster.restart_agent()
    assert (await cluster.run("echo on")).text == "on\n"


@pytest.mark.parametrize("text", ["", '{"status": "SUCC', '{"status": "SUPER"}', "[1]", "\0"])
async def test_a_spoilt_report_is_a_failed_driver(cluster: Cluster, text: str) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    directory = cluster.job_directory(job_id)
    directory.report_file.write_text(text)
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.FAILED_DRIVER
    assert (await cluster.run("echo on")).text == "on\n"


async def test_spoilt_files_of_a_job_do_not_keep_the_next_agent_from_starting(cluster: Cluster) -> None:
    jobs = [await cluster.start("echo ready; sleep 100") for _ in range(3)]
    await cluster.kill_agent()
    drivers = [cluster.driver_pid(job_id) for job_id in jobs]
    for driver in drivers:
        os.kill(driver, signal.SIGKILL)
        await exited(driver)
    for job_id, name in zip(jobs, ["report_file", "driver_file", "order_file"], strict=True):
        getattr(cluster.job_directory(job_id), name).write_text('{"tru')
    await cluster.restart_agent()
    for job_id in jobs:
        assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.FAILED_DRIVER
    assert not any("sleep" in line for _, line in cluster.programs())


async def test_a_job_whose_directory_is_gone_does_not_keep_the_next_agent_from_starting(
    cluster: Cluster,
) -> None:
    job_id = await cluster.start('echo ready; rm -rf "${HOME%/home}"; sleep 100')
    await eventually(lambda: not cluster.job_directory(job_id).path.exists(), "the directory to go")
    await cluster.kill_agent()
    await cluster.restart_agent()
    assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.FAILED_DRIVER


async def test_a_job_table_that_is_none_is_told(cluster: Cluster) -> None:
    await cluster.kill_agent()
    for path in (cluster.directory / "agent").glob("jobs.db*"):
        path.write_bytes(b"not a database, but long enough to look like one" * 100)
    with pytest.raises(InfraError, match=r"did not start: DamagedTable: .* move it away"):
        await cluster.infra.restart_agent(cluster.handle)


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
async def small_cluster(small_disk: Path) -> AsyncIterator[Cluster]:
    """A cluster on a disk of 2 MB."""
    root = small_disk / "clusters"
    infra = LocalInfra(root)
    handle = await infra.provision("c1", ANY_CHOICE, quiet)
    cluster = Cluster(infra, root, handle, await infra.connect(handle))
    yield cluster
    await cluster.remove()


def fill(path: Path) -> None:
    """Write to a file until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 1000)


async def test_a_job_that_fills_the_disk_still_tells_how_it_ended(small_cluster: Cluster) -> None:
    seen = await small_cluster.run("echo begin; head -c 5000000 /dev/zero > ~/big || exit 28")
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED, (28,))


async def test_a_full_disk_is_told_and_the_agent_goes_on_when_there_is_room(small_cluster: Cluster) -> None:
    big = small_cluster.directory / "big"
    fill(big)
    with pytest.raises(AgentFailed, match=r"RESOURCE_EXHAUSTED|full|space"):
        await small_cluster.submit("echo on", key="k")
    assert await small_cluster.client.handshake() == small_cluster.handle.instance
    big.unlink()
    job_id = await small_cluster.submit("echo on", key="k")
    assert (await small_cluster.follow_to_end(job_id)).text == "on\n"


async def test_an_agent_cannot_be_started_in_a_cluster_that_was_removed(
    cluster: Cluster, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    done = subprocess.run(  # noqa: ASYNC221
        [
            *(sys.executable, "-m", "airflow_provider.runtime.agent", "--disposable"),
            *("--root", str(gone), "--instance", "i", "--lease", "5"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert not gone.exists()
    assert (
        await cluster.client.cancel(await cluster.submit("sleep 9"), OWNER, limit=30)
    ).status is JobStatus.CANCELLED
