from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator

import pytest

from airflow_provider.runtime.transport.ssh.errors import SshUnreachable
from airflow_provider.runtime.transport.ssh.thread import LoopThread


async def nothing() -> None:
    pass


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.end(nothing, seconds=5)


async def seen(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 5)


async def test_a_coroutine_runs_in_the_thread_and_its_result_comes_back(thread: LoopThread) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert await thread.call(work) == "test-loop"


async def test_what_a_coroutine_raises_is_raised_to_the_caller(thread: LoopThread) -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        await thread.call(work)


def test_two_loops_after_each_other_use_the_same_thread(thread: LoopThread) -> None:
    async def work() -> int:
        return threading.get_ident()

    async def call() -> int:
        return await thread.call(work)

    assert asyncio.run(call()) == asyncio.run(call())


async def test_a_cancelled_caller_goes_on_at_once_and_the_work_is_cancelled(thread: LoopThread) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.sleep(0.2)  # what must be undone takes its time
            raise

    call = asyncio.ensure_future(thread.call(work))
    await seen(started)
    call.cancel()
    before = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert time.monotonic() - before < 0.15
    await seen(cancelled)


async def test_a_result_that_comes_after_the_caller_was_cancelled_is_discarded(thread: LoopThread) -> None:
    started, thrown_away = threading.Event(), threading.Event()
    discarded: list[str] = []

    async def work() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "made all the same"
        return ""

    def discard(result: str) -> None:
        discarded.append(result)
        thrown_away.set()

    call = asyncio.ensure_future(thread.call(work, discard=discard))
    await seen(started)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await seen(thrown_away)
    assert discarded == ["made all the same"]


async def test_a_result_that_is_on_its_way_when_the_caller_is_cancelled_is_discarded(
    thread: LoopThread,
) -> None:
    done, thrown_away = threading.Event(), threading.Event()

    async def work() -> str:
        thread.loop.call_later(0.05, done.set)
        return "done"

    call = asyncio.ensure_future(thread.call(work, discard=lambda _: thrown_away.set()))
    await asyncio.sleep(0)
    done.wait(5)  # this loop stands still: the result waits in it, and the caller has not seen it
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await seen(thrown_away)


async def test_a_result_that_was_taken_is_not_discarded(thread: LoopThread) -> None:
    discarded: list[str] = []

    async def work() -> str:
        return "taken"

    assert await thread.call(work, discard=discarded.append) == "taken"
    await thread.call(nothing)
    assert not discarded


def test_a_result_for_a_loop_that_is_closed_is_discarded(thread: LoopThread) -> None:
    go, thrown_away = threading.Event(), threading.Event()

    async def work() -> str:
        await asyncio.to_thread(go.wait, 5)
        return "late"

    caller = asyncio.new_event_loop()
    call = caller.create_task(thread.call(work, discard=lambda _: thrown_away.set()))
    caller.call_later(0.05, caller.stop)
    caller.run_forever()
    caller.close()
    go.set()
    assert thrown_away.wait(5)
    call._log_destroy_pending = False  # type: ignore[attr-defined]  # its loop is gone: that is the point
    del call


async def test_work_knows_nothing_of_the_context_of_its_caller(thread: LoopThread) -> None:
    whose = contextvars.ContextVar("whose", default="nobody's")
    whose.set("the first caller's")

    async def work() -> str:
        return whose.get()

    assert await thread.call(work) == "nobody's"


async def test_calls_that_wait_when_the_thread_ends_say_that_it_ends(thread: LoopThread) -> None:
    started = threading.Event()

    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    call = asyncio.ensure_future(thread.call(work))
    await seen(started)
    await asyncio.to_thread(thread.end, nothing, seconds=5)
    with pytest.raises(SshUnreachable, match="ends"):
        await call
    with pytest.raises(SshUnreachable, match="ends"):
        await thread.call(nothing)


def test_the_end_does_not_wait_for_work_that_does_not_end() -> None:
    thread = LoopThread("test-stubborn")

    async def hardly_ever() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    before = time.monotonic()
    thread.end(hardly_ever, seconds=3)
    assert time.monotonic() - before < 1.5
    assert thread.loop.is_closed()
