"""What a process remembers of hosts, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider.runtime.infra.ssh.sightings import (
    FAILED_SECONDS,
    REFUSED_SECONDS,
    TAKEN_SECONDS,
    Finding,
    Sighting,
    Sightings,
)
from airflow_provider.runtime.transport.ssh.target import SshTarget

HOST = SshTarget(name="h", host="10.0.0.1", user="u")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("finding", "seconds"),
    [
        (Finding.TAKEN, TAKEN_SECONDS),
        (Finding.FAILED, FAILED_SECONDS),
        (Finding.REFUSED, REFUSED_SECONDS),
    ],
)
def test_a_sighting_is_believed_for_its_time(clock: Clock, finding: Finding, seconds: float) -> None:
    sightings = Sightings(clock)
    sightings.note(HOST, Sighting(finding, "why"))

    clock.now = seconds - 0.1
    assert sightings.of(HOST) == Sighting(finding, "why")
    clock.now = seconds
    assert sightings.of(HOST) is None


def test_a_host_that_was_given_back_is_thought_well_of(clock: Clock) -> None:
    sightings = Sightings(clock)
    sightings.note(HOST, Sighting(Finding.TAKEN, "why"))

    sightings.forget(HOST)

    assert sightings.of(HOST) is None


def test_a_host_too_small_for_one_task_may_do_for_the_next(clock: Clock) -> None:
    sightings = Sightings(clock)
    sightings.note(HOST, Sighting(Finding.TAKEN, "is being asked"))

    sightings.note(HOST, Sighting(Finding.MISFIT, "too small"))

    assert sightings.of(HOST) is None


def test_a_host_that_is_being_asked_is_left_to_the_one_who_asks_and_the_reason_stays(clock: Clock) -> None:
    sightings = Sightings(clock)
    sightings.being_asked(HOST)
    assert sightings.of(HOST) == Sighting(Finding.TAKEN, "another task is about to take it")

    sightings.note(HOST, Sighting(Finding.TAKEN, "taken by another site"))
    clock.now = TAKEN_SECONDS
    assert sightings.of(HOST) is None
    sightings.being_asked(HOST)

    assert sightings.of(HOST) == Sighting(Finding.TAKEN, "taken by another site")


async def test_who_has_waited_longest_for_a_host_is_woken_when_it_is_given_back(clock: Clock) -> None:
    sightings = Sightings(clock)
    other = SshTarget(name="o", host="10.0.0.2", user="u")
    elsewhere = asyncio.create_task(sightings.wait(60, [other]))
    first = asyncio.create_task(sightings.wait(60, [other, HOST]))
    second = asyncio.create_task(sightings.wait(60, [HOST]))
    await asyncio.sleep(0)

    await asyncio.to_thread(sightings.forget, HOST)

    await asyncio.wait_for(first, 5)
    assert not second.done()
    assert not elsewhere.done()
    sightings.forget(HOST)
    sightings.forget(other)
    await asyncio.wait_for(asyncio.gather(second, elsewhere), 5)


async def test_a_wait_for_a_host_ends_after_its_time(clock: Clock) -> None:
    await asyncio.wait_for(Sightings(clock).wait(0.01, [HOST]), 5)


def test_the_same_address_with_another_account_is_another_host(clock: Clock) -> None:
    sightings = Sightings(clock)
    sightings.note(HOST, Sighting(Finding.TAKEN, "why"))

    assert sightings.of(SshTarget(name="h", host="10.0.0.1", user="v")) is None
