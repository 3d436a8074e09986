"""A thread with an event loop of its own, for what must outlive the loops of those who use it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import ParamSpec

from airflow_provider.runtime.transport.ssh.errors import SshUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_ENDING_SECONDS = 0.5
"""For what the thread still does at its end, such as waiting for children that it killed."""


class LoopThread:
    """A daemon thread that runs an event loop until it is ended; calls come from any other loop and thread.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_DaemonThreads(max_workers=1))
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(
        self,
        work: Callable[[], Coroutine[Any, Any, Result]],
        *,
        discard: Callable[[Result], object] | None = None,
    ) -> Result:
        """Run a coroutine in the thread, and return what it returns.

        A caller that is cancelled goes on at once, and the coroutine is cancelled. A result that nobody is there to
        take, since the caller was cancelled or its loop has ended, is given to ``discard``, in the thread.

        Raises:
            SshUnreachable: the thread has ended, as it does together with the process.
        """
        call = _Call(work, discard)
        if not self.post(call.start):
            raise _ended()
        try:
            return await call.answer
        except (asyncio.CancelledError, GeneratorExit):
            self.post(call.abandon)
            raise

    def post(self, function: Callable[[], object]) -> bool:
        """Have a function called in the thread soon, from any thread.

        Returns:
            False when the thread has ended, or is another process's: that of the parent, in a forked child.
        """
        if os.getpid() != self._process:
            return False
        try:
            # What lives on the thread belongs to the process: it must not keep, nor log for, whoever came first.
            self.loop.call_soon_threadsafe(function, context=contextvars.Context())
        except RuntimeError:
            return False
        return True

    def end(self, last: Callable[[], Coroutine[Any, Any, None]], *, seconds: float) -> None:
        """Run ``last`` in the thread, for half a second at most, and end the thread.

        Args:
            last: What is done before the rest is cancelled.
            seconds: How long the end is waited for.
        """

        def begin() -> None:
            ending = self.loop.create_task(self._end(last))
            ending.add_done_callback(lambda _: self.loop.stop())

        if self.post(begin):
            self._thread.join(seconds)

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        ending = self.loop.create_task(last())
        await asyncio.wait({ending}, timeout=_ENDING_SECONDS)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_ENDING_SECONDS)
        if ending.done() and not ending.cancelled() and (error := ending.exception()) is not None:
            log.error("%s: %s at the end", self._thread.name, error, exc_info=error)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


class _DaemonThreads(ThreadPoolExecutor):
    """Runs each call in a thread of its own, which the end of the process does not wait for.

    A name server that does not answer can hold a thread for half a minute.
    """

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """See ThreadPoolExecutor."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="managed-jobs-ssh-blocking", daemon=True).start()
        return future


class _Call(Generic[Result]):
    """A coroutine that runs in one loop for a caller in another. Made in the caller's; its methods run in the thread.

    What becomes of the result is decided in the thread alone, so that it is either taken or discarded.
    """

    def __init__(
        self, work: Callable[[], Coroutine[Any, Any, Result]], discard: Callable[[Result], object] | None
    ) -> None:
        self._caller = asyncio.get_running_loop()
        self._work = work
        self._discard = discard
        self._abandoned = False
        self._task: asyncio.Task[Result] | None = None
        self.answer: asyncio.Future[Result] = self._caller.create_future()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._finish)

    def abandon(self) -> None:
        """Nobody waits any more."""
        self._abandoned = True
        if self._task is None:
            return  # never so: this is posted after the start
        if self._task.done():
            self._throw_away(self._task)
        else:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[Result]) -> None:
        if self._abandoned:
            self._throw_away(task)
            return
        try:
            self._caller.call_soon_threadsafe(self._deliver, task)
        except RuntimeError:  # the caller's loop is closed
            self._throw_away(task)

    def _throw_away(self, task: asyncio.Task[Result]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        if self._discard is not None:
            self._discard(task.result())

    def _deliver(self, task: asyncio.Task[Result]) -> None:
        """In the caller's loop: hand over what the coroutine came to."""
        if self.answer.done():
            return  # the caller was cancelled, and says so
        if task.cancelled():
            # Not by the caller: the thread ends. As a cancellation it would look like one of the caller.
            self.answer.set_exception(_ended())
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


def _ended() -> SshUnreachable:
    return SshUnreachable("this process ends, and its SSH connections with it")
