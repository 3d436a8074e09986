"""The order in which waiting jobs start."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.agent.jobs.placement import Demand, Node
from airflow_provider.runtime.agent.jobs.queue import LOOK_AHEAD, MAX_OVERTAKEN, Queue


def queue(cpus: float = 2, *demands: float) -> Queue:
    waiting = Queue(Node(cpus, 8))
    for job_id, demand in enumerate(demands, 1):
        waiting.add(job_id, Demand(demand))
    return waiting


def started(waiting: Queue) -> list[int]:
    return [job_id for job_id, _ in waiting.start()]


def test_jobs_start_by_id_whatever_the_order_they_came_in() -> None:
    waiting = queue()
    for job_id in (3, 1, 2):
        waiting.add(job_id, Demand(1))
    assert started(waiting) == [1, 2]


def test_jobs_that_fit_run_at_the_same_time() -> None:
    assert started(queue(2, 0.5, 0.5, 0.5, 0.5, 0.5)) == [1, 2, 3, 4]


def test_a_job_that_ends_makes_room_for_the_next() -> None:
    waiting = queue(2, 2, 2)
    assert started(waiting) == [1]
    assert started(waiting) == []
    waiting.remove(1)
    assert started(waiting) == [2]


def test_a_cancelled_job_does_not_start() -> None:
    waiting = queue(2, 2, 2, 2)
    assert started(waiting) == [1]
    waiting.remove(2)
    waiting.remove(1)
    assert started(waiting) == [3]


def test_a_small_job_passes_one_that_does_not_fit() -> None:
    assert started(queue(2, 1, 2, 1)) == [1, 3]


def test_a_job_that_does_not_fit_is_not_overtaken_for_ever() -> None:
    waiting = queue(2, 1, 2)
    assert started(waiting) == [1]
    overtakers = []
    for job_id in range(3, 100):
        waiting.add(job_id, Demand(1))
        ran = started(waiting)
        overtakers += ran
        for done in ran:
            waiting.remove(done)
    assert overtakers == list(range(3, 3 + MAX_OVERTAKEN))
    waiting.remove(1)
    assert started(waiting) == [2]


def test_ten_thousand_waiting_jobs_cost_no_more_than_a_few() -> None:
    waiting = queue(2, *[2.0] * 10_000)
    begin = time.perf_counter()
    for job_id in range(1, 101):
        assert started(waiting) == [job_id]
        waiting.remove(job_id)
    assert (time.perf_counter() - begin) / 100 < 0.02
    assert LOOK_AHEAD < 10_000


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 3)), max_size=60))
def test_every_job_starts_once_and_the_node_is_never_too_full(jobs: list[tuple[float, int]]) -> None:
    waiting = Queue(Node(2, 8))
    running: list[int] = []
    seen: list[int] = []
    passed: dict[int, int] = {}
    left: set[int] = set()
    for job_id, (cpus, ending) in enumerate(jobs, 1):
        waiting.add(job_id, Demand(cpus))
        left.add(job_id)
        for done in running[:ending]:
            waiting.remove(done)
            running.remove(done)
        for new in started(waiting):
            left.discard(new)
            running.append(new)
            seen.append(new)
            for older in left:
                passed[older] = passed.get(older, 0) + (older < new)
        assert sum(share.cpus for share in waiting.shares()) <= 2
    while running:
        waiting.remove(running.pop())
        running += (new := started(waiting))
        seen += new
    assert sorted(seen) == list(range(1, len(jobs) + 1))
    # Two more: what starts together with the last one that may pass.
    assert max(passed.values(), default=0) <= MAX_OVERTAKEN + 2
