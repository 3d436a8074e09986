"""The lease: how long a cluster lives without hearing from a controller."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Lease:
    """Counts the seconds since a controller was last heard. Belongs to one event loop.

    Attributes:
        seconds: Its present length.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._heard = time.monotonic()
        self._present = 0
        self._new_length = asyncio.Event()

    def renew(self, seconds: float = 0.0) -> None:
        """Note that a controller was heard; a positive number of seconds sets a new length."""
        self._heard = time.monotonic()
        if seconds > 0:
            self.seconds = seconds
            self._new_length.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the lease alive as long as the context, as an open follow stream does."""
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1
            self.renew()

    async def expired(self) -> None:
        """Return when no controller was heard for the length of the lease."""
        while True:
            left = self.seconds if self._present else self._heard + self.seconds - time.monotonic()
            if left <= 0:
                return
            self._new_length.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._new_length.wait(), left)
