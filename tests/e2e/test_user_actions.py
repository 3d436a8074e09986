"""What a user does to a task in the UI, and what becomes of its job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.managed import ManagedJobs
from harness.waiting import poll
from tests.e2e.conftest import Run

StartDag = Callable[..., Run]

STUBBORN = """
managed_job(tasks=[{{"name": "beat", "run": '''
    trap "" TERM
    echo beating
    while :; do date >> {beat}; sleep 0.2; done
'''}}], name="beats", grace_seconds=1)
"""


@pytest.mark.parametrize("state", ["failed", "success"])
def test_k01_marking_a_running_task_ends_its_job_and_its_cluster(
    run_dag: StartDag, managed_jobs: ManagedJobs, tmp_path: Path, state: str
) -> None:
    run = run_dag(STUBBORN.format(beat=tmp_path / "beat"))
    run.wait_for_log("beats.beat", "beating")

    run.mark("beats.beat", state)

    assert managed_jobs.wait_until_clean(20) == []
    (record,) = managed_jobs.store().find(dag_id=run.dag_id, run_id=run.run_id)
    poll(
        lambda: managed_jobs.store().get(record.id).status.value,
        lambda status: status == "CANCELLED",
        timeout=10,
        what="the record to say that it was cancelled",
    )


def test_k01_clearing_a_running_task_ends_the_old_job_before_the_new_one_starts(
    run_dag: StartDag, managed_jobs: ManagedJobs, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    run = run_dag(
        f"""
        managed_job(tasks=[{{"name": "once", "run": '''
            echo "begin $TASK_ATTEMPT" >> {marks}
            trap "echo end $TASK_ATTEMPT >> {marks}; exit 1" TERM
            echo "attempt $TASK_ATTEMPT runs"
            [ "$TASK_ATTEMPT" = 1 ] || exit 0
            while :; do sleep 0.1; done
        '''}}], name="cleared")
        """
    )
    run.wait_for_log("cleared.once", "attempt 1 runs")

    run.clear("cleared.once")
    run.succeed()

    assert marks.read_text().split("\n") == ["begin 1", "end 1", "begin 2", ""]
    assert "the task was cleared: starting afresh" in run.log_text("cleared.once", attempt=2)
    assert managed_jobs.wait_until_clean(5) == []
