"""Managed tasks in the agent's table: what submits and registrations leave there, and what a cancel does to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.guard import BadRequest
from airflow_provider.runtime.agent.jobs.job import WrongStatus
from airflow_provider.runtime.agent.managed.managed import MOST_AT_ONCE, Cancelled, Choice, ManagedJobs
from airflow_provider.runtime.agent.managed.rows import FIRST_REGISTERED_ID, TaskRow
from airflow_provider.runtime.wire import agent_pb2
from tests.unit.agent.managed_jobs import StoredJobs, registration, spec


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[StoredJobs]:
    made = StoredJobs(tmp_path / "jobs.db")
    yield made
    made.table.close()


@pytest.fixture
async def managed(jobs: StoredJobs) -> ManagedJobs:
    return ManagedJobs(jobs)  # type: ignore[arg-type]


def statuses(tasks: list[TaskRow]) -> list[str]:
    return [task.status for task in tasks]


async def test_a_job_of_no_managed_task_leaves_nothing(managed: ManagedJobs, jobs: StoredJobs) -> None:
    managed.accepted(jobs.table, jobs.add(), agent_pb2.JobSpec(name="job"))
    assert await managed.tasks() == []
    assert await managed.ids() == []


async def test_a_submit_says_which_task_its_job_is_an_attempt_of(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    cluster_job = jobs.add("RUNNING", started_at=50.0)
    managed.accepted(
        jobs.table,
        cluster_job,
        spec(
            7,
            2,
            user="ann",
            workspace="lab",
            attempt=3,
            infra="ssh/rack",
            resources="1x[CPU:4]",
            metadata={"a": "b"},
        ),
    )
    (task,) = await managed.tasks()
    assert (task.job_id, task.task_id, task.job_name, task.task_name) == (7, 2, "chain", "task-2")
    assert (task.cluster_job, task.attempt, task.status, task.started_at) == (cluster_job, 3, "RUNNING", 50.0)
    assert (task.workspace, task.user_hash, task.infra, task.resources) == (
        "lab",
        "ann",
        "ssh/rack",
        "1x[CPU:4]",
    )


@pytest.mark.parametrize(
    ("of_job", "of_task"),
    [
        ("INIT", "STARTING"),
        ("PENDING", "STARTING"),
        ("SETTING_UP", "RUNNING"),
        ("RUNNING", "RUNNING"),
        ("CANCELLING", "CANCELLING"),
        ("SUCCEEDED", "SUCCEEDED"),
        ("FAILED", "FAILED"),
        ("FAILED_DRIVER", "FAILED"),
        ("FAILED_SETUP", "FAILED_SETUP"),
        ("CANCELLED", "CANCELLED"),
    ],
)
async def test_a_task_stands_as_its_job_does(
    managed: ManagedJobs, jobs: StoredJobs, of_job: str, of_task: str
) -> None:
    managed.accepted(jobs.table, jobs.add(of_job), spec())
    assert statuses(await managed.tasks()) == [of_task]


async def test_of_several_attempts_the_newest_counts_and_the_task_keeps_its_key(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    managed.accepted(jobs.table, jobs.add("FAILED"), spec(attempt=1))
    (first,) = await managed.tasks()
    second = jobs.add("RUNNING")
    managed.accepted(jobs.table, second, spec(attempt=2))
    (task,) = await managed.tasks(1)
    assert (task.attempt, task.cluster_job, task.status) == (2, second, "RUNNING")
    assert (task.key, task.submitted_at) == (first.key, first.submitted_at)


async def test_a_job_that_was_not_accepted_in_the_end_was_no_attempt(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    managed.accepted(jobs.table, jobs.add("FAILED"), spec(attempt=1))
    lost = jobs.add()
    managed.accepted(jobs.table, lost, spec(attempt=2))
    jobs.table.forget(lost)
    (task,) = await managed.tasks()
    assert (task.attempt, task.status) == (1, "FAILED")


async def test_a_job_of_which_nothing_was_accepted_is_not_known(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    lost = jobs.add()
    managed.accepted(jobs.table, lost, spec())
    jobs.table.forget(lost)
    assert await managed.tasks() == []
    assert await managed.ids() == []


@pytest.mark.parametrize("numbers", [(0, 0), (-1, 0), (1, -1), (FIRST_REGISTERED_ID, 0)])
async def test_numbers_that_nobody_can_have_are_refused(
    managed: ManagedJobs, jobs: StoredJobs, numbers: tuple[int, int]
) -> None:
    with pytest.raises(BadRequest, match=r"job\.managed"):
        managed.accepted(jobs.table, jobs.add(), spec(*numbers))
    assert await managed.tasks() == []


async def test_registered_jobs_wait_with_ids_that_no_controller_gives(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    managed.accepted(jobs.table, jobs.add("RUNNING"), spec(5))
    assert await managed.register(registration(num_jobs=2)) == [FIRST_REGISTERED_ID, FIRST_REGISTERED_ID + 1]
    managed.accepted(jobs.table, jobs.add("RUNNING"), spec(6))
    assert await managed.register(registration()) == [FIRST_REGISTERED_ID + 2]
    assert statuses(await managed.tasks(FIRST_REGISTERED_ID)) == ["PENDING", "PENDING"]
    assert await managed.ids() == [
        FIRST_REGISTERED_ID + 2,
        6,
        FIRST_REGISTERED_ID + 1,
        FIRST_REGISTERED_ID,
        5,
    ], "the newest first, whatever their ids"
    assert await managed.ids("chain") == await managed.ids()
    assert await managed.ids("chai") == []
    assert await managed.pending() == 3


async def test_no_job_is_registered_when_none_is_asked_for(managed: ManagedJobs) -> None:
    assert await managed.register(registration(num_jobs=0)) == []
    assert await managed.ids() == []


async def test_i1_52_primary_flags_are_those_of_the_tasks_not_of_the_jobs(managed: ManagedJobs) -> None:
    (first, second) = await managed.register(
        registration(tasks=3, num_jobs=2, is_primary_in_job_groups=[True, False])
    )
    for job_id in (first, second):
        details = [task.task_details for task in await managed.tasks(job_id)]
        assert ['"primary": true' in text for text in details] == [True, False, False]
        assert ['"primary": null' in text for text in details] == [False, False, True]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_primary_in_job_groups": [True, True, True]}, "3 is_primary_in_job_groups for 2 tasks"),
        ({"task_names": ["only one"]}, "2 task_ids, 1 task_names and 2 metadata_jsons"),
        ({"metadata_jsons": ["{}"]}, "2 task_ids, 2 task_names and 1 metadata_jsons"),
        ({"metadata_jsons": ["{}", "{"]}, r"metadata_jsons\[1\] is no JSON"),
        ({"metadata_jsons": ["{}", ""]}, r"metadata_jsons\[1\] is no JSON"),
        ({"metadata_jsons": ["[" * 100_000, "{}"]}, r"metadata_jsons\[0\] is no JSON"),
        ({"metadata_jsons": ['{"a": "\\ud800"}', "{}"]}, r"metadata_jsons\[0\] is no JSON"),
        ({"metadata_jsons": ["[]", "{}"]}, r"metadata_jsons\[0\] is JSON of another kind"),
        ({"task_ids": [1, 1]}, r"task_ids is \[1, 1\]"),
        ({"task_ids": [0, -1]}, r"task_ids is \[0, -1\]"),
        ({"task_ids": [], "task_names": [], "metadata_jsons": []}, "task_ids is empty"),
        ({"num_jobs": -1}, "num_jobs is -1"),
        ({"num_jobs": MOST_AT_ONCE}, f"num_jobs is {MOST_AT_ONCE}, of 2 tasks each"),
    ],
)
async def test_a_registration_that_makes_no_sense_is_refused_by_name_and_leaves_nothing(
    managed: ManagedJobs, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        await managed.register(registration(**fields))  # type: ignore[arg-type]
    assert await managed.ids() == []


async def test_a_registered_task_becomes_what_its_first_job_is(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    (job_id,) = await managed.register(
        registration(
            metadata_jsons=['{"a": 1, "b": 2}', "{}"],
            is_primary_in_job_groups=[True],
            user_hash="ann",
            resources_str="1x[CPU:2]",
        )
    )
    before = (await managed.tasks(job_id))[0]
    cluster_job = jobs.add("RUNNING")
    managed.accepted(
        jobs.table, cluster_job, spec(job_id, 0, job_name="other", task_name="other", metadata={"b": "3"})
    )
    task, waiting = await managed.tasks(job_id)
    assert (task.status, task.cluster_job, waiting.status) == ("RUNNING", cluster_job, "PENDING")
    assert (task.key, task.job_name, task.task_name) == (before.key, "chain", "task-0"), "as registered"
    assert (task.user_hash, task.resources) == ("ann", "1x[CPU:2]")
    assert '"a": 1' in task.task_details
    assert '"b": "3"' in task.task_details
    assert '"primary": true' in task.task_details


async def test_a_registered_job_has_no_other_tasks(managed: ManagedJobs, jobs: StoredJobs) -> None:
    (job_id,) = await managed.register(registration(tasks=1))
    with pytest.raises(BadRequest, match="task_id 1"):
        managed.accepted(jobs.table, jobs.add(), spec(job_id, 1))


async def test_i1_64_a_cancel_ends_what_waits_at_once_with_its_end_time(managed: ManagedJobs) -> None:
    (job_id, other) = await managed.register(registration(num_jobs=2))
    before = time.time()
    cancelled = await managed.cancel(Choice(job_ids=frozenset({job_id})), workspace="default")
    assert cancelled == Cancelled(job_ids=(job_id,))
    tasks = await managed.tasks(job_id)
    assert statuses(tasks) == ["CANCELLED", "CANCELLED"]
    assert all(before <= task.ended_at <= time.time() for task in tasks)
    assert statuses(await managed.tasks(other)) == ["PENDING", "PENDING"]
    assert await managed.pending() == 1


async def test_a_task_that_was_cancelled_before_its_first_submit_never_starts(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    (job_id,) = await managed.register(registration())
    await managed.cancel(Choice(), workspace="default")
    with pytest.raises(WrongStatus, match="was cancelled"):
        managed.accepted(jobs.table, jobs.add(), spec(job_id, 0))


async def test_a_cancel_reaches_every_live_job_of_a_chain_and_no_other(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    for job_id, task_id, status in [
        (1, 0, "SUCCEEDED"),
        (1, 1, "RUNNING"),
        (1, 1, "PENDING"),
        (2, 0, "RUNNING"),
    ]:
        managed.accepted(jobs.table, jobs.add(status), spec(job_id, task_id))
    cancelled = await managed.cancel(Choice(job_ids=frozenset({1, 99})), workspace="default")
    assert cancelled == Cancelled(job_ids=(1,), cluster_jobs=(2, 3)), "an older attempt may still be there"


@pytest.mark.parametrize(
    ("choice", "ended"),
    [
        (Choice(), (1, 2)),
        (Choice(name="one"), (1,)),
        (Choice(user_hash="ann"), (2,)),
        (Choice(pool="p"), ()),
        (Choice(job_ids=frozenset()), ()),
        (Choice(job_ids=frozenset({3})), ()),
    ],
)
async def test_a_choice_ends_those_that_it_means(
    managed: ManagedJobs, jobs: StoredJobs, choice: Choice, ended: tuple[int, ...]
) -> None:
    managed.accepted(jobs.table, jobs.add("RUNNING"), spec(1, job_name="one"))
    managed.accepted(jobs.table, jobs.add("RUNNING"), spec(2, job_name="two", user="ann"))
    managed.accepted(jobs.table, jobs.add("FAILED"), spec(3, job_name="over"))
    assert (await managed.cancel(choice, workspace="default")).job_ids == ended


async def test_a_pool_is_what_a_registration_names(managed: ManagedJobs) -> None:
    (job_id,) = await managed.register(registration(pool="p"))
    await managed.register(registration(pool="q"))
    assert (await managed.cancel(Choice(pool="p"), workspace="default")).job_ids == (job_id,)


async def test_jobs_of_another_workspace_are_left_alone_and_named(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    managed.accepted(jobs.table, jobs.add("RUNNING"), spec(1, workspace="lab"))
    managed.accepted(jobs.table, jobs.add("FAILED"), spec(2, workspace="lab"))
    everything = await managed.cancel(Choice(), workspace="default")
    assert everything == Cancelled(elsewhere=(1,))
    named = await managed.cancel(Choice(job_ids=frozenset({1, 2})), workspace="default")
    assert named == Cancelled(elsewhere=(1, 2)), "whether it has ended is nobody's business there"


async def test_a_name_that_several_live_jobs_have_ends_none(managed: ManagedJobs) -> None:
    job_ids = await managed.register(registration(num_jobs=2))
    cancelled = await managed.cancel(Choice(name="chain"), workspace="default", only_one=True)
    assert cancelled == Cancelled(ambiguous=tuple(job_ids))
    assert await managed.pending() == 2


async def test_who_waits_for_a_task_hears_of_its_job_and_of_a_cancel(
    managed: ManagedJobs, jobs: StoredJobs
) -> None:
    (job_id,) = await managed.register(registration())
    change = managed.changed.next()
    # As in the agent: from the thread of the table.
    cluster_job = jobs.add()
    managed.accepted(jobs.table, cluster_job, spec(job_id))
    await asyncio.wait_for(change.wait(), 5)
    change = managed.changed.next()
    await managed.cancel(Choice(), workspace="default")
    await asyncio.wait_for(change.wait(), 5)
