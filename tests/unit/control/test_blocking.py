"""Blocking calls in threads: the loop goes on, and a cancelled caller waits for its thread."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from airflow_provider.runtime.blocking import outlast, run_blocking


async def test_the_result_or_the_exception_comes_back() -> None:
    assert await run_blocking(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_blocking(divmod, 1, 0)


async def test_the_loop_goes_on_meanwhile() -> None:
    go_on = threading.Event()
    call = asyncio.create_task(run_blocking(go_on.wait, 10))
    await asyncio.sleep(0)
    go_on.set()
    assert await call


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_caller_waits_for_its_thread_however_often_it_is_cancelled(times: int) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(10)

    call = asyncio.create_task(run_blocking(work))
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(times):
        call.cancel()
        await asyncio.sleep(0.01)
    assert not call.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_an_error_of_the_thread_of_a_cancelled_caller_is_not_reported_as_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = threading.Event()

    def work() -> None:
        go_on.wait(10)
        raise ValueError("nobody asks")

    call = asyncio.create_task(run_blocking(work))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    del call
    assert caplog.records == []


async def test_outlasting_something_done_returns_at_once() -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_exception(ValueError("seen"))
    await outlast(done)


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Airflow forks its workers, and threads do not survive that."""
    assert asyncio.run(run_blocking(os.getpid)) == os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            answer = asyncio.run(asyncio.wait_for(run_blocking(os.getpid), 5))
            code = 0 if answer == os.getpid() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
