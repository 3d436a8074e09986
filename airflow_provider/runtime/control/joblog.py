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

MAX_RECORD_BYTES = 64 * 1024
"""Lines that come together go into one log record up to this size; a longer line is written in pieces of it."""

LAST_LINES = 20
"""How many lines of the log a failure shows."""

_LAST_LINE_CHARACTERS = 500

# Control characters other than tab and escape (colours) would break or disturb a log view.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class JobLog:
    """Cuts one job's log into text for log records; how its bytes arrive makes no difference to the text.

    Attributes:
        position: Offset of the first byte that has not been received; None before the first byte.
        written: Offset of the first byte that has not been taken as text; None before the first byte.
        last_lines: The last lines taken.
    """

    def __init__(self) -> None:
        self.position: int | None = None
        self.written: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._rest = bytearray()
        self._inside_line = False

    def feed(self, offset: int, data: bytes) -> Iterator[str]:
        """Take the bytes at ``offset`` and return the text of the log records that are complete now.

        Bytes that were received before are skipped. A record counts as taken when the next one is asked for; one
        that was not (writing it failed) comes again at the next call.

        Raises:
            ValueError: bytes between the last call's and these are missing.
        """
        if self.position is None:
            self.position = self.written = offset
        if offset > self.position:
            raise ValueError(f"the log goes on at byte {offset}, but byte {self.position} has not come yet")
        new = memoryview(data)[self.position - offset :]
        self.position += len(new)
        self._rest += new
        return self._records(final=False)

    def finish(self) -> Iterator[str]:
        """Return what is left when the log has ended: a last line without its newline."""
        return self._records(final=True)

    def _records(self, *, final: bool) -> Iterator[str]:
        while size := self._record_size(final=final):
            text = render(self._rest[:size])
            goes_on = self._rest[size - 1] != ord("\n")
            ended_line = self._inside_line and text.partition("\n")[0] == ""
            # Of a line written in pieces nothing but its newline was left: that makes no line of its own.
            if text or not ended_line:
                text = text[1:] if ended_line else text
                yield text
                newest = text.rsplit("\n", LAST_LINES)[-LAST_LINES:]
                self.last_lines.extend(line[:_LAST_LINE_CHARACTERS] for line in newest)
            del self._rest[:size]
            self.written = (self.written or 0) + size
            self._inside_line = goes_on

    def _record_size(self, *, final: bool) -> int:
        """Return how many bytes make the next record, 0 when more must come first."""
        end = self._rest.rfind(b"\n", 0, MAX_RECORD_BYTES) + 1
        if end:
            return end
        if len(self._rest) >= MAX_RECORD_BYTES:
            # A progress bar is cut between two of its states, any other line between two characters.
            end = self._rest.rfind(b"\r", 0, MAX_RECORD_BYTES) + 1
            return end or _character_boundary(self._rest[:MAX_RECORD_BYTES])
        return len(self._rest) if final else 0


def render(piece: bytes | bytearray) -> str:
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


def _character_boundary(data: bytearray) -> int:
    """Return the size of ``data`` or a little less, so that no UTF-8 character is cut in two."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])
