"""When a cluster that nobody talks to ends."""

from __future__ import annotations

import asyncio
import math

import pytest

from airflow_provider.runtime.agent import lease as lease_module
from airflow_provider.runtime.agent.lease import MAX_HOLD_SECONDS, BadHold, Lease


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


async def test_a_hold_keeps_it_until_the_hold_is_over(clock: Clock) -> None:
    lease = Lease(0.02)
    lease.hold("controller", 0.1)
    ending = asyncio.create_task(lease.expired())
    clock.now = 0.09
    await asyncio.sleep(0.2)
    assert not ending.done()
    assert lease.left() == pytest.approx(0.01)
    clock.now = 0.11
    await asyncio.wait_for(ending, 10)


async def test_a_hold_let_go_ends_it_in_its_own_time(clock: Clock) -> None:
    lease = Lease(0.02)
    lease.hold("controller", 3600)
    ending = asyncio.create_task(lease.expired())
    await asyncio.sleep(0.05)
    clock.now = 10.0
    lease.hold("controller", 0)
    assert lease.held_seconds() == 0
    assert lease.left() == pytest.approx(0.02)
    await asyncio.sleep(0.05)
    assert not ending.done()
    clock.now = 10.03
    await asyncio.wait_for(ending, 10)


async def test_each_holder_has_its_own_hold_and_the_latest_word_counts(clock: Clock) -> None:
    lease = Lease(1)
    lease.hold("a", 100)
    lease.hold("b", 50)
    assert lease.held_seconds() == 100
    lease.hold("a", 10)
    assert lease.held_seconds() == 50
    lease.hold("b", 0)
    assert lease.held_seconds() == 10
    clock.now = 11
    assert lease.held_seconds() == 0
    assert lease.left() == 0


async def test_what_is_left_is_the_longer_of_lease_and_hold(clock: Clock) -> None:
    lease = Lease(100)
    lease.hold("a", 10)
    assert lease.left() == 100
    lease.hold("a", 1000)
    assert lease.left() == 1000
    clock.now = 950
    assert lease.left() == 50
    with lease.held():
        assert lease.left() == 100


@pytest.mark.parametrize(
    ("holder", "seconds", "field"),
    [
        ("", 1.0, "holder"),
        ("x" * 257, 1.0, "holder"),
        ("a", -1.0, "seconds"),
        ("a", math.nan, "seconds"),
        ("a", math.inf, "seconds"),
        ("a", MAX_HOLD_SECONDS + 1, "seconds"),
    ],
)
async def test_a_hold_that_makes_no_sense_is_refused(holder: str, seconds: float, field: str) -> None:
    lease = Lease(1)
    lease.hold("a", 10)
    with pytest.raises(BadHold, match=field):
        lease.hold(holder, seconds)
    assert lease.held_seconds() > 9


async def test_each_word_on_a_hold_is_told() -> None:
    told: list[float] = []
    lease = Lease(1)
    lease.on_hold(lambda: told.append(lease.held_seconds()))
    lease.hold("a", 10)
    lease.hold("a", 0)
    assert told == [pytest.approx(10, abs=1), 0]
