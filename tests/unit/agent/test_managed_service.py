"""managed_jobs.v1 over a real channel, with a table in place of jobs that run."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.agent.lease import Lease
from airflow_provider.runtime.agent.managed.managed import ManagedJobs
from airflow_provider.runtime.agent.managed.rows import FIRST_REGISTERED_ID
from airflow_provider.runtime.agent.services.managed_jobs import ManagedJobsService
from airflow_provider.runtime.agent.services.managed_logs import exit_code
from airflow_provider.runtime.wire import managed_jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.unit.agent.managed_jobs import StoredJobs, registration, spec


class Service:
    """The service, its channel, and what is behind it."""

    def __init__(self, jobs: StoredJobs, managed: ManagedJobs, channel: grpc.aio.Channel) -> None:
        self.jobs = jobs
        self.managed = managed
        self.channel = channel

    def submit(self, status: str, job_id: int, task_id: int = 0, **fields: object) -> int:
        """Leave in the table what a submit does."""
        of_job = {name: fields.pop(name) for name in ("started_at", "ended_at", "reason") if name in fields}
        cluster_job = self.jobs.add(status, **of_job)
        self.managed.accepted(self.jobs.table, cluster_job, spec(job_id, task_id, **fields))
        return cluster_job

    async def table(self, **fields: object) -> pb.GetJobTableResponse:
        request = pb.GetJobTableRequest(**fields)  # type: ignore[arg-type]
        return await rpcs.GET_JOB_TABLE.unary(self.channel)(request, timeout=10)

    async def shown(self, **fields: object) -> list[int]:
        return [job.job_id for job in (await self.table(**fields)).jobs]

    async def cancel(self, **fields: object) -> str:
        request = pb.CancelJobsRequest(**fields)  # type: ignore[arg-type]
        return (await rpcs.CANCEL_MANAGED_JOBS.unary(self.channel)(request, timeout=10)).message


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[StoredJobs]:
    made = StoredJobs(tmp_path / "jobs.db")
    yield made
    made.table.close()


@pytest.fixture
async def service(jobs: StoredJobs, tmp_path: Path) -> AsyncIterator[Service]:
    managed = ManagedJobs(jobs)  # type: ignore[arg-type]
    server = grpc.aio.server()
    implementation = ManagedJobsService(managed, jobs, Lease(600))  # type: ignore[arg-type]
    server.add_generic_rpc_handlers([rpcs.handlers(rpcs.MANAGED_JOBS_RPCS, implementation)])
    server.add_insecure_port(f"unix:{tmp_path}/s.sock")
    await server.start()
    unlimited = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s.sock", options=unlimited) as channel:
        yield Service(jobs, managed, channel)
    await server.stop(None)


async def refused(call: grpc.aio.UnaryUnaryCall[object, object]) -> str:
    """Return the words with which a call is refused as bad."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.details() or ""


async def test_its_version_is_that_of_the_peer_it_is_like(service: Service) -> None:
    answer = await rpcs.GET_VERSION.unary(service.channel)(pb.GetVersionRequest())
    assert answer.controller_version == "42"


