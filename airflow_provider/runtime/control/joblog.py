"""From the bytes of a job's log to lines in the Airflow task log, each exactly once.

Offsets, not contents, decide what was written: equal neighbouring lines are legitimate. Only whole lines (or whole
pieces of very long ones) are written and acknowledged, so a reader that comes later begins at a line's begin.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES = 64 * 1024
"""Longer lines are written in pieces of this size."""

MAX_RECORD_BYTES = 64 * 1024
"""Lines that come together go into one log record up to this size."""

LAST_LINES = 20
"""How many lines of the log a failure shows."""

_LAST_LINE_CHARACTERS = 500

# Control characters other than tab and escape (colours) would break or disturb a log view.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class JobLog:
    """Cuts one job's log into text for log records.

    Attributes:
        position: Offset of the first byte that has not been received; None before the first byte.
        written: Offset of the first byte that has not been given out as text.
        last_lines: The last lines given out.
    """

    def __init__(self) -> None:
        self.position: int | None = None
        self.written: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._rest = b""

    def feed(self, offset: int, data: bytes) -> Iterator[str]:
        """Take the bytes at ``offset`` and yield the text of log records.

        ``written`` moves on with each record that is taken from the iterator. Bytes that were received before are
        skipped.
        """
        if self.position is None:
            self.position = self.written = offset
        known = self.position - offset
        if known > 0:
            data = data[known:]
        self.position += len(data)
        self._rest += data
        yield from self._cut(final=False)

    def finish(self) -> Iterator[str]:
        """Yield what is left when the log has ended: a last line without its newline."""
        yield from self._cut(final=True)

    def _cut(self, *, final: bool) -> Iterator[str]:
        while self._rest:
            size = self._piece(final)
            if size == 0:
                return
            piece, self._rest = self._rest[:size], self._rest[size:]
            text = render(piece)
            self.last_lines.extend(line[:_LAST_LINE_CHARACTERS] for line in text.split("\n"))
            yield text
            self.written = (self.written or 0) + size

    def _piece(self, final: bool) -> int:
        """Return how many bytes make the next record, 0 when more must come first."""
        end = self._rest.rfind(b"\n", 0, MAX_RECORD_BYTES) + 1
        if end:
            return end
        if len(self._rest) >= MAX_LINE_BYTES:
            return _character_boundary(self._rest, MAX_LINE_BYTES)
        return len(self._rest) if final else 0


def render(piece: bytes) -> str:
    """Return the text of whole lines: decoded, progress bars collapsed, unprintable characters shown.

    Bytes that are no UTF-8 become U+FFFD; of a line that was overwritten with carriage returns, the last state stays.
    """
    text = piece.decode("utf-8", "replace")
    if text.endswith("\n"):
        text = text[:-1]
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def _character_boundary(data: bytes, size: int) -> int:
    """Return ``size`` or a little less, so that no UTF-8 character is cut in two."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[:size])
    pending = len(decoder.getstate()[0])
    return size - pending
