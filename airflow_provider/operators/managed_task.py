"""The operator: writes down what is to be done and hands it to the trigger."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider.runtime.state import FileTreeRef, TaskOrder, TaskRecord
    from airflow_provider.runtime.task import ChainPlace, TaskSpec

_BACKSTOP_SECONDS = 120.0
"""How long after the deadline Airflow itself ends the deferral: long enough for the trigger to clean up before."""


class ManagedTaskFailed(AirflowException):
    """A managed task did not succeed; the text says how it ended, with exit codes and the last lines of its log."""


class ManagedTaskOperator(BaseOperator):
    """Runs one task on a cluster of its own, and recovers it when the cluster vanishes.

    Args:
        definition: The task: a mapping with the keys of a task YAML, or the path of a YAML file with one task.
        envs: Environment variables that replace or add to those of the definition. Jinja is rendered here and in
            ``workdir``, never in the definition.
        workdir: Replaces the definition's ``workdir``.
        conn_id: Connection of type ``managed_cluster`` that clusters come from.
        grace_seconds: Seconds between SIGTERM and SIGKILL when the task is cancelled.
        deferrable: Wait in the triggerer, without a worker slot; otherwise the same controller runs in the worker.
        chain: The task's place in a chain; set by ``managed_job``.
        kwargs: Those of every operator. ``execution_timeout`` limits the whole try.

    The JSON that the task writes to the file named by ``TASK_OUTPUT_FILE`` becomes the return value.
    """

    template_fields = ("envs", "workdir")
    template_fields_renderers = {"envs": "json"}  # noqa: RUF012 - Airflow declares it without ClassVar
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        definition: TaskSpec | Mapping[str, object] | str | os.PathLike[str],
        envs: Mapping[str, str] | None = None,
        workdir: str | None = None,
        conn_id: str = "managed_cluster_default",
        grace_seconds: float = 5.0,
        deferrable: bool = True,
        chain: ChainPlace | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 <= grace_seconds <= 600:
            raise ValueError(f"grace_seconds is {grace_seconds!r}; it must be from 0 to 600 seconds")
        self.envs = dict(envs) if envs is not None else None
        self.workdir = workdir
        self.conn_id = conn_id
        self.grace_seconds = float(grace_seconds)
        self.deferrable = deferrable
        self.spec = _spec(definition)
        self.chain = chain
        self._stop_inline: Any = None

    def execute(self, context: Context) -> Any:
        """Write down the intent, reconcile it with what an earlier try left, and defer."""
        from airflow_provider import settings
        from airflow_provider.runtime.control.reconcile import reconcile
        from airflow_provider.runtime.files.archive import PackError
        from airflow_provider.runtime.state import TaskKey
        from airflow_provider.runtime.task import TaskValidationError

        ti = context["ti"]
        try:
            spec = self.spec.resolve(envs=self.envs, workdir=self.workdir)
        except TaskValidationError as error:
            raise AirflowFailException(str(error)) from None
        store, blobs = settings.state_store(), settings.blob_store()
        told: list[str] = []

        def decide(found: TaskRecord | None) -> Any:
            reconciled = reconcile(found, max_tries=ti.max_tries)
            told.append(reconciled.message)
            return reconciled.state

        with TemporaryDirectory(prefix="managed-jobs-") as scratch:
            try:
                archives = _pack(spec, scratch)
            except PackError as error:
                raise AirflowFailException(f"cannot pack the task's files: {error}") from None
            record = store.intend(
                TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index),
                owner=str(ti.id),
                max_tries=ti.max_tries,
                order=self._order(spec, [reference for _, reference in archives], ti.start_date),
                decide=decide,
            )
            if told[-1]:
                self.log.info("managed task %s: %s", record.id, told[-1])
            if record.status.terminal:
                return self._result(record)
            # After the intent: from then on the archives are referred to, and nobody removes them.
            for archive, _ in archives:
                blobs.put(archive)
        self.log.info("managed task %s (%s) of managed job %s", record.id, spec.name, record.job_id)
        if not self.deferrable:
            return self._result(self._run_inline(record))
        self._defer(record)
        return None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the task's output, or raise with the reason of its failure."""
        from airflow_provider import settings

        if event["reason"]:
            raise ManagedTaskFailed(event["reason"])
        return self._result(settings.state_store().get(event["task"]))

    def on_kill(self) -> None:
        """Cancel the job of a task that runs in the worker; ``execute`` then raises."""
        if self._stop_inline is not None:
            self._stop_inline()

    def _order(self, spec: TaskSpec, files: list[FileTreeRef], started: Any) -> TaskOrder:
        from airflow_provider.runtime.state import TaskOrder
        from airflow_provider.runtime.task import ChainPlace

        limit = self.execution_timeout
        begin = started.timestamp() if started is not None else time.time()
        return TaskOrder(
            task=spec,
            files=tuple(files),
            chain=self.chain or ChainPlace(self.task_id, spec.name, (spec.name,), 0),
            conn_id=self.conn_id,
            user=self.owner,
            deadline=None if limit is None else begin + limit.total_seconds(),
            grace_seconds=self.grace_seconds,
        )

    def _defer(self, record: TaskRecord) -> None:
        from airflow_provider.operators.triggerer_health import why_no_triggerer
        from airflow_provider.triggers.managed_task import ManagedTaskTrigger

        missing = why_no_triggerer()
        if missing:
            self.log.warning(
                "%s: this task waits until one runs (start it with `airflow triggerer`)", missing
            )
        deadline = record.order.deadline
        self.defer(
            trigger=ManagedTaskTrigger(
                task=record.id, owner=record.owner, resume=self._has_more_to_do_after_success()
            ),
            method_name="execute_complete",
            timeout=None if deadline is None else max(0.0, deadline - time.time()) + _BACKSTOP_SECONDS,
        )

    def _has_more_to_do_after_success(self) -> bool:
        """Whether Airflow or a subclass must act in a worker once the managed task has succeeded."""
        own = ManagedTaskOperator
        return (
            bool(self.outlets)
            or not self.do_xcom_push
            or self.multiple_outputs
            or type(self).execute_complete is not own.execute_complete
            or type(self).post_execute is not own.post_execute
            or self._post_execute_hook is not None
            # Airflow counts what a downstream task is to be mapped over when a worker pushes it.
            or next(self.iter_mapped_dependants(), None) is not None
        )

    def _run_inline(self, record: TaskRecord) -> TaskRecord:
        """Run the controller in this process, where SIGTERM comes as a call of ``on_kill``."""
        from airflow_provider import settings
        from airflow_provider.hooks.controller import make_controller
        from airflow_provider.runtime.control.events import Outcome
        from airflow_provider.runtime.control.status import Status

        store = settings.state_store()

        async def run() -> TaskRecord:
            controller = await make_controller(record, store, lambda: self.log)
            loop = asyncio.get_running_loop()
            killed = Outcome(Status.CANCELLED, "the task was ended (SIGTERM)")
            self._stop_inline = lambda: loop.call_soon_threadsafe(controller.stop, killed)
            try:
                return await controller.run()
            finally:
                self._stop_inline = None

        return asyncio.run(run())

    def _result(self, record: TaskRecord) -> Any:
        """Return the output of a task that succeeded; raise for every other end."""
        from airflow_provider.runtime.control.status import Status

        if record.status is Status.SUCCEEDED:
            return None if record.output is None else json.loads(record.output)
        text = _failure(record)
        if record.status in (Status.CANCELLED, Status.FAILED_PRECHECKS):
            # Another try would meet the same, or is not wanted.
            raise AirflowFailException(text)
        raise ManagedTaskFailed(text)


