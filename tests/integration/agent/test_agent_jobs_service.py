"""jobs.v1 on a real agent: what went wrong with SkyPilot's skylet does not here; tests are named after its weaknesses."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.agent.jobs import jobs as jobs_module
from airflow_provider.runtime.agent.jobs.job import WrongStatus
from airflow_provider.runtime.agent.jobs.jobdir import Order
from airflow_provider.runtime.agent.jobs.jobs import Jobs
from airflow_provider.runtime.agent.jobs.placement import Demand, Node
from airflow_provider.runtime.agent.jobs.table import JobTable, NewJob
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.agent.jobs_wire import (
    CANCELLED,
    FAILED,
    FAILED_DRIVER,
    FAILED_SETUP,
    PENDING,
    REPORT,
    RUNNING,
    SUCCEEDED,
    Wire,
    finished,
    refusal,
)
from tests.integration.clusters import Cluster, eventually

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["setsid", "bash", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
with open(sys.argv[0] + ".pids", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
print("ready", flush=True)
time.sleep(600)
"""
"""A program that ignores SIGTERM, as does its child in a session of its own."""


@pytest.fixture
def wire(cluster: Cluster) -> Wire:
    return Wire(cluster)


async def submitted(wire: Wire, job_id: int | None) -> pb.GetJobSubmittedTimestampResponse:
    request = pb.GetJobSubmittedTimestampRequest(job_id=job_id)
    return await rpcs.GET_JOB_SUBMITTED_TIMESTAMP.unary(wire.channel)(request, timeout=10)


async def ended(wire: Wire, job_id: int | None) -> pb.GetJobEndedTimestampResponse:
    request = pb.GetJobEndedTimestampRequest(job_id=job_id)
    return await rpcs.GET_JOB_ENDED_TIMESTAMP.unary(wire.channel)(request, timeout=10)


async def log_dirs(wire: Wire, *job_ids: int) -> dict[int, str]:
    request = pb.GetLogDirsForJobsRequest(job_ids=job_ids)
    return dict((await rpcs.GET_LOG_DIRS_FOR_JOBS.unary(wire.channel)(request, timeout=10)).job_log_dirs)


async def fail_all(wire: Wire) -> None:
    await rpcs.FAIL_ALL_IN_PROGRESS_JOBS.unary(wire.channel)(pb.FailAllInProgressJobsRequest(), timeout=30)


def appends(path: Path, text: str = "x") -> str:
    """Return a program that adds a line to a file."""
    return f"with open({str(path)!r}, 'a') as file: print({text!r}, file=file)"


# ---- times


async def test_i1_01_times_are_exact_and_in_their_order(wire: Wire) -> None:
    before = time.time()
    job_id = await wire.program("import time; time.sleep(0.3)")
    assert await wire.ended(job_id) == SUCCEEDED
    after = time.time()
    info, began, over = await wire.job(job_id), await submitted(wire, job_id), await ended(wire, job_id)
    assert before <= began.exact_timestamp <= info.start_at <= over.exact_timestamp - 0.3 <= after
    assert (info.submitted_at, info.end_at) == (began.exact_timestamp, over.exact_timestamp)
    # The old field is as near as its 32 bits allow.
    assert abs(began.timestamp - began.exact_timestamp) <= 64
    assert abs(over.timestamp - over.exact_timestamp) <= 64


# ---- repeated calls


async def test_i1_04_a_job_that_is_queued_twice_runs_once_and_stays_finished(
    wire: Wire, tmp_path: Path
) -> None:
    added = await wire.add()
    await asyncio.gather(*(wire.queue(added, appends(tmp_path / "runs")) for _ in range(8)))
    assert await wire.ended(added.job_id) == SUCCEEDED
    await wire.queue(added, appends(tmp_path / "runs"))
    assert await wire.status(added.job_id) == SUCCEEDED
    # The queue is in order: had the call queued it again, it would have run before this one.
    assert await wire.ended(await wire.program("")) == SUCCEEDED
    assert (tmp_path / "runs").read_text() == "x\n"
    assert await wire.status(added.job_id) == SUCCEEDED


