"""Which managed tasks a question finds, and in which order."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.agent.managed.query import SORT_KEYS, Filters, Found, Order, Page, find
from airflow_provider.runtime.agent.managed.rows import Place, TaskRow, parse_infra

NOW = 1_000.0


def task(job_id: int, task_id: int = 0, **fields: object) -> TaskRow:
    values: dict[str, object] = {
        "key": job_id * 10 + task_id,
        "job_id": job_id,
        "task_id": task_id,
        "job_name": f"job-{job_id}",
        "task_name": f"task-{task_id}",
        "workspace": "default",
        "user_hash": None,
        "pool": None,
        "cluster_job": job_id,
        "attempt": 1,
        "infra": "",
        "resources": "",
        "reason": "",
        "submitted_at": 100.0 + job_id,
        "started_at": 0.0,
        "ended_at": 0.0,
        "job_details": "{}",
        "task_details": "{}",
        "status": "RUNNING",
    }
    return TaskRow(**{**values, **fields})  # type: ignore[arg-type]


def ask(
    tasks: list[TaskRow],
    *,
    statuses: set[str] | None = None,
    order: Order | None = None,
    page: Page | None = None,
    **filters: object,
) -> Found:
    return find(
        tasks,
        filters=Filters(**filters),  # type: ignore[arg-type]
        statuses=None if statuses is None else frozenset(statuses),
        order=order or Order(),
        page=page,
        now=NOW,
    )


def ids(found: Found) -> list[tuple[int, int]]:
    return [(row.job_id, row.task_id) for row in found.tasks]


def test_without_a_filter_all_are_found_the_newest_job_first_and_its_tasks_in_order() -> None:
    found = ask([task(1), task(2, 0), task(2, 1)])
    assert ids(found) == [(2, 0), (2, 1), (1, 0)]
    assert (found.total, found.total_no_filter) == (2, 2)
    assert found.status_counts == {"RUNNING": 3}


def test_newest_is_what_became_known_last_whatever_its_id() -> None:
    assert ids(ask([task(1, key=7), task(1_000_000_001, key=2)])) == [(1, 0), (1_000_000_001, 0)]


def test_a_job_that_has_not_ended_is_shown_with_its_tasks_that_have() -> None:
    tasks = [task(1, status="SUCCEEDED"), task(2, 0, status="SUCCEEDED"), task(2, 1, status="PENDING")]
    found = ask(tasks, skip_finished=True)
    assert ids(found) == [(2, 0), (2, 1)]
    assert (found.total, found.total_no_filter) == (1, 2)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"job_ids": frozenset({2})}, [2]),
        ({"job_ids": frozenset()}, []),
        ({"workspaces": frozenset({"research"})}, [3]),
        ({"workspaces": frozenset()}, []),
        ({"workspace": "SEAR"}, [3]),
        ({"name": "train"}, [2, 1]),
        ({"name": "b_g"}, []),
        ({"pool": "gpu"}, [2]),
        ({"users": frozenset({"ann"})}, [1]),
        ({"users": frozenset({"ann", None})}, [3, 1]),
        ({"submitted_after": 102.0}, [3, 2]),
        ({"submitted_before": 102.0}, [2, 1]),
        ({"submitted_after": 102.0, "submitted_before": 102.0}, [2]),
        ({"infra": Place("aws")}, [1]),
        ({"infra": Place("AWS", "us-e")}, [1]),
        ({"infra": Place("aws", "east")}, []),
        ({"infra": Place(None, "US-EAST-1", "us-east-1a")}, [1]),
        ({"infra": Place("aw")}, []),
        ({"infra": Place()}, [3, 2, 1]),
    ],
)
def test_each_filter_leaves_what_it_names(filters: dict[str, object], expected: list[int]) -> None:
    tasks = [
        task(1, job_name="Train-small", user_hash="ann", infra="aws/us-east-1/us-east-1a"),
        task(2, job_name="train.big", user_hash="bob", pool="big-gpus", infra="ssh/rack"),
        task(3, workspace="research"),
    ]
    assert [job for job, _ in ids(ask(tasks, **filters))] == expected


def test_counts_do_not_depend_on_the_statuses_that_are_shown_nor_infra_options_on_the_infra() -> None:
    tasks = [
        task(1, status="FAILED", infra="aws/us-east-1"),
        task(2, status="RUNNING", infra="aws/eu-west-1/eu-west-1b"),
        task(3, status="RUNNING", infra="ssh/rack/top"),
        task(4, status="PENDING"),
    ]
    found = ask(tasks, statuses={"RUNNING"}, infra=Place("aws"))
    assert ids(found) == [(2, 0)]
    assert (found.total, found.total_no_filter) == (1, 4)
    assert found.status_counts == {"FAILED": 1, "RUNNING": 1}
    assert found.infra_options == ["aws/eu-west-1", "aws/us-east-1", "ssh/rack/top"]


def test_a_page_holds_whole_jobs() -> None:
    tasks = [task(job, index) for job in range(1, 6) for index in range(2)]
    assert ids(ask(tasks, page=Page(1, 2))) == [(5, 0), (5, 1), (4, 0), (4, 1)]
    last = ask(tasks, page=Page(3, 2))
    assert ids(last) == [(1, 0), (1, 1)]
    assert last.total == 5
    assert ids(ask(tasks, page=Page(4, 2))) == []


def test_i1_50_jobs_are_sorted_by_the_largest_value_of_their_tasks() -> None:
    tasks = [task(1, 0, attempt=1), task(1, 1, attempt=9), task(2, attempt=5), task(3, attempt=1)]
    up = ask(tasks, order=Order("recovery_count", ascending=True))
    assert ids(up) == [(3, 0), (2, 0), (1, 0), (1, 1)]
    assert ids(ask(tasks, order=Order("recoveries"))) == [(1, 0), (1, 1), (2, 0), (3, 0)]


def test_of_equal_values_the_newest_comes_first_in_both_directions() -> None:
    tasks = [task(1, job_name="a"), task(2, job_name="a"), task(3, job_name="b")]
    assert [job for job, _ in ids(ask(tasks, order=Order("name", ascending=True)))] == [2, 1, 3]
    assert [job for job, _ in ids(ask(tasks, order=Order("name")))] == [3, 2, 1]


@pytest.mark.parametrize("key", SORT_KEYS)
def test_every_key_sorts_also_where_a_value_is_missing(key: str) -> None:
    small = task(
        1,
        key=3,
        job_name="a",
        status="CANCELLED",
        user_hash="ann",
        infra="aws",
        resources="1x[CPU:1]",
        started_at=990.0,
        submitted_at=1.0,
        attempt=1,
    )
    large = task(
        2,
        key=1,
        job_name="b",
        status="RUNNING",
        user_hash="bob",
        infra="gcp",
        resources="2x[CPU:1]",
        started_at=10.0,
        submitted_at=2.0,
        attempt=2,
    )
    bare = task(0, key=2, job_name="", status="", submitted_at=0.0, attempt=0)
    found = ask([bare, small, large], order=Order(key, ascending=True))
    assert [row.job_id for row in found.tasks] == [0, 1, 2]
    assert [row.job_id for row in ask([bare, small, large], order=Order(key)).tasks] == [2, 1, 0]


def test_the_state_of_a_job_is_that_of_all_its_tasks_whichever_are_shown() -> None:
    tasks = [
        task(1, 0, status="PENDING"),
        task(1, 1, status="PENDING"),
        task(2, 0, status="SUCCEEDED"),
        task(2, 1, status="PENDING"),
        task(3, 0, status="FAILED"),
        task(3, 1, status="CANCELLED"),
        task(4, 0, status="STARTING"),
    ]
    found = ask(tasks, statuses={"PENDING"})
    assert ids(found) == [(2, 1), (1, 0), (1, 1)]
    assert found.states == {1: "WAITING", 2: "ALIVE", 3: "DONE", 4: "ALIVE"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", Place()),
        ("AWS", Place("aws")),
        ("aws/us-east-1/us-east-1a", Place("aws", "us-east-1", "us-east-1a")),
        ("*/us-east-1", Place(None, "us-east-1")),
        ("k8s/arn:aws/cluster/x", Place("kubernetes", "arn:aws/cluster/x")),
        ("ssh/rack", Place("ssh", "rack")),
    ],
)
def test_an_infra_names_a_place(text: str, place: Place) -> None:
    assert parse_infra(text) == place


@pytest.mark.parametrize("text", ["aws//x", "a/b/c/d", "/"])
def test_what_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither cloud"):
        parse_infra(text)


def test_a_task_runs_from_its_start_to_its_end_or_to_now() -> None:
    assert task(1).duration(NOW) == 0
    assert task(1, started_at=900.0).duration(NOW) == 100
    assert task(1, started_at=900.0, ended_at=950.0).duration(NOW) == 50
    assert task(1, started_at=900.0, ended_at=899.0).duration(NOW) == 0, "the clock was set back"
