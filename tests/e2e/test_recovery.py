"""Clusters, agents and triggerers that die under a task, and what its log shows of it."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness import AirflowInstance
from harness.managed import ManagedJobs
from tests.e2e.conftest import Run

StartDag = Callable[..., Run]

COUNT_TO_600 = 'for i in $(seq 600); do echo "line $i"; sleep 0.05; done'


def test_a_lost_cluster_is_replaced_and_one_log_shows_both_attempts(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        managed_job(tasks=[{"name": "train", "run": '''
            echo "attempt $TASK_ATTEMPT of $SKYPILOT_TASK_ID"
            [ "$TASK_ATTEMPT" = 2 ] || sleep 300
            echo done
        '''}], name="lost")
        """
    )
    run.wait_for_log("lost.train", "attempt 1 of")
    (record,) = managed_jobs.store().find(dag_id=run.dag_id, run_id=run.run_id)

    managed_jobs.infra().preempt(record.cluster_name)
    run.succeed()

    log = run.log_text("lost.train")
    assert "the cluster was lost" in log
    ids = re.findall(r"attempt (\d) of (\S+)", log)
    assert [attempt for attempt, _ in ids] == ["1", "2"]
    assert len({task_id for _, task_id in ids}) == 1, "the id outlives the cluster"
    assert managed_jobs.wait_until_clean(5) == []


def test_k39_a_killed_triggerer_costs_no_line_and_repeats_at_most_a_second_of_them(
    run_dag: StartDag, airflow: AirflowInstance, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(f"managed_job(tasks=[{{'name': 'count', 'run': '''{COUNT_TO_600}'''}}], name='k39')")
    run.wait_for_log("k39.count", "line 100\n")

    airflow.kill("triggerer")
    airflow.start("triggerer")
    run.succeed()

    numbers = [int(number) for number in re.findall(r"^line (\d+)$", run.log_text("k39.count"), re.MULTILINE)]
    assert list(dict.fromkeys(numbers)) == list(range(1, 601)), "no line is missing, and they come in order"
    # What was written in the last second may come again: acknowledged is what is half a second old, every half second.
    # The job sleeps 0.05 s after each line, so it never prints more than 20 a second however busy the machine is; 30
    # leave half a second for an acknowledgement to arrive.
    assert len(numbers) - 600 <= 30, "repeated lines"
    assert managed_jobs.wait_until_clean(5) == []