async def test_i1_04_a_repeated_call_does_not_exchange_the_program(wire: Wire, tmp_path: Path) -> None:
    added = await wire.add()
    path = tmp_path / "which"
    await asyncio.gather(*(wire.queue(added, appends(path, str(number))) for number in range(8)))
    assert await wire.ended(added.job_id) == SUCCEEDED
    which = path.read_text()
    assert which.strip() in map(str, range(8))
    await wire.queue(added, appends(path, "later"))
    assert path.read_text() == which
    # It may hold secrets, and nobody needs it any more.
    assert not (wire.cluster.directory / "jobs" / str(added.job_id) / "program.py").exists()


async def test_i1_05_a_repeated_add_is_the_same_job_until_that_is_queued(wire: Wire) -> None:
    first = await wire.add(timestamp="2026-11-30")
    again = await asyncio.gather(*(wire.add(timestamp="2026-11-30") for _ in range(5)))
    assert [(answer.job_id, answer.log_dir) for answer in again] == [(first.job_id, first.log_dir)] * 5
    assert (await wire.add(timestamp="2026-12-01")).job_id != first.job_id
    assert (await wire.add(timestamp="2026-11-30", user="another")).job_id != first.job_id
    await wire.queue(first, "")
    assert (await wire.add(timestamp="2026-11-30")).job_id != first.job_id


async def test_i1_05_jobs_that_are_told_apart_by_nothing_are_not_one(wire: Wire) -> None:
    assert (await wire.add(timestamp="")).job_id != (await wire.add(timestamp="")).job_id


@pytest.fixture
async def short_lived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jobs]:
    """The jobs of an agent in this process that waits for nobody."""
    monkeypatch.setattr(jobs_module, "ADDED_SECONDS", 0.1)
    (tmp_path / "agent").mkdir()
    jobs = Jobs(root=tmp_path, cluster=str(tmp_path), private_home=True, capacity=Node(2, 8))
    await jobs.load()
    yield jobs
    await jobs.close()


async def test_i1_05_a_job_that_is_added_and_never_queued_does_not_look_busy_for_ever(
    short_lived: Jobs,
) -> None:
    job = await short_lived.add(NewJob(key="k", name="n", username="u", run_timestamp="t"), demand=Demand())
    assert short_lived.live() == [job]
    await asyncio.wait_for(short_lived.ended(job), 10)
    assert short_lived.live() == []
    assert (job.row.status, job.row.reason) == ("FAILED_DRIVER", "not queued within 0 s")
    assert job.row.ended_at >= job.row.submitted_at + 0.1
    with pytest.raises(WrongStatus, match="was never queued"):
        await short_lived.enqueue(job, lambda marker, home: Order(marker, "", "", home, [], 1))


# ---- cancel


async def test_i1_07_a_cancel_that_names_nothing_ends_the_newest_that_runs(wire: Wire) -> None:
    first, second = [await wire.running(user="a") for _ in range(2)]
    other = await wire.running(user="b")
    assert await wire.cancel(user_hash="a") == [second]
    assert await wire.cancel() == [other]
    assert [await wire.status(job_id) for job_id in (first, second, other)] == [RUNNING, CANCELLED, CANCELLED]
    assert await wire.cancel(user_hash="b") == []
    assert await wire.cancel(user_hash="a") == [first]
    assert await wire.cancel() == []


async def test_all_jobs_of_a_user_are_cancelled_and_those_of_others_go_on(wire: Wire) -> None:
    mine = [await wire.running(user="a"), await wire.running(user="a")]
    other = await wire.running(user="b")
    assert await wire.cancel(cancel_all=True, user_hash="a") == mine
    assert await wire.status(other) == RUNNING
    assert await wire.cancel(other, 987_654, -1) == [other]


async def test_i1_10_cancelled_is_told_when_nothing_of_the_job_is_left(wire: Wire) -> None:
    job_id = await wire.program(STUBBORN)
    await wire.cluster.until_log(job_id, "ready")
    pids = (wire.cluster.directory / "jobs" / str(job_id) / "program.py.pids").read_text().split()

    def left() -> list[str]:
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    assert len(left()) == 2
    # The caller's time is shorter than the job's end: it is answered, and the end goes on.
    request = pb.CancelJobsRequest(job_ids=[job_id])
    answer = await rpcs.CANCEL_JOBS.unary(wire.channel)(request, timeout=1)
    assert list(answer.cancelled_job_ids) == [job_id]
    await wire.until(job_id, CANCELLED)
    assert left() == []
    assert (await wire.tail(job_id)) == (finished("CANCELLED", "ready\n"), 103)


# ---- errors


