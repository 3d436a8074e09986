"""The lease: how long a cluster lives without hearing from a controller, and who holds it beyond that."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_HOLD_SECONDS = 7 * 24 * 3600.0
"""The longest hold: whoever needs the cluster for longer says so again."""

_MAX_HOLDER_CHARACTERS = 256


class BadHold(ValueError):
    """A hold that cannot be: its holder or its seconds make no sense."""


class Lease:
    """Counts the seconds since a controller was last heard. Belongs to one event loop.

    A holder (a controller between two stages of its chain) may keep the cluster for a time that it states beforehand:
    as long as that lasts, the lease does not end and the cluster is not idle. Holds live in memory: with a restarted
    agent they are gone, and the lease and the idle clock begin anew.

    Seconds are those for which the machine runs: a suspended one hears nobody, and its controllers get their time after.

    Attributes:
        seconds: Its present length.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._heard = time.monotonic()
        self._present = 0
        self._holds: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._tell: Callable[[], None] = lambda: None

    def on_hold(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` whenever a hold begins, changes or is let go; not when its time is over."""
        self._tell = tell

    def renew(self, seconds: float = 0.0) -> None:
        """Note that a controller was heard; a positive number of seconds sets a new length."""
        self._heard = time.monotonic()
        if seconds > 0:
            self.seconds = seconds
            self._changed.set()

    def hold(self, holder: str, seconds: float) -> None:
        """Keep the cluster alive and not idle for so many seconds from now on; the holder's latest word counts.

        Args:
            holder: Who needs the cluster.
            seconds: For how long; 0 lets it go.

        Raises:
            BadHold: the holder is empty or too long, or the seconds are not from 0 to ``MAX_HOLD_SECONDS``.
        """
        if not 0 < len(holder) <= _MAX_HOLDER_CHARACTERS:
            raise BadHold(
                f"holder is {holder[:_MAX_HOLDER_CHARACTERS]!r}: 1 to {_MAX_HOLDER_CHARACTERS} characters are needed"
            )
        if not 0 <= seconds <= MAX_HOLD_SECONDS:
            raise BadHold(f"seconds is {seconds:g}: a number from 0 to {MAX_HOLD_SECONDS:.0f} is needed")
        now = time.monotonic()
        self._heard = now
        self._holds = {who: until for who, until in self._holds.items() if until > now and who != holder}
        if seconds > 0:
            self._holds[holder] = now + seconds
        self._changed.set()
        self._tell()

    def held_seconds(self) -> float:
        """Return for how many seconds the longest hold lasts; 0 when there is none."""
        return max(0.0, max(self._holds.values(), default=0.0) - time.monotonic())

    def left(self) -> float:
        """Return the seconds for which the cluster lives without another word."""
        heard = self.seconds if self._present else self._heard + self.seconds - time.monotonic()
        return max(0.0, heard, self.held_seconds())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the lease alive as long as the context, as an open follow stream does. No sign of activity."""
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1
            self.renew()

    async def expired(self) -> None:
        """Return when no controller was heard for the length of the lease, and none holds it."""
        while (left := self.left()) > 0:
            self._changed.clear()
            timer = asyncio.get_running_loop().call_later(left, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()
