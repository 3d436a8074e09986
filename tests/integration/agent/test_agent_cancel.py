"""Cancelling: for real, and CANCELLED only when nothing is left. With control groups, and once more without."""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.process import cgroup, processes
from airflow_provider.runtime.client import JobStatus
from airflow_provider.runtime.infra import local
from airflow_provider.runtime.infra.base import ClusterHandle
from airflow_provider.runtime.infra.local import LocalInfra
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.clusters import ANY_CHOICE, OWNER, Cluster, assert_gone, eventually, quiet

pytestmark = pytest.mark.usefixtures("way")  # named, so that each test runs both ways


@pytest.fixture(scope="module", params=["groups", "markers"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How agents know what belongs to a job."""
    way: str = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cgroup.SWITCH, "on" if way == "groups" else "off")
        patch.setattr(local, "_PASSED", local._PASSED | {cgroup.SWITCH})
        if way == "groups":
            probe = cgroup.create(f"probe:{os.getpid()}")
            if probe is None:
                pytest.skip(
                    f"no control groups (version 2) that this user may write: {cgroup.find_hierarchy()}"
                )
            probe.remove()
        yield way


@pytest.fixture(scope="module")
def shared(
    way: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalInfra, Path, ClusterHandle]]:
    """A cluster for all tests of a module that only run jobs on it, of either way."""
    root = tmp_path_factory.mktemp(way) / "clusters"
    infra = LocalInfra(root)
    handle = asyncio.run(infra.provision("c1", ANY_CHOICE, quiet))
    yield infra, root, handle
    asyncio.run(infra.tear_down(handle.name))
    assert_gone(root, handle.name)
    assert cgroup.of_cluster(str(root / "c1")) == [], "control groups of jobs are left"


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


# Workers that ignore SIGTERM, in a session each, as distributed launchers start them; a daemon of each.
TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for rank in range(2):
    subprocess.Popen([sys.executable, "-c", (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "os.fork() or (os.setsid(), os.fork() and os._exit(0)); time.sleep(600)"
    )], start_new_session=True, env={} if rank else None)
print("ready", flush=True)
time.sleep(600)
"""


async def test_k12_nothing_of_a_tree_of_workers_survives(cluster: Cluster) -> None:
    before = set(processes.process_table())
    job_id = await cluster.start(
        "setsid sleep 600 & (sleep 600 & ); bash -c 'trap \"\" TERM; sleep 600' &\n"
        f"{sys.executable} -c {shlex.quote(TREE)}",
        grace_seconds=0.3,
    )
    driver = cluster.driver_pid(job_id)
    started = {pid for pid in processes.process_table() if pid not in before and _descends(pid, driver)}
    assert len(started) >= 7
    assert (await cluster.client.cancel(job_id, OWNER, limit=60)).status is JobStatus.CANCELLED
    assert started & set(processes.process_table()) <= {driver}
    assert job_processes(cluster, job_id) == set()


def _descends(pid: int, ancestor: int) -> bool:
    table = processes.process_table()
    while pid in table and pid != ancestor:
        pid = table[pid].parent
    return pid == ancestor


async def test_k12_what_a_killed_driver_left_is_found(cluster: Cluster, way: str) -> None:
    # Without control groups, a process without parent and environment is nobody's.
    clear = "env -i" if way == "groups" else ""
    job_id = await cluster.start(f"(setsid {clear} /bin/sleep 600 & echo $! > pid); echo ready; sleep 600")
    stray = int((cluster.job_directory(job_id).path / "home" / "sky_workdir" / "pid").read_text())
    os.kill(cluster.driver_pid(job_id), signal.SIGKILL)
    end = (await cluster.follow_to_end(job_id)).end
    assert end.status is JobStatus.FAILED_DRIVER
    assert stray not in processes.process_table()
    assert cgroup.find(cluster.job_directory(job_id).order().marker) is None


async def test_k38_of_many_jobs_only_the_cancelled_ones_are_cancelled(cluster: Cluster) -> None:
    jobs = [await cluster.submit(f"echo {n}; sleep 0.2; echo done", grace_seconds=0.2) for n in range(12)]
    cancelled = jobs[::3]
    for job_id in cancelled:
        # While others start, run and end.
        await cluster.client.cancel(job_id, OWNER, limit=60)
    ends = {job_id: (await cluster.follow_to_end(job_id)).end.status for job_id in jobs}
    for job_id in jobs:
        if job_id in cancelled:
            assert ends[job_id] in (JobStatus.CANCELLED, JobStatus.SUCCEEDED), "it may have been faster"
        else:
            assert ends[job_id] is JobStatus.SUCCEEDED
    assert ends[jobs[0]] is JobStatus.CANCELLED


async def test_a_job_has_a_group_only_while_it_lives(cluster: Cluster, way: str) -> None:
    job_id = await cluster.start("echo ready; sleep 600")
    marker = cluster.job_directory(job_id).order().marker
    assert (cgroup.find(marker) is not None) == (way == "groups")
    await cluster.client.cancel(job_id, OWNER, limit=60)
    await eventually(lambda: cgroup.find(marker) is None, "the group to go")
