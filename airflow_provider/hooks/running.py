"""Coroutines for callers that are not coroutines, or are on another event loop: they run on one in the background."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider.runtime.blocking import outlast

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")

_CLEAN_UP_SECONDS = 10.0
"""How long an interrupted caller waits for what it began to clean up."""


def run_on_own_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` on the background event loop of this process and return what it returns.

    Everything that is made there, such as channels, is kept for the next call. An interrupt of the caller (Ctrl-C, a
    time-out, SIGTERM of an Airflow task) cancels the work, and gives it some seconds to clean up.
    """
    call = _Call(work)
    try:
        # In here: an interrupt that comes just after the start must find what it has to end.
        call.start()
        return call.result.result()
    except BaseException:
        if not call.result.done():
            call.cancel()
            concurrent.futures.wait([call.result], timeout=_CLEAN_UP_SECONDS)
        raise


async def arun_on_own_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Do as ``run_on_own_loop`` for a caller on an event loop of its own, which is not held up."""
    call = _Call(work)
    call.start()
    waiting = asyncio.wrap_future(call.result)
    try:
        await asyncio.wait({waiting})
    except asyncio.CancelledError:
        call.cancel()
        await outlast(waiting)
        raise
    return waiting.result()


class _Call(Generic[Result]):
    """A coroutine on the background loop; its result is there when it is over, also when it was cancelled."""

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.result: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        self._loop = _BACKGROUND.loop()

    def start(self) -> None:
        """Start the coroutine."""
        self._loop.call_soon_threadsafe(self._start)

    def cancel(self) -> None:
        """Cancel the coroutine, also one that was not started."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> asyncio.Task[Result]:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._settle)
        return self._task

    def _cancel(self) -> None:
        (self._task or self._start()).cancel()

    def _settle(self, task: asyncio.Task[Result]) -> None:
        if task.cancelled():
            self.result.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


class _Background:
    """The background loop, made at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop.

        Raises:
            RuntimeError: this process is a fork of one that has used it.
        """
        if self._process not in (None, os.getpid()):
            raise RuntimeError(
                "this process was forked from one that has used a cluster, and gRPC does not work in a fork of a process "
                "that uses it; use clusters after the fork only, or start the process anew (multiprocessing: spawn)"
            )
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="managed-jobs-loop", daemon=True).start()
                self._process = os.getpid()
            return self._loop


_BACKGROUND = _Background()
