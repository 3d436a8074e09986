"""The operator: writes down what is to be done and hands it to the trigger."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_provider.runtime.control.events import Outcome
    from airflow_provider.runtime.control.machine import State
    from airflow_provider.runtime.state import FileTreeRef, TaskOrder, TaskRecord
    from airflow_provider.runtime.task import ChainPlace, TaskSpec

_BACKSTOP_SECONDS = 120.0
"""How long after deadline and grace period Airflow itself ends the deferral: the trigger cleans up before that."""


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
        self.envs = envs
        self.workdir = workdir
        self.conn_id = conn_id
        self.grace_seconds = _grace(grace_seconds)
        self.deferrable = deferrable
        self.spec = _spec(definition, default_name=self.task_id)
        self.chain = chain
        self._killed = False
        self._stop_inline: Callable[[], None] | None = None

    def execute(self, context: Context) -> Any:
        """Write down the intent, reconcile it with what an earlier try left, and defer."""
        from airflow_provider import settings
        from airflow_provider.hooks.files import pack_files
        from airflow_provider.hooks.naming import connection_of
        from airflow_provider.runtime.control.reconcile import reconcile
        from airflow_provider.runtime.files.archive import PackError
        from airflow_provider.runtime.state import TaskKey
        from airflow_provider.runtime.task import TaskValidationError

        ti = context["ti"]
        if self.envs is not None and not isinstance(self.envs, Mapping):
            raise AirflowFailException(
                f"envs is {type(self.envs).__name__}; it must be a mapping of names to text"
            )
        if not self.deferrable:
            _refuse_running_loop()
        try:
            spec = self.spec.resolve(envs=self.envs, workdir=self.workdir)
            connection_of(spec, self.conn_id)
        except (TaskValidationError, ValueError) as error:
            raise AirflowFailException(str(error)) from None
        store, blobs = settings.state_store(), settings.blob_store()
        told: list[str] = []

        def decide(found: TaskRecord | None) -> State:
            reconciled = reconcile(found, max_tries=ti.max_tries)
            told.append(reconciled.message)
            return reconciled.state

        with TemporaryDirectory(prefix="managed-jobs-") as scratch:
            try:
                archives = pack_files(spec, scratch)
            except PackError as error:
                raise ManagedTaskFailed(f"cannot pack the task's files: {error}") from None
            for archive, reference in archives:
                if archive.skipped:
                    left_out = ", ".join(archive.skipped)
                    self.log.warning("not packed for %s (no files): %s", reference.destination, left_out)
            self._raise_if_killed()
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
        self._raise_if_killed()
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
        """Cancel the job of a task that runs in the worker; ``execute`` then raises, whatever it is doing."""
        self._killed = True
        if self._stop_inline is not None:
            self._stop_inline()

    def _order(self, spec: TaskSpec, files: list[FileTreeRef], started: datetime | None) -> TaskOrder:
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
            # In the worker Airflow itself watches the limit.
            deadline=None if limit is None or not self.deferrable else begin + limit.total_seconds(),
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
            timeout=None
            if deadline is None
            else max(0.0, deadline - time.time()) + self.grace_seconds + _BACKSTOP_SECONDS,
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
        """Run the controller in this process; SIGTERM comes as a call of ``on_kill``, a time-out as an exception."""
        from airflow_provider.runtime.control.events import Outcome
        from airflow_provider.runtime.control.status import Status

        try:
            return asyncio.run(self._control(record))
        except AirflowTaskTimeout:
            # It broke into the event loop at some point or other: what is left is ended by a second one.
            timeout = Outcome(Status.FAILED, "execution_timeout: the task ran out of time")
            return asyncio.run(self._control(record, stop=timeout))

    async def _control(self, record: TaskRecord, *, stop: Outcome | None = None) -> TaskRecord:
        from airflow_provider import settings
        from airflow_provider.hooks.controller import make_controller
        from airflow_provider.runtime.blocking import run_blocking
        from airflow_provider.runtime.control.events import Outcome
        from airflow_provider.runtime.control.status import Status

        store = await run_blocking(settings.state_store)
        record = await run_blocking(store.claim, record.id, record.owner)
        controller = await make_controller(record, store, lambda: self.log)
        # A killed task has five seconds, too few for a grace period of the user's choice.
        killed = Outcome(Status.CANCELLED, "the task was ended (SIGTERM)")
        loop = asyncio.get_running_loop()
        stop_at_once = partial(controller.stop, killed, at_once=True)

        def stop_inline() -> None:
            loop.call_soon_threadsafe(stop_at_once)

        self._stop_inline = stop_inline
        try:
            if self._killed:
                controller.stop(killed, at_once=True)
            elif stop is not None:
                controller.stop(stop)
            return await controller.run()
        finally:
            self._stop_inline = None

    def _raise_if_killed(self) -> None:
        if self._killed:
            raise ManagedTaskFailed("the task was ended (SIGTERM) before its job was started")

    def _result(self, record: TaskRecord) -> Any:
        """Return the output of a task that succeeded; raise for every other end."""
        from airflow_provider.runtime.control.status import Status

        if record.status is Status.SUCCEEDED:
            return None if record.output is None else json.loads(record.output)
        text = _failure(record)
        if record.status in (Status.CANCELLED, Status.FAILED_PRECHECKS) and not self._killed:
            # Another try would meet the same, or is not wanted. (A worker that was stopped is no such case.)
            raise AirflowFailException(text)
        raise ManagedTaskFailed(text)


def _failure(record: TaskRecord) -> str:
    outcome = record.state.outcome
    lines = [f"{record.status.value}: {outcome.reason if outcome else 'no reason is recorded'}"]
    if outcome and outcome.exit_codes:
        lines[0] += f" [exit codes: {', '.join(map(str, outcome.exit_codes))}]"
    if record.state.leaked:
        lines.append(f"Cluster {record.cluster_name} could not be removed; {_remains(record)}.")
    later = record.order.chain.task_names[record.order.chain.index + 1 :]
    if later:
        lines.append(f"Not started because {record.order.task.name} did not succeed: {', '.join(later)}.")
    if outcome and outcome.last_lines:
        lines.append("Last lines of its log:")
        lines.extend(f"  {line}" for line in outcome.last_lines)
    return "\n".join(lines)


def _remains(record: TaskRecord) -> str:
    if record.state.unreachable_since is not None:
        return "its host does not answer, and its lease ends it there"
    return "remove it by hand"


def _grace(seconds: object) -> float:
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= 600:
        raise ValueError(f"grace_seconds is {seconds!r}; it must be a number from 0 to 600")
    return float(seconds)


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise AirflowFailException("deferrable=False does not work where an event loop is running already")


def _spec(
    definition: TaskSpec | Mapping[str, object] | str | os.PathLike[str], *, default_name: str
) -> TaskSpec:
    from airflow_provider.runtime.task import TaskSpec, is_name, load_chain_file, task_from_definition

    if isinstance(definition, TaskSpec):
        return definition
    if isinstance(definition, Mapping):
        name = default_name.rpartition(".")[2]
        return task_from_definition({"name": name, **definition} if is_name(name) else definition)
    if not isinstance(definition, (str, os.PathLike)):
        raise TypeError(f"definition is {definition!r}; it must be a mapping or the path of a YAML file")
    chain = load_chain_file(definition)
    if len(chain.tasks) != 1:
        raise ValueError(f"{definition} holds a chain of {len(chain.tasks)} tasks; use managed_job() for it")
    return chain.tasks[0]
