"""Airflow's SSHRemoteJobOperator and its trigger, run as a worker and a triggerer do, without either.

The operator writes a job's output to a file on the host, and its trigger asks for the file's news every so often.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from airflow.providers.ssh.operators.ssh_remote_job import SSHRemoteJobOperator
from airflow.providers.ssh.triggers.ssh_remote_job import SSHRemoteJobTrigger
from airflow.sdk.exceptions import TaskDeferred

from benchmarks.report import Peer
from benchmarks.ssh.bench import Way, connection, connection_id

NAME = "SSHRemoteJobOperator"


def peer(value: float, *, unfinished: bool = False) -> Peer:
    """Return a figure of this peer."""
    return Peer(value, unfinished, NAME)


class Listener(logging.Handler):
    """Takes what a trigger writes to the task's log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: asyncio.Queue[logging.LogRecord] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.records.put_nowait(record)


class Trigger(SSHRemoteJobTrigger):
    """The trigger with a logger that is listened to."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.listener = Listener()
        self._listened = logging.Logger("trigger")
        self._listened.addHandler(self.listener)

    @property
    def log(self) -> Any:
        """The task's log. What Airflow declares here are structlog's loggers; the trigger calls one as any logger."""
        return self._listened


@dataclass(frozen=True)
class _TaskInstance:
    """What the operator wants of its task instance."""

    task_id: str
    dag_id: str = "benchmark"
    run_id: str = "benchmark"
    try_number: int = 1

    def xcom_push(self, key: str, value: object) -> None:
        """Keep nothing."""


def submit(way: Way, command: str) -> Trigger:
    """Start a job as a worker does, and return its trigger as the triggerer makes it. Blocking."""
    os.environ.update(connection(way))
    task_id = f"task-{uuid.uuid4().hex[:12]}"
    # Only the last command of a list would get its output into the file.
    operator = SSHRemoteJobOperator(
        task_id=task_id, ssh_conn_id=connection_id(way), command=f"{{ {command}; }}"
    )
    try:
        operator.execute(cast("Any", {"ti": _TaskInstance(task_id)}))
    except TaskDeferred as deferred:
        _, arguments = deferred.trigger.serialize()
        return Trigger(**arguments)
    raise RuntimeError("the operator did not defer")


async def events(trigger: Trigger) -> AsyncIterator[dict[str, Any]]:
    """Yield the trigger's events as the triggerer would store them."""
    async for event in trigger.run():
        yield event.payload


@asynccontextmanager
async def watched(trigger: Trigger) -> AsyncIterator[Callable[[], Awaitable[logging.LogRecord]]]:
    """Run a trigger whose job does not end, as long as the context; gives what waits for its next record."""
    watching = asyncio.create_task(_no_event(trigger))

    async def record() -> logging.LogRecord:
        getting = asyncio.create_task(trigger.listener.records.get())
        try:
            await asyncio.wait([getting, watching], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                watching.result()
            return getting.result()
        finally:
            getting.cancel()

    try:
        yield record
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _no_event(trigger: Trigger) -> None:
    async for event in events(trigger):
        raise RuntimeError(f"the peer's job ended: {event}")
    raise RuntimeError("the peer's trigger ended")


@asynccontextmanager
async def polling(trigger: Trigger) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """One poll of a trigger: the commands that its loop runs each time that there is something new."""
    connection = await trigger._connect()

    async def poll() -> object:
        code = await trigger._check_completion(connection)
        chunk, _ = await trigger._read_log_chunk(connection)
        if code is not None or not chunk:
            raise RuntimeError("the peer's job has ended or printed nothing")
        return chunk

    try:
        yield poll
    finally:
        await trigger._close(connection)
