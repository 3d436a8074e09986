"""Chains of tasks in a real Airflow: results, failures, logs."""

from __future__ import annotations

from collections.abc import Callable

from harness.managed import ManagedJobs
from tests.e2e.conftest import Run

StartDag = Callable[..., Run]


def test_a_chain_runs_in_order_and_outputs_become_return_values(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        managed_job(HERE / "chain.yaml", envs={"GREETING": "hello {{ run_id }}"})
        """,
        files={
            "chain.yaml": """
name: pipe
---
name: one
workdir: code
run: |
  cat greeting.txt
  echo "$GREETING"
  echo '{"answer": 42}' > "$TASK_OUTPUT_FILE"
---
run: echo "second $SKYPILOT_TASK_ID"; env | grep -c ^AIRFLOW__ || true
""",
            "code/greeting.txt": "from the workdir\n",
        },
    )

    run.succeed()

    assert run.xcom("pipe.one") == {"answer": 42}
    first, second = run.log_text("pipe.one"), run.log_text("pipe.pipe-1")
    assert "from the workdir" in first
    assert f"hello {run.run_id}" in first
    assert "pipe: one (1 of 2), attempt 1" in first
    assert "second sky-managed-" in second
    assert managed_jobs.wait_until_clean(5) == []


def test_k59_a_failing_stage_shows_its_code_and_last_lines_and_names_what_will_not_start(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        managed_job(tasks=[
            {"name": "one", "run": "echo ONE-OUT"},
            {"name": "two", "run": "echo TWO-OUT; exit 4"},
            {"name": "three", "run": "echo THREE-OUT"},
        ], name="k59-pipe")
        """
    )

    assert run.wait().state == "failed"

    assert "ONE-OUT" in run.log_text("k59-pipe.one")
    log = run.log_text("k59-pipe.two")
    assert "FAILED: run failed with exit code 4" in log
    assert log.count("TWO-OUT") == 2, "once as output, once among the last lines"
    assert "Not started because two did not succeed: three." in log
    assert run.task("k59-pipe.three").state == "upstream_failed"
    assert managed_jobs.wait_until_clean(5) == []
