"""Our client and a real skylet: lost answers, cut streams, drivers that die, the same submitted twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import grpc
import psutil
import pytest

from airflow_provider.runtime.client import AgentFailed, JobStatus
from airflow_provider.runtime.client.choose import client_for
from airflow_provider.runtime.client.skylet import SkyletClient
from airflow_provider.runtime.transport.tcp import TcpChannel
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.interop.between import Between
from tests.interop.jobs import OWNER, alive, eventually, follow, job, new_key, run, running
from tests.interop.peer import Skylet


def program_processes(skylet: Skylet, job_id: int) -> list[int]:
    """Return the pids of a job's driver program: the keeper, and its child, the runner."""
    found = []
    for pid in skylet.processes():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"/managed_job_%d\0" % job_id):
                found.append(pid)
    return sorted(found)


async def test_k53_the_same_key_five_times_at_once_is_one_job_that_runs_once(skylet: Skylet) -> None:
    count = skylet.home / "count"
    clients = [await client_for(TcpChannel(skylet.port), instance=f"cluster {n}") for n in range(5)]
    assert all(isinstance(client, SkyletClient) for client in clients)
    key, request = new_key(), job(f"echo once >> {count}; sleep 0.5")
    ids = await asyncio.gather(*(client.submit(key, OWNER, request) for client in clients))
    assert len(set(ids)) == 1
    assert (await clients[0].handshake()).startswith("cluster ")
    assert {await client.handshake() for client in clients} == {await clients[0].handshake()}
    assert await clients[0].submit(key, OWNER, request) == ids[0]
    assert (await follow(clients[0], ids[0])).end.status is JobStatus.SUCCEEDED
    assert await clients[1].submit(key, OWNER, request) == ids[0], "a job that has ended runs again"
    assert count.read_text() == "once\n"
    for client in clients:
        await client.close()


async def test_i1_04_i1_5_i1_20_after_lost_answers_a_job_is_there_once_and_its_log_comes_once_through_cuts(
    skylet: Skylet, between: Between, disturbed: SkyletClient, client: SkyletClient
) -> None:
    between.lost_answers.update({"AddJob": 1, "QueueJob": 1})
    between.lost_calls.update({"GetJobQueue": 2, "GetLogDirsForJobs": 1})
    between.cut_after = 3
    text = (
        "for n in 1 2 3 4 5 6 7 8; do for i in 1 2 3; do echo same; done; printf '%s%%\\r' $n; echo $n; "
        "sleep 0.4; done; printf 'half a '; sleep 0.3; printf line"
    )
    job_id = await disturbed.submit(new_key(), OWNER, job(text))
    assert (between.calls["AddJob"], between.calls["QueueJob"]) == (1, 1)
    following = asyncio.create_task(follow(disturbed, job_id))
    untroubled = await follow(client, job_id)
    between.cut_after = 0
    seen = await following
    expected = "".join("same\n" * 3 + f"{n}%\r{n}\n" for n in range(1, 9)) + "half a line\n"
    assert untroubled.text == expected
    assert seen.text.replace("\r", "\n") == expected.replace("\r", "\n")
    assert between.calls["TailLogs"] > 1, "nothing was cut"
    assert seen.end == untroubled.end
    assert seen.end.status is JobStatus.SUCCEEDED


async def test_k53_i1_25_a_job_that_fails_while_its_follower_is_cut_off_has_failed(
    between: Between, disturbed: SkyletClient
) -> None:
    between.lost_calls.update({"TailLogs": 6})
    job_id = await disturbed.submit(new_key(), OWNER, job("echo never", setup="echo all of it; exit 137"))
    seen = await follow(disturbed, job_id)
    assert seen.text == "all of it\n"
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED_SETUP, (137,))
    codes = await rpcs.GET_JOB_EXIT_CODES.unary(disturbed._channel)(pb.GetJobExitCodesRequest(job_id=job_id))
    assert list(codes.exit_codes) == [137], "what SkyPilot's own client sees"


async def test_a_call_that_did_not_arrive_is_made_again_and_one_that_comes_late_does_nothing(
    skylet: Skylet, between: Between, disturbed: SkyletClient
) -> None:
    count = skylet.home / "count-late"
    between.lost_calls.update({"AddJob": 1, "QueueJob": 1})
    key, request = (
        new_key(),
        job(f"echo once >> {count}; until [ -e {count.with_suffix('.go')} ]; do sleep 0.05; done; echo end"),
    )
    job_id = await disturbed.submit(key, OWNER, request)
    assert (between.calls["AddJob"], between.calls["QueueJob"]) == (2, 2)
    await eventually(count.exists, "the job to run")
    await running(disturbed, job_id)
    # The first call arrives after all: the skylet starts the program a second time, which waits for the first one.
    await between.repeat("QueueJob")
    await eventually(lambda: len(program_processes(skylet, job_id)) == 3, "the second program")
    count.with_suffix(".go").touch()
    seen = await follow(disturbed, job_id)
    assert seen.text == "end\n"
    assert seen.end.status is JobStatus.SUCCEEDED
    assert count.read_text() == "once\n"
    await eventually(lambda: not program_processes(skylet, job_id), "the end of both programs", 60)
    assert (await disturbed.status(job_id)) == seen.end


