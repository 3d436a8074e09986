"""The trigger of one try: drives the controller, streams the log, yields one small event."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider.runtime.state import TaskRecord

KWARGS_VERSION = 1
_KILL_SECONDS = 25.0
"""Less than the time that Airflow gives ``on_kill`` (30 s by default): better to stop by ourselves, and say so. The
cluster then ends by its lease, which the cancellation has made short."""

_SETTLE_SECONDS = 5.0
"""How long after the deferral a task is resumed at the earliest. The scheduler takes the worker's "success" (that of
the deferral) for the end of a task that is running again already, and fails it (apache/airflow#71580); nothing tells
a trigger that the scheduler has seen it. Only tasks that end within these seconds and must be resumed wait."""


class ManagedTaskTrigger(BaseTrigger):
    """Runs one managed task to its end.

    Its arguments say which record to go on with and nothing else: they are stored in plain text. A trigger that is
    started again elsewhere goes on where the record and the agent's acknowledged log offset stand.

    Args:
        task: Number of the managed task in the state store.
        owner: Id of the try that it runs for; a later try's trigger makes this one let go.
        resume: Whether a task that succeeded has more to do in a worker. Otherwise the trigger itself ends it, which
            saves a worker's start.
        v: Version of these arguments.
        unknown: Arguments of later versions, which are kept out of the way.
    """

    def __init__(
        self, task: int, owner: str, resume: bool = True, v: int = KWARGS_VERSION, **unknown: Any
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own has no annotations
        self.managed_task = int(task)
        self.owner = str(owner)
        self.resume = bool(resume)
        self.v = v
        self._claimed: TaskRecord | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        arguments = {
            "task": self.managed_task,
            "owner": self.owner,
            "resume": self.resume,
            "v": self.v,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Claim the record, drive the task to its end, and yield how it ended."""
        await asyncio.to_thread(_import_everything)
        from airflow_provider import settings
        from airflow_provider.hooks.controller import CannotBegin, make_controller
        from airflow_provider.runtime.blocking import run_blocking
        from airflow_provider.runtime.control.status import Status
        from airflow_provider.runtime.errors import Superseded
        from airflow_provider.runtime.state import NoRecord
        from airflow_provider.tasklog import drained

        begin = time.monotonic()
        try:
            store = await run_blocking(settings.state_store)
            self._claimed = await run_blocking(store.claim, self.managed_task, self.owner)
        except NoRecord:
            yield self._event(
                "FAILED_CONTROLLER",
                f"the triggerer's state store ({settings.database_url(masked=True)}) does not have managed task "
                f"{self.managed_task}, which the worker wrote: both need the same [managed_jobs] database_url",
            )
            return
        except Superseded as error:
            await self._let_go(error)
        try:
            controller = await make_controller(self._claimed, store, lambda: self.log)
            record = await controller.run()
        except CannotBegin as error:
            await asyncio.sleep(max(0.0, begin + _SETTLE_SECONDS - time.monotonic()))
            yield self._event("FAILED_CONTROLLER", str(error))
            return
        except Superseded as error:
            await self._let_go(error)
        if self.task_instance is not None:  # else there is no supervisor that takes the log
            await drained(self.log)
        if record.status is Status.SUCCEEDED and not self.resume and self.task_instance is not None:
            await self._push(record)
            yield TaskSuccessEvent()
            return
        await asyncio.sleep(max(0.0, begin + _SETTLE_SECONDS - time.monotonic()))
        yield self._event(record.status.value)

    async def _let_go(self, reason: Exception) -> NoReturn:
        """Wait to be cancelled: a trigger that ends without an event fails the task, whoever runs it now."""
        await self.log.ainfo(f"letting go: {reason}")
        await asyncio.Future()
        raise AssertionError("a future that nobody completes")

    async def on_kill(self) -> None:
        """Cancel the job and remove the cluster, if it was really the user who ended the task."""
        try:
            await _through_cancellations(asyncio.create_task(self._clean_up()), _KILL_SECONDS)
        except asyncio.TimeoutError:
            await self.log.awarning(
                f"the clean-up is not done after {_KILL_SECONDS:.0f} s; the next try or the cluster's lease ends it"
            )

    async def _clean_up(self) -> None:
        from airflow_provider import settings
        from airflow_provider.hooks.controller import CannotBegin, make_controller
        from airflow_provider.runtime.blocking import run_blocking
        from airflow_provider.runtime.control.events import Outcome
        from airflow_provider.runtime.control.status import Status
        from airflow_provider.runtime.errors import Superseded

        if await self._still_deferred():
            # A stalled triggerer that wakes after another took its triggers is told to kill them: a false alarm.
            await self.log.ainfo("the task is still deferred, so its job goes on")
            return
        store = await run_blocking(settings.state_store)
        record = await run_blocking(store.get, self.managed_task)
        # Killed before it could claim, it still ends what the worker or an earlier try began.
        if self._claimed is not None and record.generation != self._claimed.generation:
            await self.log.ainfo("another try or triggerer controls the task now; nothing to kill")
            return
        try:
            # A generation of its own: whatever of run() is still under way can change nothing any more.
            record = await run_blocking(store.claim, self.managed_task, self.owner)
            controller = await make_controller(record, store, lambda: self.log)
            controller.stop(Outcome(Status.CANCELLED, "the task was ended by a user"))
            await controller.run()
        except Superseded as error:
            await self.log.ainfo(f"letting go: {error}")
        except CannotBegin as error:
            await self.log.awarning(f"cannot clean up, the cluster's lease ends it: {error}")

    async def _still_deferred(self) -> bool:
        """Ask Airflow whether the task is still deferred; without a task instance there is nobody to ask."""
        from airflow_provider.runtime.blocking import run_blocking

        ti = self.task_instance
        if ti is None:
            return False
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        states = await run_blocking(
            RuntimeTaskInstance.get_task_states,
            dag_id=ti.dag_id,
            map_index=ti.map_index,
            task_ids=[ti.task_id],
            run_ids=[ti.run_id],
        )
        return any(state == "deferred" for tasks in states.values() for state in tasks.values())

    async def _push(self, record: TaskRecord) -> None:
        """Make the task's output its return value.

        Not through the event's own ``xcoms``: Airflow 3.3 stores those as JSON within JSON.
        """
        if record.output is None:
            return
        from airflow.sdk.bases.xcom import BaseXCom
        from airflow.sdk.execution_time.xcom import XCom

        key = record.key
        await XCom.aset(
            BaseXCom.XCOM_RETURN_KEY,
            json.loads(record.output),
            dag_id=key.dag_id,
            task_id=key.task_id,
            run_id=key.run_id,
            map_index=key.map_index,
        )

    def _event(self, status: str, reason: str = "") -> TriggerEvent:
        payload = {"v": 1, "task": self.managed_task, "status": status, "reason": reason}
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's own has no annotations


async def _through_cancellations(work: asyncio.Task[Any], seconds: float) -> None:
    """Wait for ``work`` although this task is cancelled meanwhile; end ``work`` when it takes longer than ``seconds``.

    Airflow 3.3 repeats the cancellation that led to ``on_kill`` at each of the triggerer's rounds, a second apart, and
    would so interrupt any clean-up that takes longer.

    Raises:
        asyncio.TimeoutError: it took longer.
    """
    deadline = time.monotonic() + seconds
    while not work.done() and (left := deadline - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({work}, timeout=left)
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
        raise asyncio.TimeoutError
    work.result()


def _import_everything() -> None:
    """Import what a controller needs, away from the event loop, which a first import would hold up for long."""
    for name in ("hooks.controller", "runtime.client.agent", "runtime.transport.channel"):
        import_module(f"airflow_provider.{name}")