@pytest.mark.own_cluster
async def test_i1_08_of_a_cluster_without_jobs_everything_can_be_asked(wire: Wire) -> None:
    statuses = await rpcs.GET_JOB_STATUS.unary(wire.channel)(pb.GetJobStatusRequest(), timeout=10)
    assert dict(statuses.job_statuses) == {}
    assert await log_dirs(wire) == {}
    assert await wire.jobs() == []
    assert await wire.cancel(cancel_all=True) == []
    for call in (submitted(wire, None), ended(wire, None), wire.exit_codes()):
        assert await refusal(call) == ("NOT_FOUND", "this cluster has had no job yet")
    assert await wire.tail() == ("Job not found: this cluster has had no job yet\n", 102)


async def test_i1_08_an_unknown_job_is_not_found_and_named(wire: Wire) -> None:
    unknown = pb.AddJobResponse(job_id=987_654)
    for call in (
        submitted(wire, 987_654),
        ended(wire, 987_654),
        wire.exit_codes(987_654),
        wire.queue(unknown, ""),
    ):
        assert await refusal(call) == ("NOT_FOUND", "no job 987654 on this cluster")
    assert await wire.status(987_654) == pb.JOB_STATUS_UNSPECIFIED
    job_id = await wire.program("")
    assert list(await log_dirs(wire, 987_654, job_id)) == [job_id]


async def test_i1_08_the_end_of_a_job_that_runs_is_not_there_yet(wire: Wire) -> None:
    job_id = await wire.running()
    assert await refusal(ended(wire, job_id)) == (
        "FAILED_PRECONDITION",
        f"job {job_id} is RUNNING and has not ended",
    )


@pytest.mark.parametrize("metadata", ["{", "[1]", "3", "nonsense", "[" * 100_000])
async def test_i1_08_metadata_that_is_no_object_is_refused(wire: Wire, metadata: str) -> None:
    code, words = await refusal(wire.add(metadata=metadata))
    assert (code, "metadata is " in words, "a JSON object is needed" in words) == (
        "INVALID_ARGUMENT",
        True,
        True,
    )
    assert len(words) < 500


async def test_i1_08_without_metadata_the_queue_can_be_read(wire: Wire) -> None:
    plain = await wire.program("", metadata="")
    full = await wire.program("", metadata='{"git_commit": "abc"}')
    assert (await wire.job(plain)).metadata == "{}"
    assert (await wire.job(full)).metadata == '{"git_commit": "abc"}'


# ---- the end


async def test_i1_09_what_has_ended_stays_as_it_is(wire: Wire) -> None:
    jobs = {
        await wire.program(""): SUCCEEDED,
        await wire.program("import sys; sys.exit(3)"): FAILED,
        await wire.program(REPORT + "report(status='FAILED_SETUP', exit_codes=[9])"): FAILED_SETUP,
        await wire.running(): CANCELLED,
    }
    for job_id, status in jobs.items():
        if status == CANCELLED:
            assert await wire.cancel(job_id) == [job_id]
        assert await wire.ended(job_id) == status
    infos = [await wire.job(job_id) for job_id in jobs]
    assert await wire.cancel(*jobs) == []
    await fail_all(wire)
    await rpcs.UPDATE_STATUS.unary(wire.channel)(pb.UpdateStatusRequest(), timeout=10)
    for job_id in jobs:
        # What its driver would say now is not heard any more.
        (wire.cluster.directory / "jobs" / str(job_id) / "report.json").write_text(
            '{"status": "RUNNING", "exit_codes": [], "reason": "", "output": null, "started_at": 1, "ended_at": 0}'
        )
        await wire.queue(pb.AddJobResponse(job_id=job_id), "")
    assert await wire.ended(await wire.program("")) == SUCCEEDED
    assert [await wire.job(job_id) for job_id in jobs] == infos


def test_i1_09_the_table_takes_nothing_for_a_job_that_has_ended(tmp_path: Path) -> None:
    table = JobTable(tmp_path / "jobs.db")
    try:
        row = table.add(NewJob(key="k", name="n"))
        assert table.move("INIT", replace(row, status="CANCELLED"))
        for status in ("SUCCEEDED", "RUNNING", "PENDING"):
            assert not table.move("RUNNING", replace(row, status=status))
        found = table.get(row.job_id)
        assert found is not None
        assert found.status == "CANCELLED"
    finally:
        table.close()