async def test_a_row_tells_all_that_is_known_of_a_task(service: Service) -> None:
    now = time.time()
    service.submit("FAILED", 7, 1, attempt=2, started_at=now - 100)
    service.submit(
        "FAILED",
        7,
        1,
        attempt=3,
        user="ann",
        workspace="lab",
        infra="aws/us-east-1/us-east-1a",
        resources="1x[CPU:4]",
        metadata={"a": "b"},
        started_at=now - 60,
        ended_at=now - 20,
        reason="exit code 1",
    )
    answer = await service.table()
    (job,) = answer.jobs
    assert job.HasField("_job_id")
    assert (job.job_id, job.task_id, job.job_name, job.task_name) == (7, 1, "chain", "task-1")
    assert job.status == pb.MANAGED_JOB_STATUS_FAILED
    assert job.schedule_state == pb.MANAGED_JOB_SCHEDULE_STATE_DONE
    assert job.job_duration == pytest.approx(40)
    assert (job.start_at, job.end_at) == (now - 60, now - 20)
    assert now <= job.submitted_at <= time.time()
    assert (job.recovery_count, job.failure_reason) == (2, "exit code 1")
    assert (job.infra, job.cloud, job.region, job.zone) == (
        "aws/us-east-1/us-east-1a",
        "aws",
        "us-east-1",
        "us-east-1a",
    )
    assert (job.resources, job.cluster_resources, job.cluster_resources_full) == ("1x[CPU:4]",) * 3
    assert (job.user_name, job.user_hash, job.workspace) == ("ann", "ann", "lab")
    assert dict(job.metadata) == {"a": "b"}
    assert not job.HasField("is_primary_in_job_group")
    assert answer.infra_match_applied
    assert list(answer.infra_options) == ["aws/us-east-1"]
    assert (answer.total, answer.total_no_filter, dict(answer.status_counts)) == (1, 1, {"FAILED": 1})


async def test_a_registered_task_waits_and_has_nothing_that_only_a_job_has(service: Service) -> None:
    await service.managed.register(
        registration(
            tasks=1,
            pool="p",
            pool_hash="h",
            user_hash="ann",
            entrypoint="launch",
            resources_str="1x[GPU:8]",
            metadata_jsons=[
                '{"text": "x", "none": null, "number": 1, "batch_coordinator": true, "more": {"a": []}}'
            ],
            is_primary_in_job_groups=[False],
        )
    )
    (job,) = (await service.table()).jobs
    assert job.status == pb.MANAGED_JOB_STATUS_PENDING
    assert job.schedule_state == pb.MANAGED_JOB_SCHEDULE_STATE_WAITING
    assert (job.pool, job.pool_hash, job.user_hash, job.entrypoint) == ("p", "h", "ann", "launch")
    assert (job.resources, job.cluster_resources, job.infra) == ("1x[GPU:8]", "-", "-")
    assert dict(job.metadata) == {
        "text": "x",
        "number": "1",
        "batch_coordinator": "true",
        "more": '{"a": []}',
    }, "without null values"
    assert job.is_batch
    assert job.HasField("is_primary_in_job_group")
    assert not job.is_primary_in_job_group
    assert [job.HasField(name) for name in ("start_at", "end_at", "failure_reason", "user_name")] == [
        False
    ] * 4
    assert (job.job_duration, job.recovery_count) == (0, 0)


async def test_only_what_failed_has_a_reason_to_have_failed(service: Service) -> None:
    service.submit("CANCELLED", 1, reason="cancelled")
    (job,) = (await service.table()).jobs
    assert not job.HasField("failure_reason")


async def test_fields_that_are_not_asked_for_are_empty_and_unknown_ones_do_no_harm(service: Service) -> None:
    service.submit("RUNNING", 3, infra="local", user="ann")
    (job,) = (await service.table(fields=pb.Fields(fields=["infra", "later_invention"]))).jobs
    assert {field.name for field, _ in job.ListFields()} == {"job_id", "status", "infra"}
    (job,) = (await service.table(fields=pb.Fields())).jobs
    assert job.user_hash == "ann", "no fields are all fields"


