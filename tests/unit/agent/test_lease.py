"""When a cluster that nobody talks to ends."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider.runtime.agent import lease as lease_module
from airflow_provider.runtime.agent.lease import Lease


class Clock:
    """What the lease takes for the time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still; the lease looks at it again whenever the rest of its length is over."""
    made = Clock()
    monkeypatch.setattr(lease_module, "time", made)
    return made


async def test_it_ends_when_nobody_is_heard(clock: Clock) -> None:
    lease = Lease(0.02)
    ending = asyncio.create_task(lease.expired())
    await asyncio.sleep(0.1)
    assert not ending.done()
    clock.now = 0.03
    await asyncio.wait_for(ending, 10)


async def test_each_call_renews_it(clock: Clock) -> None:
    lease = Lease(0.02)
    ending = asyncio.create_task(lease.expired())
    for _ in range(5):
        clock.now += 0.015
        lease.renew()
        await asyncio.sleep(0.05)
        assert not ending.done()
    clock.now += 0.025
    await asyncio.wait_for(ending, 10)


async def test_an_open_stream_holds_it_and_its_end_renews_it() -> None:
    lease = Lease(0.05)
    ending = asyncio.create_task(lease.expired())
    with lease.held():
        await asyncio.sleep(0.3)
        assert not ending.done()
    await asyncio.wait_for(ending, 5)


async def test_a_shorter_lease_counts_at_once() -> None:
    lease = Lease(3600)
    ending = asyncio.create_task(lease.expired())
    await asyncio.sleep(0)
    lease.renew(0.05)
    await asyncio.wait_for(ending, 10)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_no_new_length_keeps_the_old_one(seconds: float) -> None:
    lease = Lease(7)
    lease.renew(seconds)
    assert lease.seconds == 7
