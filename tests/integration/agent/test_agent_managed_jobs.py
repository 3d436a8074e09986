"""Managed jobs as others see them on a real agent: the table, their logs, their end."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.agent.managed.rows import FIRST_REGISTERED_ID
from airflow_provider.runtime.wire import agent_pb2, jobs_pb2, rpcs
from airflow_provider.runtime.wire import managed_jobs_pb2 as pb
from tests.integration.clusters import OWNER, Cluster, eventually

_ids = itertools.count(1)

IGNORES_TERM = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


class Reader:
    """Somebody who reads the log of a managed job."""

    def __init__(self, stream: AsyncIterator[pb.StreamLogsResponse]) -> None:
        self.messages: list[pb.StreamLogsResponse] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: AsyncIterator[pb.StreamLogsResponse]) -> None:
        async for message in stream:
            self.messages.append(message)
            self._news.set()

    @property
    def text(self) -> str:
        return "".join(message.log_line for message in self.messages)

    async def until(self, text: str) -> None:
        while text not in self.text:
            await asyncio.wait_for(self._news.wait(), 15)
            self._news.clear()

    async def code(self) -> int:
        """Wait for the end and return the exit code, with which there is nothing else."""
        await asyncio.wait_for(self._task, 30)
        *before, last = self.messages
        assert not any(message.HasField("exit_code") for message in before)
        assert last.HasField("exit_code")
        assert last.log_line == ""
        return last.exit_code


class Managed:
    """What a controller and its users ask of the agent."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def channel(self) -> grpc.aio.Channel:
        return self.cluster.client._channel

    async def submit(
        self, run: str, job_id: int, task_id: int = 0, *, grace: float = 5.0, **fields: object
    ) -> int:
        task = agent_pb2.ManagedTask(job_id=job_id, task_id=task_id, **{"job_name": "chain", **fields})  # type: ignore[arg-type]
        answer = await rpcs.SUBMIT.unary(self.channel)(
            agent_pb2.SubmitRequest(
                key=os.urandom(8).hex(),
                owner=agent_pb2.Owner(id=OWNER.id, generation=OWNER.generation),
                job=agent_pb2.JobSpec(name="test", run=run, managed=task, grace_seconds=grace),
            ),
            timeout=10,
        )
        return answer.job_id

    async def register(self, tasks: int = 2, **fields: object) -> int:
        values: dict[str, object] = {
            "name": "registered",
            "task_ids": list(range(tasks)),
            "task_names": [f"task-{index}" for index in range(tasks)],
            "metadata_jsons": ["{}"] * tasks,
            "num_jobs": 1,
        }
        request = jobs_pb2.SetJobInfoWithoutJobIdRequest(**{**values, **fields})  # type: ignore[arg-type]
        answer = await rpcs.SET_JOB_INFO_WITHOUT_JOB_ID.unary(self.channel)(request, timeout=10)
        (job_id,) = answer.job_ids
        return job_id

    async def tasks(self, job_id: int) -> list[pb.ManagedJobInfo]:
        request = pb.GetJobTableRequest(job_ids=pb.JobIds(ids=[job_id]))
        return list((await rpcs.GET_JOB_TABLE.unary(self.channel)(request, timeout=10)).jobs)

    async def statuses(self, job_id: int) -> list[str]:
        return [
            pb.ManagedJobStatus.Name(task.status).removeprefix("MANAGED_JOB_STATUS_")
            for task in await self.tasks(job_id)
        ]

    async def cancel(self, job_id: int, **fields: object) -> str:
        request = pb.CancelJobsRequest(job_ids=pb.JobIds(ids=[job_id]), **fields)  # type: ignore[arg-type]
        return (await rpcs.CANCEL_MANAGED_JOBS.unary(self.channel)(request, timeout=10)).message

    def read(self, *, follow: bool = True, **fields: object) -> Reader:
        request = pb.StreamLogsRequest(follow=follow, **fields)  # type: ignore[arg-type]
        return Reader(rpcs.STREAM_LOGS.download(self.channel)(request))


@pytest.fixture
def managed(cluster: Cluster) -> Managed:
    return Managed(cluster)


@pytest.fixture
def job_id() -> int:
    """A chain that no other test has."""
    return next(_ids)


async def test_i1_51_the_log_of_a_chain_is_that_of_its_tasks_in_their_order(
    managed: Managed, job_id: int
) -> None:
    await managed.submit("echo first", job_id, 0)
    reader = managed.read(job_id=job_id)
    assert await reader.code() == 0
    await managed.submit("echo lost; exit 1", job_id, 1)
    await managed.submit("printf second", job_id, 1, attempt=2)
    await managed.submit("echo third", job_id, 2)
    reader = managed.read(job_id=job_id)
    assert await reader.code() == 0
    assert reader.text == "first\nsecond\nthird\n", (
        "of the newest attempts, none begins in the line of another"
    )
    assert await managed.statuses(job_id) == ["SUCCEEDED"] * 3
    assert [task.recovery_count for task in await managed.tasks(job_id)] == [0, 1, 0]


async def test_a_reader_of_a_registered_job_waits_for_its_tasks(managed: Managed) -> None:
    job_id = await managed.register()
    reader = managed.read(job_name="registered")
    await managed.submit("echo first", job_id, 0)
    await reader.until("first\n")
    assert (await managed.statuses(job_id))[1] == "PENDING"
    await managed.submit("echo second", job_id, 1)
    assert await reader.code() == 0
    assert reader.text == "first\nsecond\n"


