"""What this process has seen of hosts lately, so that a hundred tasks that wait do not each ask the same hosts.

Only ever a reason to look elsewhere first: what a host really is, it says itself when it is asked.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider.runtime.transport.ssh.target import SshTarget

TAKEN_SECONDS = 4.0
"""For so long a host that was taken is not asked again, which is also the longest that a free one is overlooked."""

FAILED_SECONDS = 20.0
"""For so long a host that could not be used is passed over while it was a passing fault."""

REFUSED_SECONDS = 60.0
"""For so long a host that refused us is not asked again: accounts are locked after a few wrong keys."""


class Finding(Enum):
    """What was the matter with a host."""

    TAKEN = "taken"
    """Somebody else has it, or is about to."""
    FAILED = "failed"
    """It could not be used; that may pass."""
    REFUSED = "refused"
    """It could not be used, and will not be before somebody changes something."""
    MISFIT = "misfit"
    """It is too small for the task."""


_LASTS = {
    Finding.TAKEN: TAKEN_SECONDS,
    Finding.FAILED: FAILED_SECONDS,
    Finding.REFUSED: REFUSED_SECONDS,
}


@dataclass(frozen=True)
class Sighting:
    """What was found, and the words for it."""

    finding: Finding
    reason: str


@dataclass(frozen=True, eq=False)
class _Waiter:
    """Somebody who waits for one of some hosts."""

    hosts: frozenset[SshTarget]
    loop: asyncio.AbstractEventLoop
    woken: asyncio.Event


class Sightings:
    """Remembers, for a while, why hosts could not be had. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[SshTarget, tuple[float, Sighting]] = {}
        self._waiting: list[_Waiter] = []
        self._lock = Lock()

    def note(self, host: SshTarget, sighting: Sighting) -> None:
        """Remember it; a misfit says something about one task only, and is not."""
        lasts = _LASTS.get(sighting.finding)
        if lasts is None:
            self.forget(host)
        else:
            self._seen[host] = (self._clock() + lasts, sighting)

    def being_asked(self, host: SshTarget) -> None:
        """Remember that somebody asks the host now: others of this process need not do so too meanwhile."""
        # In the words of the last time, if it was taken then: a reason that changes is news to whoever waits.
        _, last = self._seen.get(host, (0.0, None))
        known = last is not None and last.finding is Finding.TAKEN
        self.note(
            host, last if known and last else Sighting(Finding.TAKEN, "another task is about to take it")
        )

    def forget(self, host: SshTarget) -> None:
        """Think well of the host again, and wake who has waited for it for longest: it may be free."""
        self._seen.pop(host, None)
        with self._lock:
            waiter = next((waiter for waiter in self._waiting if host in waiter.hosts), None)
            if waiter is not None:
                self._waiting.remove(waiter)
        if waiter is not None:
            with suppress(RuntimeError):  # its event loop is closed
                waiter.loop.call_soon_threadsafe(waiter.woken.set)

    async def wait(self, seconds: float, hosts: Iterable[SshTarget]) -> None:
        """Wait until one of the hosts may be free, for so many seconds at most."""
        waiter = _Waiter(frozenset(hosts), asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.append(waiter)
        try:
            await happens(waiter.woken, seconds)
        finally:
            with self._lock, suppress(ValueError):
                self._waiting.remove(waiter)

    def of(self, host: SshTarget) -> Sighting | None:
        """Return what was the matter with the host, None when nothing is known."""
        until, sighting = self._seen.get(host, (0.0, None))
        return sighting if until > self._clock() else None


SHARED = Sightings()
"""Those of this process."""
