"""The operator's own business: retries, secrets, limits, the mode without a triggerer."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Callable

import psutil

from harness import AirflowInstance
from harness.managed import ManagedJobs
from harness.waiting import poll
from tests.e2e.conftest import Run

StartDag = Callable[..., Run]


def test_a_retry_starts_afresh_after_a_failure_and_keeps_the_task_id(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        from datetime import timedelta
        managed_job(tasks=[{"name": "flaky", "run": '''
            echo "id=$SKYPILOT_TASK_ID attempt=$TASK_ATTEMPT"
            [ "$TASK_ATTEMPT" = 2 ] || exit 3
        '''}], name="retried", retries=1, retry_delay=timedelta(seconds=0))
        """
    )

    run.succeed()

    first = run.log_text("retried.flaky", attempt=1)
    second = run.log_text("retried.flaky", attempt=2)
    assert "run failed with exit code 3" in first
    (before,) = re.findall(r"^id=(\S+) attempt=1$", first, re.MULTILINE)
    (after,) = re.findall(r"^id=(\S+) attempt=2$", second, re.MULTILINE)
    assert before == after
    assert managed_jobs.wait_until_clean(5) == []


def test_secrets_reach_the_job_and_no_place_where_somebody_could_read_them(
    run_dag: StartDag, airflow: AirflowInstance, managed_jobs: ManagedJobs
) -> None:
    secret = "hunter2-3f1c"
    airflow.api.set_variable("plain_name", secret)
    run = run_dag(
        """
        managed_job(tasks=[{
            "name": "keep",
            "secrets": {"HARMLESS": "variable:plain_name"},
            "run": 'echo "length ${#HARMLESS}, value $HARMLESS"; printf %s "$HARMLESS" | rev; exit 3',
        }], name="secret")
        """
    )

    assert run.wait().state == "failed"

    log = run.log_text("secret.keep")
    assert f"length {len(secret)}" in log
    assert secret[::-1] in log, "the job really had it"
    assert "Last lines of its log" in log
    assert secret not in log
    with sqlite3.connect(airflow.home / "managed_jobs" / "state.db") as connection:
        assert secret not in "\n".join(connection.iterdump())
    for file in (airflow.home / "logs").rglob("*.log"):
        assert secret not in file.read_text(errors="replace"), file


def test_execution_timeout_ends_the_job_of_a_deferred_task(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        from datetime import timedelta
        managed_job(tasks=[{"name": "slow", "run": "echo begun; sleep 300"}], name="limited",
                    execution_timeout=timedelta(seconds=8))
        """
    )

    assert run.wait().state == "failed"

    assert "execution_timeout" in run.log_text("limited.slow")
    assert managed_jobs.wait_until_clean(5) == []


def test_k35_sigterm_of_a_task_that_waits_in_its_worker_ends_the_job_and_the_try(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        from datetime import timedelta
        managed_job(tasks=[{"name": "inline", "run": """
        + repr("[ $TASK_ATTEMPT = 2 ] && exit 0; trap '' TERM; echo waiting; while :; do sleep 0.1; done")
        + """}], name="k35", deferrable=False, retries=1, retry_delay=timedelta(seconds=0))
        """
    )
    run.wait_for_log("k35.inline", "waiting")

    os.kill(_task_process(run), signal.SIGTERM)
    run.succeed()

    log = run.log_text("k35.inline", attempt=1)
    assert "CANCELLED: the task was ended (SIGTERM)" in log
    assert managed_jobs.wait_until_clean(5) == []


def test_execution_timeout_of_a_task_that_waits_in_its_worker_leaves_nothing_behind(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        from datetime import timedelta
        managed_job(tasks=[{"name": "slow", "run": "trap '' TERM; while :; do sleep 0.1; done"}], name="inline",
                    execution_timeout=timedelta(seconds=6), deferrable=False, grace_seconds=1)
        """
    )

    assert run.wait().state == "failed"

    assert "FAILED: execution_timeout" in run.log_text("inline.slow")
    assert managed_jobs.wait_until_clean(5) == []


def test_without_a_triggerer_the_task_says_what_it_waits_for(
    run_dag: StartDag, airflow: AirflowInstance, managed_jobs: ManagedJobs
) -> None:
    airflow.kill("triggerer", signal.SIGTERM)
    poll(
        lambda: (airflow.api.health() or {}).get("triggerer", {}).get("status"),
        lambda status: status == "unhealthy",
        timeout=40,
        what="the triggerer to be seen as stopped",
    )
    run = run_dag("managed_job(tasks=[{'name': 'wait', 'run': 'echo finally'}], name='alone')")
    run.wait_for_log("alone.wait", "no triggerer is running")

    airflow.start("triggerer")

    run.succeed()
    assert "finally" in run.log_text("alone.wait")
    assert managed_jobs.wait_until_clean(5) == []


def _task_process(run: Run) -> int:
    """Return the pid of the process that executes the run's only running task."""
    for process in psutil.process_iter(["cmdline", "pid"]):
        line = " ".join(process.info["cmdline"] or ())
        if run.dag_id in line or "airflow worker -- " in line:
            children = process.children()
            if children:
                return int(children[0].pid)
    raise AssertionError("no worker process runs a task")
