"""The lease: how long a cluster lives without hearing from a controller."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Lease:
    """Counts the seconds since a controller was last heard. Belongs to one event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heard = time.monotonic()
        self._present = 0

    def renew(self, seconds: float | None = None) -> None:
        """Note that a controller was heard; ``seconds`` sets a new length."""
        self._heard = time.monotonic()
        if seconds:
            self._seconds = seconds

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
            left = self._seconds if self._present else self._heard + self._seconds - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)
