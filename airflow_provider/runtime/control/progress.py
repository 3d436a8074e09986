"""What a task's log says of a transfer of files. Pure: the time comes from the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider.runtime.client.base import FileProgress

EVERY_SECONDS = 5.0
"""How long a transfer goes on before a line is due, and how long from each line to the next."""

_WORTH_A_WORD = 1_000_000
_UNITS = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3))


class Transfer:
    """Words for one transfer.

    Args:
        begin: Seconds on the caller's clock, which never goes back.
    """

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._told_at = begin
        self._told_read = 0
        self._latest: FileProgress | None = None

    def heard(self, progress: FileProgress) -> None:
        """Take note of how far the transfer is."""
        self._latest = progress

    def line(self, now: float) -> str | None:
        """Return the line that is due at ``now``, None when none is."""
        latest, seconds = self._latest, now - self._told_at
        if latest is None or seconds < EVERY_SECONDS:
            return None
        speed = max(0, latest.read - self._told_read) / seconds
        self._told_at, self._told_read = now, latest.read
        unit, scale = _unit(latest.size)
        return f"files: {latest.read / scale:.1f} of {latest.size / scale:.1f} {unit}, {_amount(speed)}/s"

    def last_line(self, now: float) -> str | None:
        """Return what is said at the end, None for a transfer that is not worth a word."""
        latest, seconds = self._latest, now - self._begin
        if latest is None or latest.size < _WORTH_A_WORD:
            return None
        sent = "" if latest.sent >= latest.size else f", of which {_amount(latest.sent)} had to be sent"
        return f"files: {_amount(latest.size)} there after {seconds:.1f} s{sent}"


def _amount(size: float) -> str:
    unit, scale = _unit(size)
    number = size / scale
    return f"{number:.1f} {unit}" if number < 10 and scale > 1 else f"{number:.0f} {unit}"


def _unit(size: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in _UNITS if size >= scale), ("B", 1.0))
