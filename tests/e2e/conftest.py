"""A real Airflow for the whole session, and DAGs that tests put into it."""

from __future__ import annotations

import re
import shutil
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import AirflowInstance, DagRun, LogRecord, TaskInstance
from harness.managed import ManagedJobs
from harness.waiting import poll

HERE = Path(__file__).parent

# Seconds. The first test of a session also starts Airflow.
TEST_TIMEOUT = 240
RUN_TIMEOUT = 120.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_TIMEOUT))


@dataclass(frozen=True)
class Run:
    """One run of a DAG, with the questions that tests ask."""

    airflow: AirflowInstance
    dag_id: str
    run_id: str

    def state(self) -> DagRun:
        return self.airflow.api.run(self.dag_id, self.run_id)

    def wait(self, timeout: float = RUN_TIMEOUT) -> DagRun:
        """Wait for the end of the run."""
        return self.airflow.api.wait_for_run(self.dag_id, self.run_id, timeout=timeout)

    def succeed(self, timeout: float = RUN_TIMEOUT) -> None:
        """Wait for the end; a failure shows the logs of the tasks that did not succeed."""
        if self.wait(timeout).state != "success":
            bad = [task for task in self.tasks() if task.state not in ("success", "skipped")]
            logs = "\n".join(f"---- {t.task_id}: {t.state}\n{self.log_text(t.task_id)}" for t in bad)
            pytest.fail(f"{self.dag_id} failed\n{logs}")

    def tasks(self) -> list[TaskInstance]:
        return self.airflow.api.tasks(self.dag_id, self.run_id)

    def task(self, task_id: str) -> TaskInstance:
        return self.airflow.api.task(self.dag_id, self.run_id, task_id)

    def wait_for_task(self, task_id: str, *states: str, timeout: float = RUN_TIMEOUT) -> TaskInstance:
        return self.airflow.api.wait_for_task(self.dag_id, self.run_id, task_id, states, timeout=timeout)

    def log(self, task_id: str, *, attempt: int | None = None) -> list[LogRecord]:
        return self.airflow.api.log(self.dag_id, self.run_id, task_id, attempt=attempt)

    def log_text(self, task_id: str, *, attempt: int | None = None) -> str:
        return self.airflow.api.log_text(self.dag_id, self.run_id, task_id, attempt=attempt)

    def wait_for_log(self, task_id: str, text: str, *, timeout: float = RUN_TIMEOUT) -> str:
        """Wait until the live log of a task contains `text`; return the log."""

        def describe() -> str:
            end = self.log_text(task_id)[-1500:]
            return f"{text!r} in the log of {task_id}, which ends:\n{end}"

        return poll(lambda: self.log_text(task_id), lambda log: text in log, timeout=timeout, what=describe)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        return self.airflow.api.xcom(self.dag_id, self.run_id, task_id, key)

    def clear(self, *task_ids: str) -> None:
        self.airflow.api.clear(self.dag_id, self.run_id, task_ids)

    def mark(self, task_id: str, state: str) -> None:
        self.airflow.api.mark_task(self.dag_id, self.run_id, task_id, state)

    def mark_run(self, state: str) -> None:
        self.airflow.api.mark_run(self.dag_id, self.run_id, state)


@pytest.fixture(scope="session")
def airflow() -> Iterator[AirflowInstance]:
    """All components of a real Airflow, each of which a test may kill and start again."""
    # A time limit around the tests ends them with SIGTERM: Airflow must go too, as it does on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with AirflowInstance(quick=True) as instance:
        yield instance


@pytest.fixture
def managed_jobs(airflow: AirflowInstance) -> ManagedJobs:
    """The state store, clusters and blobs of that Airflow."""
    return ManagedJobs(airflow.home)


@pytest.fixture
def run_dag(airflow: AirflowInstance, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    """A function that puts a DAG into Airflow, starts a run of it and returns that run.

    Its text becomes the body of `with DAG(...) as dag:`; `files` (name -> text) lie beside the DAG file, where
    `HERE` points. What is still running at the end of the test is marked failed.
    """
    runs: list[Run] = []

    def start(
        body: str,
        *,
        files: Mapping[str, str] | None = None,
        conf: Mapping[str, Any] | None = None,
        imports: str = "",
        dag_arguments: str = "",
    ) -> Run:
        number = f"_{len(runs) + 1}" if runs else ""
        dag_id = re.sub(r"\W+", "_", request.node.name).strip("_") + number
        folder = airflow.dags_folder / dag_id
        folder.mkdir()
        for name, text in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        source = _DAG_FILE.format(
            imports=textwrap.dedent(imports), dag_id=dag_id, dag_arguments=dag_arguments, body=_indent(body)
        )
        folder.joinpath("dag.py").write_text(source)
        _await_dag(airflow, dag_id)
        run = Run(airflow, dag_id, airflow.api.trigger(dag_id, conf=conf))
        runs.append(run)
        return run

    yield start
    airflow.start_missing()
    for run in runs:
        if not run.state().ended:
            run.mark_run("failed")
        shutil.rmtree(airflow.dags_folder / run.dag_id)


_DAG_FILE = """\
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider import managed_job
{imports}

HERE = Path(__file__).parent

with DAG({dag_id!r}, schedule=None, {dag_arguments}) as dag:
{body}
"""


def _indent(body: str) -> str:
    return textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")


def _await_dag(airflow: AirflowInstance, dag_id: str) -> None:
    def ready() -> bool:
        for file, error in airflow.api.import_errors().items():
            if f"{dag_id}/" in file:
                pytest.fail(f"{file} cannot be imported:\n{error}")
        return airflow.api.dag_exists(dag_id)

    poll(ready, timeout=60, what=f"Airflow to read the DAG {dag_id}")
