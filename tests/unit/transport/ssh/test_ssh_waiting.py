from __future__ import annotations

import asyncio

import pytest

from airflow_provider.runtime.transport.ssh.waiting import Channel, open_channel, within


async def test_what_is_done_in_time_is_returned_or_raised() -> None:
    async def done() -> int:
        return 7

    async def failed() -> int:
        raise KeyError("x")

    assert await within(5, done()) == 7
    with pytest.raises(KeyError):
        await within(5, failed())


async def test_what_takes_too_long_is_cancelled_and_over_when_the_caller_hears_of_it() -> None:
    undone = False

    async def slow() -> None:
        nonlocal undone
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            undone = True

    with pytest.raises(TimeoutError):
        await within(0.01, slow())
    assert undone


async def test_a_result_that_comes_with_the_cancellation_is_discarded() -> None:
    discarded: list[str] = []

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "made all the same"
        return ""

    waiting = asyncio.ensure_future(within(60, stubborn(), discard=discarded.append))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert discarded == ["made all the same"]


async def test_a_cancelled_caller_whose_work_fails_is_cancelled() -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise KeyError("x") from None

    waiting = asyncio.ensure_future(within(60, fails(), discard=print))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


class MadeUpChannel(Channel):
    def __init__(self) -> None:
        self.aborted = asyncio.Event()

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.parametrize("late", [True, False], ids=["opens later", "opens at the same moment"])
async def test_a_channel_that_nobody_waits_for_is_closed(late: bool) -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    channel = MadeUpChannel()

    async def opening() -> tuple[MadeUpChannel, None]:
        await answer
        return channel, None

    waiting = asyncio.ensure_future(open_channel(opening()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if not late:
        answer.set_result(None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if late:
        answer.set_result(None)
    await asyncio.wait_for(channel.aborted.wait(), 5)


async def test_a_channel_that_is_refused_later_is_no_complaint() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def opening() -> tuple[MadeUpChannel, None]:
        await answer
        raise KeyError("refused")

    waiting = asyncio.ensure_future(open_channel(opening()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    answer.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