async def test_k52_unknown_and_internal_errors_are_failures_and_no_sign_of_another_agent(
    between: Between, disturbed: SkyletClient
) -> None:
    between.failing = {"GetJobQueue": grpc.StatusCode.UNKNOWN}
    with pytest.raises(AgentFailed, match="GetJobQueue: UNKNOWN as the test wants it"):
        await disturbed.submit(new_key(), OWNER, job("true"))
    assert between.calls == {"GetJobQueue": 1}
    between.failing = {"Handshake": grpc.StatusCode.INTERNAL}
    channel = TcpChannel(between.port)
    with pytest.raises(AgentFailed, match="handshake: INTERNAL"):
        await client_for(channel)
    await channel.close()


async def test_i1_06_a_driver_that_dies_is_noticed_is_no_success_and_leaves_nothing(
    skylet: Skylet, client: SkyletClient
) -> None:
    job_id = await client.submit(new_key(), OWNER, job("echo $$; printf half; sleep 1000"))
    shell = int((await follow(client, job_id, until="\n")).text)
    await running(client, job_id)
    keeper, _ = program_processes(skylet, job_id)
    os.kill(keeper, signal.SIGKILL)
    seen = await follow(client, job_id)
    assert seen.end.status is JobStatus.FAILED_DRIVER
    assert not alive(shell)
    assert seen.text.startswith(f"{shell}\nhalf")
    assert seen.text.endswith("\n")


async def test_i1_06_a_driver_that_dies_whole_while_its_job_waits_is_noticed_and_the_next_job_starts(
    skylet: Skylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider.runtime.client.skylet._DOUBT_SECONDS", 2.0)
    job_id = await client.submit(new_key(), OWNER, job("printf half; sleep 1000"))
    behind = await client.submit(new_key(), OWNER, job("echo after all"))
    log = skylet.home / "sky_logs" / f"{job_id}-test" / "run.log"
    await eventually(lambda: log.exists() and log.read_text().endswith("half"), "the job to begin")
    pids = program_processes(skylet, job_id)
    below = {process.pid for pid in pids for process in psutil.Process(pid).children(recursive=True)}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    begun = asyncio.get_running_loop().time()
    seen = await follow(client, job_id)
    assert seen.text == "half\n"
    assert seen.end.status is JobStatus.FAILED_DRIVER
    assert JobStatus.CANCELLING in {state.status for state in seen.states}
    assert seen.end.reason == "the job's driver died"
    assert asyncio.get_running_loop().time() - begun < 40
    assert not any(map(alive, below)), "nobody was left to end these but the janitor"
    assert (await follow(client, behind)).end.status is JobStatus.SUCCEEDED


async def test_i1_10_cancels_before_the_driver_has_begun_are_answered_and_leave_no_secret(
    skylet: Skylet, client: SkyletClient
) -> None:
    ids = [
        await client.submit(new_key(), OWNER, job("sleep 1000", secrets={"TOKEN": "sesame"}))
        for _ in range(3)
    ]
    states = [await client.cancel(job_id, OWNER, limit=40) for job_id in reversed(ids)]
    assert {state.status for state in states} == {JobStatus.CANCELLED}
    programs = skylet.home / ".sky" / "sky_app"
    assert not [path for path in programs.iterdir() if b"sesame" in path.read_bytes()]
    # The janitors' turn comes, they go, and hold nobody up.
    assert (await run(client, "echo next")).text == "next\n"
    await eventually(lambda: not list(programs.iterdir()), "the janitors to be done", 40)
    for job_id in ids:
        await eventually_ended(client, job_id)
    assert await client.jobs() == []


async def eventually_ended(client: SkyletClient, job_id: int) -> None:
    """Wait for the last word on a job."""
    deadline = asyncio.get_running_loop().time() + 40
    while not (await client.status(job_id)).reason:
        assert asyncio.get_running_loop().time() < deadline, f"no last word on job {job_id}"
        await asyncio.sleep(0.1)


async def test_a_driver_that_the_skylet_missed_runs_its_job_to_the_end(
    skylet: Skylet, client: SkyletClient
) -> None:
    job_id = await client.submit(new_key(), OWNER, job("echo a; sleep 2; echo b"))
    log = skylet.home / "sky_logs" / f"{job_id}-test" / "run.log"
    await eventually(lambda: log.exists() and log.read_text().endswith("a\n"), "the job to begin")
    with closing(sqlite3.connect(skylet.home / ".sky" / "jobs.db", timeout=10)) as database, database:
        # As the skylet's own look at the processes does it.
        database.execute("UPDATE jobs SET status='FAILED_DRIVER', end_at=1 WHERE job_id=?", (job_id,))
    seen = await follow(client, job_id)
    assert (seen.text, seen.end.status) == ("a\nb\n", JobStatus.SUCCEEDED)
    assert JobStatus.CANCELLING not in {state.status for state in seen.states}