async def test_each_filter_of_the_wire_is_heeded(service: Service) -> None:
    service.submit("RUNNING", 1, job_name="train", user="ann", infra="aws/us-east-1")
    service.submit("SUCCEEDED", 2, job_name="eval", workspace="lab")
    (pooled,) = await service.managed.register(registration(tasks=1, name="batch", pool="big"))
    submitted = {job.job_id: job.submitted_at for job in (await service.table()).jobs}
    every = [pooled, 2, 1]
    assert await service.shown() == every
    assert await service.shown(skip_finished=True) == [pooled, 1]
    assert await service.shown(accessible_workspaces=pb.Workspaces(workspaces=["lab"])) == [2]
    assert await service.shown(accessible_workspaces=pb.Workspaces()) == []
    assert await service.shown(job_ids=pb.JobIds(ids=[1, 99])) == [1]
    assert await service.shown(job_ids=pb.JobIds()) == []
    assert await service.shown(workspace_match="la") == [2]
    assert await service.shown(name_match="ai") == [1]
    assert await service.shown(pool_match="BIG") == [pooled]
    assert await service.shown(user_hashes=pb.UserHashes(hashes=["ann"])) == [1]
    assert (
        await service.shown(user_hashes=pb.UserHashes(hashes=["ann"]), show_jobs_without_user_hash=True)
        == every
    )
    assert await service.shown(statuses=pb.Statuses(statuses=["PENDING", "RUNNING"])) == [pooled, 1]
    assert await service.shown(statuses=pb.Statuses()) == []
    assert await service.shown(submitted_after=submitted[2]) == [pooled, 2]
    assert await service.shown(submitted_before=submitted[2]) == [2, 1]
    assert await service.shown(infra_match="AWS/us") == [1]
    assert await service.shown(page=2, limit=2) == [1]
    assert await service.shown(limit=1) == every, "a limit without a page is none"
    assert await service.shown(sort_by="name", sort_order="asc") == [pooled, 2, 1]
    assert await service.shown(sort_by="name") == [1, 2, pooled]
    assert await service.shown(sort_by="", sort_order="") == every


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"statuses": pb.Statuses(statuses=["RUNNING", "DANCING"])}, "statuses has 'DANCING'"),
        ({"statuses": pb.Statuses(statuses=["UNSPECIFIED"])}, "statuses has 'UNSPECIFIED'"),
        ({"sort_by": "colour"}, "sort_by is 'colour': one of job_id, id, job_name"),
        ({"sort_order": "up"}, "sort_order is 'up'"),
        ({"page": 0, "limit": 5}, "page is 0"),
        ({"page": 1, "limit": -1}, "limit is -1"),
        ({"infra_match": "a/b/c/d"}, "infra_match: 'a/b/c/d'"),
        ({"submitted_after": float("nan")}, "submitted_after is no number"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_by_name(
    service: Service, fields: dict[str, object], said: str
) -> None:
    request = pb.GetJobTableRequest(**fields)  # type: ignore[arg-type]
    assert said in await refused(rpcs.GET_JOB_TABLE.unary(service.channel)(request))


async def test_ids_are_found_by_the_whole_name_the_newest_first(service: Service) -> None:
    service.submit("FAILED", 1, job_name="train")
    service.submit("RUNNING", 2, job_name="train-2")
    service.submit("RUNNING", 3, job_name="train")
    ask = rpcs.GET_ALL_JOB_IDS_BY_NAME.unary(service.channel)
    assert (await ask(pb.GetAllJobIdsByNameRequest(job_name="train"))).job_ids == [3, 1]
    assert (await ask(pb.GetAllJobIdsByNameRequest())).job_ids == [3, 2, 1]
    assert (await ask(pb.GetAllJobIdsByNameRequest(job_name=""))).job_ids == []


async def test_a_cancel_says_what_it_does(service: Service) -> None:
    first, second, third = await service.managed.register(registration(num_jobs=3))
    (lab,) = await service.managed.register(registration(workspace="lab", user_hash="ann", pool="p"))
    assert await service.cancel(job_name="other") == "No job to cancel."
    message = await service.cancel(job_name="chain")
    assert message == (
        f"Several live jobs have this name, none is cancelled: jobs {first}, {second}, {third}."
        f" Skipped, as not in workspace 'default': job {lab}."
    )
    message = await service.cancel(job_ids=pb.JobIds(ids=[second, first, 77]), current_workspace="default")
    assert message == f"Scheduled to be cancelled: jobs {first}, {second}."
    assert await service.cancel(job_ids=pb.JobIds(ids=[first])) == "No job to cancel."
    assert await service.cancel(all_users=False, user_hash="bob") == "No job to cancel."
    message = await service.cancel(all_users=True)
    assert message == (
        f"Scheduled to be cancelled: job {third}. Skipped, as not in workspace 'default': job {lab}."
    )
    message = await service.cancel(pool_name="p", current_workspace="lab", graceful=True, graceful_timeout=-1)
    assert message == f"Scheduled to be cancelled: job {lab}."
    assert await service.managed.pending() == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "one of all_users, job_ids, job_name and pool_name"),
        ({"all_users": False}, "user_hash is not set"),
        ({"job_name": "chain", "graceful": True, "graceful_timeout": -1}, "graceful_timeout is -1"),
    ],
)
async def test_a_cancel_that_makes_no_sense_is_refused_and_ends_nothing(
    service: Service, fields: dict[str, object], said: str
) -> None:
    await service.managed.register(registration())
    request = pb.CancelJobsRequest(**fields)  # type: ignore[arg-type]
    assert said in await refused(rpcs.CANCEL_MANAGED_JOBS.unary(service.channel)(request))
    assert await service.managed.pending() == 1