def _failure(record: TaskRecord) -> str:
    outcome = record.state.outcome
    lines = [f"{record.status.value}: {outcome.reason if outcome else 'no reason is recorded'}"]
    if outcome and outcome.exit_codes:
        lines[0] += f" [exit codes: {', '.join(map(str, outcome.exit_codes))}]"
    if record.state.leaked:
        lines.append(f"Cluster {record.cluster_name} could not be removed; remove it by hand.")
    later = record.order.chain.task_names[record.order.chain.index + 1 :]
    if later:
        lines.append(f"Not started because {record.order.task.name} did not succeed: {', '.join(later)}.")
    if outcome and outcome.last_lines:
        lines.append("Last lines of its log:")
        lines.extend(f"  {line}" for line in outcome.last_lines)
    return "\n".join(lines)


def _spec(definition: TaskSpec | Mapping[str, object] | str | os.PathLike[str]) -> TaskSpec:
    from airflow_provider.runtime.task import TaskSpec, load_chain_file, task_from_definition

    if isinstance(definition, TaskSpec):
        return definition
    if isinstance(definition, Mapping):
        return task_from_definition(definition)
    chain = load_chain_file(definition)
    if len(chain.tasks) != 1:
        raise ValueError(f"{definition} holds a chain of {len(chain.tasks)} tasks; use managed_job() for it")
    return chain.tasks[0]


def _pack(spec: TaskSpec, scratch: str) -> list[tuple[Any, FileTreeRef]]:
    """Pack the task's local files into ``scratch``; equal trees become one archive."""
    from pathlib import Path

    from airflow_provider.runtime.files.archive import pack
    from airflow_provider.runtime.state import FileTreeRef

    sources = dict(spec.file_mounts)
    if spec.workdir is not None:
        sources = {"~/sky_workdir": spec.workdir, **sources}
    packed = []
    for destination, source in sources.items():
        archive = pack(Path(source), Path(scratch))
        packed.append((archive, FileTreeRef(archive.digest, archive.size, archive.kind, destination)))
    return packed
