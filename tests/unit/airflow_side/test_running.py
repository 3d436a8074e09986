"""Interrupts of callers whose coroutine runs on the background loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_provider.hooks import running


class Interrupted(BaseException):
    """As Ctrl-C, a time-out or a SIGTERM of Airflow raises it in the middle of anything."""


@pytest.mark.parametrize("started", [True, False])
def test_an_interrupt_next_to_the_start_of_a_call_ends_it_before_it_is_raised(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    begun = threading.Event()
    ends: list[str] = []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")

    start = running._Call.start

    def interrupt(call: running._Call[None]) -> None:
        if started:
            start(call)
            assert begun.wait(5)
        raise Interrupted

    monkeypatch.setattr(running._Call, "start", interrupt)
    coroutine = work()
    with pytest.raises(Interrupted):
        running.run_on_own_loop(coroutine)
    assert ends == (["ended"] if started else [])
    assert coroutine.cr_frame is None, "nothing of it is left, so that what it used can be closed"