async def test_a_page_of_ten_thousand_rows_takes_less_than_two_seconds(service: Service) -> None:
    connection = service.jobs.table.connection
    with connection:
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO jobs (key, name, marker, status, owner_id, generation, grace_seconds, submitted_at)"
            " VALUES (?, 'job', 'm', ?, '', 0, 5, 1)",
            [(f"many {number}", "SUCCEEDED" if number % 3 else "FAILED") for number in range(10_000)],
        )
        connection.executemany(
            "INSERT INTO managed_jobs (job_id, name, workspace, user_hash, details) VALUES (?, ?, 'default', 'ann', '{}')",
            [(number, f"chain-{number}") for number in range(1, 5_001)],
        )
        details = json.dumps({"metadata": {"a": "b"}, "user_name": "ann"})
        connection.executemany(
            "INSERT INTO managed_tasks (job_id, task_id, name, attempt, cluster_job, infra, resources, details, created_at)"
            " VALUES (?, ?, 'task', 1, ?, 'aws/us-east-1', '1x[CPU:4]', ?, ?)",
            [(1 + number // 2, number % 2, number + 1, details, float(number)) for number in range(10_000)],
        )

    async def seconds(**fields: object) -> float:
        """Return what a call costs on both sides together; others use the machine too, so by the processor's clock."""
        begin = time.process_time()
        answer = await service.table(**fields)
        assert answer.total_no_filter == 5_000
        return time.process_time() - begin

    assert await seconds(page=3, limit=50, sort_by="duration", name_match="chain") < 2
    assert await seconds(job_ids=pb.JobIds(ids=[4_711])) < 2
    assert await seconds() < 4, "all of them, made, sent and read"
    assert len((await service.table()).jobs) == 10_000


async def test_what_a_registration_gets_is_what_the_table_shows(service: Service) -> None:
    assert await service.managed.register(registration(tasks=1)) == [FIRST_REGISTERED_ID]
    assert await service.shown() == [FIRST_REGISTERED_ID]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["SUCCEEDED", "SUCCEEDED"], 0),
        (["SUCCEEDED", "FAILED", "CANCELLED"], 100),
        (["FAILED_SETUP", "PENDING"], 100),
        (["SUCCEEDED", "PENDING"], 101),
        (["CANCELLED", "RUNNING"], 101),
        (["CANCELLING", "CANCELLED"], 101),
        (["SUCCEEDED", "CANCELLED"], 103),
        (["CANCELLED", "PENDING"], 103),
    ],
)
def test_i1_63_a_chain_ends_as_its_failed_task_does_not_as_its_last(statuses: list[str], code: int) -> None:
    assert exit_code(statuses) == code