async def test_no_reader_waits_for_what_comes_after_a_failure(managed: Managed) -> None:
    job_id = await managed.register()
    reader = managed.read(job_id=job_id)
    await managed.submit("echo first; exit 3", job_id, 0)
    assert await reader.code() == 100
    first, second = await managed.tasks(job_id)
    assert first.status == pb.MANAGED_JOB_STATUS_FAILED
    assert first.failure_reason
    assert second.schedule_state == pb.MANAGED_JOB_SCHEDULE_STATE_ALIVE


async def test_a_cancel_ends_what_runs_and_what_waits(managed: Managed) -> None:
    job_id = await managed.register()
    await managed.submit("echo ready; sleep 1000", job_id, 0)
    reader = managed.read(job_id=job_id)
    await reader.until("ready")
    assert await managed.statuses(job_id) == ["RUNNING", "PENDING"]
    assert await managed.cancel(job_id) == f"Scheduled to be cancelled: job {job_id}."
    assert (await managed.statuses(job_id))[1] == "CANCELLED", "at once"
    assert await reader.code() == 103
    tasks = await managed.tasks(job_id)
    assert [task.status for task in tasks] == [pb.MANAGED_JOB_STATUS_CANCELLED] * 2
    assert all(task.end_at for task in tasks)
    assert tasks[0].schedule_state == pb.MANAGED_JOB_SCHEDULE_STATE_DONE
    assert await managed.cancel(job_id) == "No job to cancel."


async def test_a_job_is_cancelling_until_nothing_of_it_is_left(managed: Managed, job_id: int) -> None:
    cluster_job = await managed.submit(IGNORES_TERM, job_id, grace=600)
    reader = managed.read(job_id=job_id)
    await reader.until("ready")
    await managed.cancel(job_id)
    assert await managed.statuses(job_id) == ["CANCELLING"]
    begin = time.monotonic()
    message = await managed.cancel(job_id, graceful=True, graceful_timeout=1)
    assert message == f"Scheduled to be cancelled: job {job_id}."
    assert await reader.code() == 103
    assert 1 <= time.monotonic() - begin < 15
    assert await managed.statuses(job_id) == ["CANCELLED"]
    assert (await managed.cluster.client.status(cluster_job)).status.name == "CANCELLED"


async def test_a_graceful_time_limit_of_0_kills_at_once(managed: Managed, job_id: int) -> None:
    await managed.submit(IGNORES_TERM, job_id, grace=600)
    reader = managed.read(job_id=job_id)
    await reader.until("ready")
    await managed.cancel(job_id, graceful=True, graceful_timeout=0)
    assert await reader.code() == 103


async def test_who_does_not_follow_gets_what_is_there(managed: Managed, job_id: int) -> None:
    await managed.submit("seq 10; echo ready; sleep 1000", job_id)
    follower = managed.read(job_id=job_id)
    await follower.until("ready\n")
    reader = managed.read(job_id=job_id, follow=False, tail=3)
    assert await reader.code() == 0, "as TailLogs has it, although the job has not ended"
    assert reader.text == "9\n10\nready\n"
    await managed.cancel(job_id)
    assert await follower.code() == 103
    assert follower.text.startswith("1\n2\n")


async def test_what_is_not_here_is_not_found(managed: Managed) -> None:
    for unknown in ({"job_id": 1 << 62}, {"job_name": "nobody"}):
        reader = managed.read(**unknown)
        assert await reader.code() == 102
        assert str(next(iter(unknown.values()))) in reader.text


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"controller": True, "job_id": 1}, grpc.StatusCode.FAILED_PRECONDITION),
        ({"job_id": 1, "job_name": "chain"}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_log_that_cannot_be_meant_is_refused(
    managed: Managed, fields: dict[str, object], code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await managed.read(**fields).code()
    assert caught.value.code() is code


async def test_a_task_that_was_cancelled_before_its_submit_leaves_no_job(managed: Managed) -> None:
    job_id = await managed.register(tasks=1)
    assert job_id >= FIRST_REGISTERED_ID
    await managed.cancel(job_id)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await managed.submit("echo never", job_id)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await managed.statuses(job_id) == ["CANCELLED"]
    assert not [line for _, line in managed.cluster.programs() if "echo never" in line]


async def test_a_registration_that_makes_no_sense_is_invalid_and_names_the_place(managed: Managed) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await managed.register(metadata_jsons=["{}", "{"])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "metadata_jsons[1]" in (caught.value.details() or "")


@pytest.mark.own_cluster
async def test_an_agent_that_starts_again_knows_them_all(managed: Managed, job_id: int) -> None:
    await managed.submit("echo over", job_id)
    assert await managed.read(job_id=job_id).code() == 0
    registered = await managed.register()
    await managed.cluster.kill_agent()
    await managed.cluster.restart_agent()
    assert await managed.statuses(job_id) == ["SUCCEEDED"]
    assert await managed.statuses(registered) == ["PENDING", "PENDING"]
    reader = managed.read()
    await managed.cancel(registered)
    assert await reader.code() == 103, "without a name, the newest"


async def test_a_reader_that_leaves_takes_nothing_along(managed: Managed, job_id: int) -> None:
    cluster_job = await managed.submit("echo ready; sleep 1000", job_id)
    handles = Path(f"/proc/{managed.cluster.agent_pid}/fd")

    def open_logs() -> int:
        return sum(handle.is_symlink() and handle.resolve().name == "run.log" for handle in handles.iterdir())

    calls = []
    for _ in range(20):
        call = rpcs.STREAM_LOGS.download(managed.channel)(pb.StreamLogsRequest(job_id=job_id, follow=True))
        text = ""
        while "ready" not in text:
            text += (await call.read()).log_line
        calls.append(call)
    assert open_logs() >= 20
    for call in calls:
        call.cancel()
    await eventually(lambda: not open_logs(), "the readers' descriptors to be closed")
    assert (await managed.cluster.client.status(cluster_job)).status.name == "RUNNING"
