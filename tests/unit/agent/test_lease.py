"""When a cluster that nobody talks to ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from airflow_provider.runtime.agent.lease import Lease


async def expires(lease: Lease, within: float = 5.0) -> float:
    before = time.monotonic()
    await asyncio.wait_for(lease.expired(), within)
    return time.monotonic() - before


async def test_it_ends_when_nobody_is_heard() -> None:
    assert await expires(Lease(0.05)) >= 0.04


async def test_each_call_renews_it() -> None:
    lease = Lease(0.2)
    ending = asyncio.create_task(expires(lease))
    for _ in range(8):
        await asyncio.sleep(0.05)
        lease.renew()
    assert await ending >= 0.5


async def test_an_open_stream_holds_it_and_its_end_renews_it() -> None:
    lease = Lease(0.05)
    ending = asyncio.create_task(lease.expired())
    with lease.held():
        await asyncio.sleep(0.3)
        assert not ending.done()
    await asyncio.wait_for(ending, 5)


async def test_a_shorter_lease_counts_at_once() -> None:
    lease = Lease(3600)
    ending = asyncio.create_task(expires(lease))
    await asyncio.sleep(0)
    lease.renew(0.05)
    assert await ending < 5


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_no_new_length_keeps_the_old_one(seconds: float) -> None:
    lease = Lease(7)
    lease.renew(seconds)
    assert lease.seconds == 7
