"""Waiting with a limit."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider.runtime.agent.waiting import happens, within


async def test_what_comes_in_time_is_returned() -> None:
    assert await within(10, asyncio.sleep(0, "done")) == "done"


async def test_what_takes_longer_is_cancelled() -> None:
    work = asyncio.ensure_future(asyncio.sleep(100))
    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, work)
    await asyncio.wait({work})
    assert work.cancelled()


async def test_what_fails_fails() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(10, fail())


async def test_an_event_happens_or_does_not() -> None:
    event = asyncio.Event()
    assert not await happens(event, 0.01)
    event.set()
    assert await happens(event, None)


async def test_a_cancellation_that_comes_together_with_the_event_is_not_lost() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(happens(event, 10))
    await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)  # now what is waited for is done, and its waiter does not know yet
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
