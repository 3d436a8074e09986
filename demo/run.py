"""The story of the demo: start, watch, lose a machine, watch again, check."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from demo.checks import Check, all_checks, epochs_in
from demo.stages import Stage, stages_of
from demo.view import View, make_view, print_result
from harness import AirflowError, AirflowInstance
from harness.managed import ManagedJobs
from harness.waiting import poll

DAG_ID = "train_digits"
TRAIN = "train"
EVALUATE = "evaluate"

# Late enough for checkpoints to exist, early enough for the rest to be seen.
PREEMPT_AFTER_EPOCH = 4

RUN_TIMEOUT = 300.0
"""Seconds that the run may take; about a quarter of it on two cores, more where others use them too."""

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "demo-logs"


@dataclass(frozen=True)
class Result:
    """How it ended."""

    stages: list[Stage]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether all is as promised."""
        return all(check.ok for check in self.checks)


class Demo:
    """One run of the example DAG in one Airflow."""

    def __init__(self, airflow: AirflowInstance, view: View) -> None:
        self._airflow = airflow
        self._api = airflow.api
        self._jobs = ManagedJobs(airflow.home)
        self._view = view
        self._preempted = False
        self._watched: Stage | None = None
        self._run_id = ""

    def run(self) -> Result:
        """Tell the whole story; TimeoutError when it takes too long."""
        try:
            return self._run()
        except Exception:
            self._save_component_logs()
            raise

    def _run(self) -> Result:
        self._await_dag()
        self._run_id = self._api.trigger(DAG_ID)
        self._view.say(f"run started: {self._airflow.base_url}/dags/{DAG_ID}/runs/{self._run_id}")
        poll(
            self._watch,
            lambda stages: all(stage.ended for stage in stages) and self._api.run(DAG_ID, self._run_id).ended,
            timeout=RUN_TIMEOUT,
            what="the run to end",
            interval=0.8,
        )
        left = self._jobs.wait_until_clean(timeout=10)
        stages = self._watch()
        self._save_component_logs()
        self._save_task_logs(stages)
        return Result(stages, self._check(stages, left))

    def _await_dag(self) -> None:
        def ready() -> bool:
            if errors := self._api.import_errors():
                raise AirflowError("\n".join(errors.values()))
            return self._api.dag_exists(DAG_ID)

        poll(ready, timeout=60, what=f"Airflow to read the DAG {DAG_ID}")

    def _watch(self) -> list[Stage]:
        tasks = self._api.tasks(DAG_ID, self._run_id)
        stages = stages_of(tasks, self._jobs.store().find(dag_id=DAG_ID, run_id=self._run_id))
        active = next((stage for stage in stages if stage.active), None)
        if self._watched and (active is None or active.task_id != self._watched.task_id):
            # What it printed between the last look and its end.
            self._view.show(stages, self._watched.name, self._log(self._watched).splitlines())
        self._watched = active
        if active:
            lines = self._log(active).splitlines()
            self._view.show(stages, active.name, lines)
            if active.name == TRAIN and not self._preempted:
                self._preempt_in_time(active, lines)
        return stages

    def _preempt_in_time(self, train: Stage, lines: Sequence[str]) -> None:
        epochs = epochs_in("\n".join(lines))
        if train.cluster and epochs and epochs[-1] >= PREEMPT_AFTER_EPOCH:
            self._preempted = True
            self._view.say(
                f"the machine of {TRAIN} is lost: everything on cluster {train.cluster} is killed now"
            )
            self._jobs.infra().preempt(train.cluster)

    def _log(self, stage: Stage) -> str:
        """Return what the task and its controller wrote into the Airflow task log, without Airflow's own lines."""
        records = self._api.log(DAG_ID, self._run_id, stage.task_id)
        return "\n".join(
            r.event for r in records if str(r.fields.get("logger")).startswith("airflow_provider.")
        )

    def _save_component_logs(self) -> None:
        """Keep what Airflow printed: its home will be removed."""
        shutil.rmtree(LOGS, ignore_errors=True)
        LOGS.mkdir(parents=True)
        for log in self._airflow.logs.glob("*.log"):
            shutil.copy(log, LOGS / f"airflow-{log.name}")

    def _save_task_logs(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            text = self._api.log_text(DAG_ID, self._run_id, stage.task_id)
            LOGS.joinpath(f"{stage.name}.log").write_text(f"{text}\n")

    def _check(self, stages: Sequence[Stage], left: Sequence[str]) -> list[Check]:
        by_name = {stage.name: stage for stage in stages}
        train, evaluate = by_name[TRAIN], by_name[EVALUATE]
        return all_checks(
            run_state=self._api.run(DAG_ID, self._run_id).state,
            recoveries=train.recoveries,
            log=self._log(train),
            result=self._api.xcom(DAG_ID, self._run_id, evaluate.task_id),
            left=left,
        )


def main(console: Console, *, keep: bool) -> bool:
    """Run the demo and print its result; True if all is as promised.

    Args:
        console: where to print.
        keep: leave Airflow up at the end, until Ctrl-C.
    """
    console.print("Starting Airflow, which takes about half a minute on two cores ...")
    with ExitStack() as stack:
        with console.status("starting"):
            airflow = stack.enter_context(AirflowInstance(dags_folder=ROOT / "example_dags", quick=True))
        with make_view(console) as view:
            result = Demo(airflow, view).run()
        print_result(console, result.stages, result.checks)
        console.print(f"Logs: {LOGS.relative_to(Path.cwd()) if LOGS.is_relative_to(Path.cwd()) else LOGS}")
        if keep:
            console.print(f"Airflow stays up at {airflow.base_url} until you press Ctrl-C.")
            _wait_for_interrupt()
    return result.ok


def _wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        return
