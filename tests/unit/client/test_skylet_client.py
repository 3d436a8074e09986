"""The skylet client and the choice of clients against answers that a test chose."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.client import (
    AgentFailed,
    Heartbeat,
    JobRequest,
    JobState,
    JobStatus,
    LinkLost,
    LogBytes,
    ManagedTask,
    Owner,
    RequestRefused,
    skylet_follow,
)
from airflow_provider.runtime.client import skylet as skylet_module
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.client.choose import client_for
from airflow_provider.runtime.client.skylet import SkyletClient
from airflow_provider.runtime.control import controller
from airflow_provider.runtime.transport import tcp
from airflow_provider.runtime.transport.tcp import TcpChannel
from airflow_provider.runtime.wire import agent_pb2, managed_jobs_pb2, rpcs
from airflow_provider.runtime.wire import jobs_pb2 as pb
from tests.unit.client.scripted_skylet import BEGIN, ScriptedSkylet, has, info, takes_janitors, tells

OWNER = Owner("ti", 3)
JOB = JobRequest(name="j", setup="", run="true", envs={}, secrets={"S": "sesame"})


@pytest.fixture
async def server() -> AsyncIterator[ScriptedSkylet]:
    async with ScriptedSkylet() as server:
        server.always(rpcs.UPDATE_STATUS, pb.UpdateStatusResponse())
        server.always(rpcs.CANCEL_JOBS, pb.CancelJobsResponse())
        server.always(rpcs.GET_JOB_EXIT_CODES, pb.GetJobExitCodesResponse())
        server.always(
            rpcs.GET_LOG_DIRS_FOR_JOBS, pb.GetLogDirsForJobsResponse(job_log_dirs={1: "~/l", 2: "~/l"})
        )
        yield server


@pytest.fixture
async def client(server: ScriptedSkylet) -> AsyncIterator[SkyletClient]:
    client = SkyletClient(TcpChannel(server.port))
    yield client
    await client.close()


async def test_k52_the_choice_hangs_on_the_handshake_alone(server: ScriptedSkylet) -> None:
    server.always(rpcs.GET_VERSION, managed_jobs_pb2.GetVersionResponse(controller_version="42"))
    channel = TcpChannel(server.port)
    assert isinstance(await client_for(channel), SkyletClient)
    server.always(rpcs.HANDSHAKE, agent_pb2.HandshakeResponse(protocol_version=1))
    assert isinstance(await client_for(channel), AgentClient)
    await channel.close()


@pytest.mark.parametrize("version", ["27", "", "dev"])
async def test_k52_a_skylet_that_is_too_old_is_refused_with_its_version(
    server: ScriptedSkylet, version: str
) -> None:
    server.always(rpcs.GET_VERSION, managed_jobs_pb2.GetVersionResponse(controller_version=version))
    channel = TcpChannel(server.port)
    with pytest.raises(RequestRefused, match=f"version '{version}', 28 or later"):
        await client_for(channel)
    await channel.close()


async def test_k52_a_status_of_a_later_skypilot_is_told_and_not_guessed(
    server: ScriptedSkylet, client: SkyletClient
) -> None:
    later = info(pb.JOB_STATUS_RUNNING)
    later.MergeFromString(bytes([5 << 3, 77]))
    has(server, later)
    with pytest.raises(AgentFailed, match="number 77"):
        await client.status(1)


async def test_i1_01_times_are_exact(server: ScriptedSkylet, client: SkyletClient) -> None:
    has(server, info(pb.JOB_STATUS_RUNNING))
    state = await client.status(1)
    assert (state.submitted_at, state.started_at) == (1796050373.40377, 1796050374.25)


async def test_reads_are_made_again_and_changes_are_not(server: ScriptedSkylet, client: SkyletClient) -> None:
    tries = 0

    async def flaky(request: object, context: grpc.aio.ServicerContext) -> pb.GetJobQueueResponse:
        nonlocal tries
        tries += 1
        if tries < 4:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return pb.GetJobQueueResponse(jobs=[info(pb.JOB_STATUS_RUNNING)])

    server.on(rpcs.GET_JOB_QUEUE, flaky)
    assert (await client.status(1)).status is JobStatus.RUNNING
    assert tries == 4


async def test_i1_20_a_submit_that_fails_all_the_time_ends_and_never_adds_without_a_look(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skylet_module, "_SUBMIT_SECONDS", 0.5)
    has(server)

    async def fail(request: object, context: grpc.aio.ServicerContext) -> pb.AddJobResponse:
        await context.abort(grpc.StatusCode.INTERNAL, "no")

    server.on(rpcs.ADD_JOB, fail)
    with pytest.raises(AgentFailed, match="AddJob: INTERNAL no"):
        await client.submit("k", OWNER, JOB)
    assert server.calls["GetJobQueue"] == server.calls["AddJob"] + 1
    assert "QueueJob" not in server.calls


async def test_i1_05_the_lowest_id_of_a_key_is_the_job_and_is_queued_when_nobody_else_does(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skylet_module, "_OTHERS_SECONDS", 0.3)
    has(server, info(pb.JOB_STATUS_INIT, job_id=2, pid=0), info(pb.JOB_STATUS_INIT, job_id=1, pid=0))
    queued: list[pb.QueueJobRequest] = []

    async def queue(request: pb.QueueJobRequest, context: object) -> pb.QueueJobResponse:
        queued.append(request)
        return pb.QueueJobResponse()

    server.on(rpcs.QUEUE_JOB, queue)  # type: ignore[arg-type]
    assert await client.submit("k", OWNER, JOB) == 1
    assert [request.job_id for request in queued] == [1]
    assert "AddJob" not in server.calls
    # The secret is in the program's text only, not where paths and commands are made of.
    assert "sesame" in queued[0].codegen
    assert "sesame" not in queued[0].script_path + queued[0].remote_log_dir


async def test_a_job_whose_reservation_ran_out_before_it_was_queued_is_queued(
    server: ScriptedSkylet, client: SkyletClient
) -> None:
    has(server, info(pb.JOB_STATUS_FAILED_DRIVER, pid=0))
    server.always(rpcs.QUEUE_JOB, pb.QueueJobResponse())
    assert await client.submit("k", OWNER, JOB) == 1
    assert server.calls["QueueJob"] == 1
    has(server, info(pb.JOB_STATUS_FAILED_DRIVER, pid=7))
    assert await client.submit("k", OWNER, JOB) == 1
    assert server.calls["QueueJob"] == 1, "a job that has run was queued again"


async def test_i1_10_cancel_waits_for_the_last_word_and_gives_up_at_its_limit(
    server: ScriptedSkylet, client: SkyletClient
) -> None:
    has(server, info(pb.JOB_STATUS_CANCELLED))
    with pytest.raises(LinkLost, match="has not ended after 1 s"):
        await client.cancel(1, OWNER, limit=1)
    end = {"reason": "told to end", "exit_codes": [], "log_size": 0, "ended_at": 5.0}
    has(server, info(pb.JOB_STATUS_CANCELLED, end=end))
    assert (await client.cancel(1, OWNER, limit=1)).ended_at == 5.0
    has(server, info(pb.JOB_STATUS_CANCELLED, pid=0))
    assert (await client.cancel(1, OWNER, limit=1)).status is JobStatus.CANCELLED, "it never began"


async def test_a_slow_reader_holds_the_skylet_back(server: ScriptedSkylet, client: SkyletClient) -> None:
    sent = 0

    async def flood(request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[pb.TailLogsResponse]:
        nonlocal sent
        yield BEGIN
        while True:
            yield pb.TailLogsResponse(log_line="x" * 16383 + "\n")
            sent += 16384

    server.on(rpcs.TAIL_LOGS, flood)
    has(server, info(pb.JOB_STATUS_RUNNING))
    stream = await client.follow(1, OWNER, offset=0)
    async for message in stream:
        if isinstance(message, LogBytes):
            break
    before = -1
    while sent != before:  # until it stands still
        before = sent
        await asyncio.sleep(0.5)
    assert sent < 64 << 20
    await stream.close()


async def test_k82_a_quiet_follow_goes_on_with_signs_of_life_and_without_pings(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not [name for name, _ in tcp._OPTIONS if "keepalive" in name or "ping" in name]
    monkeypatch.setattr(skylet_follow, "_POLL_SECONDS", 0.02)
    has(server, info(pb.JOB_STATUS_RUNNING))
    tells(server, BEGIN, more=True)
    stream, beats = await client.follow(1, OWNER, offset=None), 0
    async for message in stream:
        beats += isinstance(message, Heartbeat)
        if beats == 20:
            break
    await stream.close()
    assert server.calls["TailLogs"] == 1


async def test_k04_a_skylet_that_stops_answering_is_a_lost_link_and_no_verdict(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skylet_follow, "_SILENCE_SECONDS", 0.5)
    has(server, info(pb.JOB_STATUS_RUNNING))
    tells(server, BEGIN, pb.TailLogsResponse(log_line="a\n"), more=True)
    stream = await client.follow(1, OWNER, offset=0)
    seen: list[object] = []

    async def silent(request: object, context: object) -> pb.GetJobStatusResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def read() -> None:
        async for message in stream:
            seen.append(message)
            server.on(rpcs.GET_JOB_STATUS, silent)

    with pytest.raises(LinkLost, match="GetJobStatus: DEADLINE_EXCEEDED"):
        await read()
    assert LogBytes(0, b"a\n") in seen, seen
    assert not any(isinstance(message, JobState) and message.status.terminal for message in seen)


async def test_k53_a_log_that_does_not_come_keeps_nobody_from_the_end(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skylet_follow, "_DRAIN_SECONDS", 0.3)
    end = {"reason": "", "exit_codes": [0], "log_size": 1000}
    has(server, info(pb.JOB_STATUS_SUCCEEDED, end=end))
    tells(server, BEGIN, pb.TailLogsResponse(log_line="a\n"), more=True)
    begun = time.monotonic()
    seen = [message async for message in await client.follow(1, OWNER, offset=0)]
    assert seen[0] == LogBytes(0, b"a\n")
    assert isinstance(seen[-1], JobState)
    assert seen[-1].status is JobStatus.SUCCEEDED
    # The same when the skylet says that this is all.
    tells(server, BEGIN, pb.TailLogsResponse(log_line="a\n"), pb.TailLogsResponse(exit_code=0))
    seen = [message async for message in await client.follow(1, OWNER, offset=0)]
    assert seen[0] == LogBytes(0, b"a\n")
    assert seen[-1].status is JobStatus.SUCCEEDED  # type: ignore[union-attr]
    assert server.calls["TailLogs"] == 1 + 3
    assert time.monotonic() - begun < 10


async def test_closing_a_stream_wakes_its_reader_and_leaves_no_task(
    server: ScriptedSkylet, client: SkyletClient
) -> None:
    has(server, info(pb.JOB_STATUS_RUNNING))
    tells(server, BEGIN, more=True)

    def ours() -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if "SkyletFollowStream" in repr(task)]

    stream = await client.follow(1, OWNER, offset=0)

    async def read() -> None:
        async for _ in stream:
            await asyncio.sleep(0)

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.2)
    assert len(ours()) == 2
    await stream.close()
    with pytest.raises(LinkLost, match="the stream is closed"):
        await asyncio.wait_for(reading, 5)
    await asyncio.sleep(0.2)
    assert ours() == []


@pytest.mark.parametrize(
    ("field", "job"),
    [
        ("setup", replace(JOB, setup="echo \ud800")),
        ("run", replace(JOB, run="\udcff")),
        ("the value of 'A'", replace(JOB, envs={"A": "\ud800"})),
        ("the value of 'S'", replace(JOB, secrets={"S": "\ud800"})),
        ("the name of '\\\\udfff'", replace(JOB, envs={"\udfff": ""})),
        ("resources", replace(JOB, managed=ManagedTask(1, "j", 0, "t", "u", resources="\ud800"))),
    ],
)
async def test_text_that_is_none_is_refused_by_name_before_anything_is_sent(
    server: ScriptedSkylet, client: SkyletClient, field: str, job: JobRequest
) -> None:
    with pytest.raises(RequestRefused, match=f"submit: {field} is no text"):
        await client.submit("k", OWNER, job)
    assert not server.calls


MISSED = pb.JOB_STATUS_FAILED_DRIVER


async def test_a_driver_that_the_skylet_misses_is_let_live_until_it_has_been_silent_for_long(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    janitors = takes_janitors(server)
    has(server, info(MISSED, started=False))
    assert (await client.status(1)).status is JobStatus.PENDING
    has(server, info(MISSED))
    assert (await client.status(1)).status is JobStatus.RUNNING
    assert [state.status for state in await client.jobs()] == [JobStatus.RUNNING]
    has(server, info(pb.JOB_STATUS_RUNNING))
    assert (await client.status(1)).status is JobStatus.RUNNING
    assert server.calls["CancelJobs"] == 0, "a job that lives was cancelled"

    monkeypatch.setattr(skylet_module, "_DOUBT_SECONDS", 0.2)
    has(server, info(MISSED))
    assert (await client.status(1)).status is JobStatus.RUNNING, "what was missed before counts again"
    await asyncio.sleep(0.3)
    assert (await client.status(1)).status is JobStatus.CANCELLING
    assert (await client.status(1)).status is JobStatus.CANCELLING
    assert (server.calls["CancelJobs"], len(janitors)) == (1, 1)


@pytest.mark.parametrize("outcome", ["SUCCEEDED", "FAILED", "FAILED_SETUP"])
async def test_the_drivers_last_word_is_believed_when_the_skylet_has_missed_it(
    server: ScriptedSkylet, client: SkyletClient, outcome: str
) -> None:
    has(server, info(MISSED, end={"status": outcome, "exit_codes": [3]}))
    state = await client.status(1)
    assert (state.status, state.exit_codes) == (JobStatus(outcome), (3,))


async def test_no_look_follows_a_queueing_at_once(server: ScriptedSkylet, client: SkyletClient) -> None:
    has(server, info(MISSED, pid=0))
    server.always(rpcs.QUEUE_JOB, pb.QueueJobResponse())
    await client.submit("k", OWNER, JOB)
    has(server, info(pb.JOB_STATUS_PENDING))
    await client.status(1)
    assert server.calls["UpdateStatus"] == 0, "it would miss the driver"


async def test_a_log_is_asked_for_when_its_driver_is_safe_from_being_missed(
    server: ScriptedSkylet, client: SkyletClient
) -> None:
    has(server, info(pb.JOB_STATUS_PENDING))
    tells(server, BEGIN, pb.TailLogsResponse(log_line="a\n"), more=True)
    stream, begun = await client.follow(1, OWNER, offset=0), time.monotonic()
    async for message in stream:
        if isinstance(message, LogBytes):
            break
    await stream.close()
    assert time.monotonic() - begun > 0.9


async def test_a_log_goes_on_after_the_skylet_said_wrongly_that_its_job_has_ended(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skylet_follow, "_POLL_SECONDS", 0.05)
    has(server, info(MISSED))
    tells(
        server,
        BEGIN,
        pb.TailLogsResponse(log_line="a\nJob finished (status: FAILED_DRIVER).\n"),
        pb.TailLogsResponse(exit_code=100),
    )
    stream, log = await client.follow(1, OWNER, offset=0), b""

    async def read() -> None:
        nonlocal log
        async for message in stream:
            if isinstance(message, LogBytes):
                log += message.data
                has(server, info(pb.JOB_STATUS_RUNNING))
                tells(
                    server,
                    BEGIN,
                    pb.TailLogsResponse(log_line="a\n"),
                    pb.TailLogsResponse(log_line="b\n"),
                    more=True,
                )
            if log.endswith(b"b\n"):
                break

    await asyncio.wait_for(read(), 10)
    await stream.close()
    assert log == b"a\nb\n"
    assert server.calls["CancelJobs"] == 0


async def test_i1_10_a_job_that_is_cancelled_before_it_began_has_its_program_written_over(
    server: ScriptedSkylet, client: SkyletClient
) -> None:
    janitors = takes_janitors(server)
    has(server, info(pb.JOB_STATUS_CANCELLED, pid=0, started=False))
    assert (await client.cancel(1, OWNER, limit=5)).status is JobStatus.CANCELLED
    (janitor,) = janitors
    assert (janitor.job_id, janitor.script_path) == (2, "~/.sky/sky_app/managed_job_1")
    assert "sesame" not in janitor.codegen
    # What is cancelled and has had its last word needs none, and no other user's job gets one.
    has(server, info(pb.JOB_STATUS_CANCELLED, started=False, end={"status": "CANCELLED"}))
    await client.cancel(1, OWNER, limit=5)
    other = info(pb.JOB_STATUS_CANCELLED, started=False)
    other.metadata = "{}"
    has(server, other)
    await client.cancel(1, OWNER, limit=5)
    assert len(janitors) == 1


async def test_i1_10_a_cancel_that_may_have_missed_the_driver_is_repeated_until_the_last_word(
    server: ScriptedSkylet, client: SkyletClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skylet_module, "_CANCEL_AGAIN_SECONDS", 0.1)
    janitors = takes_janitors(server)
    has(server, info(pb.JOB_STATUS_CANCELLED, started=False))

    async def cancel(request: object, context: object) -> pb.CancelJobsResponse:
        if server.calls["CancelJobs"] == 3:
            has(server, info(pb.JOB_STATUS_CANCELLED, end={"status": "CANCELLED", "ended_at": 5.0}))
        return pb.CancelJobsResponse()

    server.on(rpcs.CANCEL_JOBS, cancel)  # type: ignore[arg-type]
    assert (await client.cancel(1, OWNER, limit=10)).ended_at == 5.0
    assert (server.calls["CancelJobs"], len(janitors)) == (3, 1)


async def test_janitors_are_no_jobs(server: ScriptedSkylet, client: SkyletClient) -> None:
    janitor = info(pb.JOB_STATUS_RUNNING, job_id=2)
    janitor.metadata = json.dumps({"managed_jobs": {"janitor_of": 1}})
    has(server, janitor, info(pb.JOB_STATUS_RUNNING))
    assert [state.job_id for state in await client.jobs(all=True)] == [1]


def test_a_client_gives_a_silent_job_up_before_who_cancels_it_gives_the_client_up() -> None:
    assert skylet_module._LAST_WORD_SECONDS + 5 < controller._CANCEL_MARGIN_SECONDS