@pytest.mark.own_cluster
async def test_i1_11_jobs_that_are_failed_have_an_end(wire: Wire) -> None:
    cpus = os.cpu_count() or 1
    runs = await wire.running(STUBBORN.replace("time.sleep(600)", ""), resources=f"1x[CPU:{cpus}]")
    waits = await wire.program("")
    added = (await wire.add()).job_id
    await eventually(lambda: len(wire.cluster.processes()) > 3, "the job's processes")
    assert await wire.status(waits) == PENDING
    before = time.time()
    await fail_all(wire)
    for job_id in (runs, waits, added):
        assert await wire.status(job_id) == FAILED_DRIVER
        over = (await ended(wire, job_id)).exact_timestamp
        assert before <= over <= time.time()
        assert (await wire.job(job_id)).end_at == over
    assert (await wire.tail(runs)).exit_code == 100
    assert await wire.jobs(all_jobs=False) == []
    assert await wire.ended(await wire.program("")) == SUCCEEDED


async def test_i1_61_a_last_line_without_its_end_is_in_the_log(wire: Wire) -> None:
    job_id = await wire.program("print('first'); print('no-newline-end', end='')")
    assert await wire.tail(job_id) == (finished("SUCCEEDED", "first\nno-newline-end\n"), 0)
    assert await wire.tail(job_id, follow=False, tail=1) == (finished("SUCCEEDED", "no-newline-end\n"), 0)


@pytest.mark.parametrize(
    ("end", "codes"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", [137]),
        ("import sys; sys.exit(255)", [255]),
        (REPORT + "report(status='SUCCEEDED', exit_codes=[-9, 9])", [-9, 9]),
        (REPORT + "report(status='SUCCEEDED', exit_codes=[0, 0, 1])", [0, 0, 1]),
    ],
)
async def test_i1_62_any_exit_code_but_0_is_a_failure(wire: Wire, end: str, codes: list[int]) -> None:
    job_id = await wire.program(end)
    assert await wire.ended(job_id) == FAILED
    assert await wire.exit_codes(job_id) == codes
    assert (await wire.tail(job_id)).exit_code == 100


async def test_the_queue_shows_what_waits_and_runs_or_all_the_newest_first(wire: Wire) -> None:
    over = await wire.program("")
    assert await wire.ended(over) == SUCCEEDED
    added = (await wire.add()).job_id
    runs = await wire.running(name="überall ✓", user="me")
    await rpcs.UPDATE_STATUS.unary(wire.channel)(pb.UpdateStatusRequest(), timeout=10)
    (shown,) = await wire.jobs(all_jobs=False)
    assert (shown.job_id, shown.job_name, shown.status) == (runs, "überall ✓", RUNNING)
    assert shown.pid in wire.cluster.processes()
    assert shown.log_path == (await log_dirs(wire, runs))[runs]
    assert [job.job_id for job in await wire.jobs()][:3] == [runs, added, over]
    assert [job.job_id for job in await wire.jobs(user="me")] == [runs]
    assert await wire.jobs(user="nobody") == []


async def test_k53_a_follower_that_leaves_decides_nothing(wire: Wire, tmp_path: Path) -> None:
    job_id = await wire.program(
        f"import os, sys, time\nprint('a', flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\nsys.exit(4)"
    )
    stream = wire.tailing(job_id)
    assert (await stream.read()).log_line == "a\n"  # type: ignore[union-attr]
    stream.cancel()
    assert await wire.status(job_id) == RUNNING
    (tmp_path / "go").touch()
    assert await wire.ended(job_id) == FAILED
    assert await wire.exit_codes(job_id) == [4]


async def test_k52_a_call_that_the_agent_does_not_know_is_unimplemented(wire: Wire) -> None:
    call = wire.channel.unary_unary("/jobs.v1.JobsService/OfTheFuture")
    assert (await refusal(call(b"", timeout=10)))[0] == grpc.StatusCode.UNIMPLEMENTED.name


async def test_k52_fields_of_the_future_are_skipped(wire: Wire) -> None:
    request = pb.AddJobRequest(job_name="new", run_timestamp="1").SerializeToString() + b"\xfa\x3f\x03abc"
    answer = await wire.channel.unary_unary(rpcs.ADD_JOB.path)(request, timeout=10)
    assert pb.AddJobResponse.FromString(answer).job_id > 0
