"""From the bytes of a job's log to lines in the Airflow task log, each exactly once.

Offsets, not contents, decide what was written: equal neighbouring lines are legitimate. Only whole lines are written
and acknowledged, so a reader that comes later begins at a line's begin. There are three exceptions, lines that would
come too late or be too large for one record; every byte still goes into one record, and each offset is exact:

- A line that is longer than a record is written in pieces.
- A line that is unfinished for long is written in pieces too: what there is of it then, and its rest later.
- Of a line that overwrites itself (a progress bar) a state that was overwritten counts as written, as nobody would see
  it on a terminal either. The newest state is written when the line has been unfinished for long, and again after
  that time if it changed; the last one when the line ends, unless that was written already.
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

PATIENCE_SECONDS = 3.0
"""An unfinished line is written as far as it is after so long: a prompt, the newest state of a progress bar."""

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
        self._inside_line = False  # whether a part of the line in which the rest begins was written
        self._returned = False  # whether the rest begins after a carriage return
        self._state: str | None = None  # what was written of the unfinished line, where it is one whole state
        self._waits_since: float | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the beginning of a line was received that ``overdue`` may return."""
        return bool(self._rest)

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

    def overdue(self, now: float) -> Iterator[str]:
        """Return what there is of a line that has been unfinished for ``PATIENCE_SECONDS``, as ``feed`` does.

        Args:
            now: Any time that only grows, in seconds. It is the time of whoever listens for more: while nobody does,
                because the link is broken or the task log is slow, it should stand still.
        """
        if self._waits_since is None:
            self._waits_since = now if self._rest else None
        elif now - self._waits_since >= PATIENCE_SECONDS:
            yield from self._records(final=False)  # there are none, unless writing them failed before
            if self._waits_since is not None:
                yield from self._unfinished_line()

    def finish(self) -> Iterator[str]:
        """Return what is left when the log has ended: a last line without its newline."""
        return self._records(final=True)

    def _records(self, *, final: bool) -> Iterator[str]:
        while size := self._record_size(final=final):
            yield from self._record(size)
            self._state = None

    def _unfinished_line(self) -> Iterator[str]:
        size = self._unfinished_size()
        state = render(self._rest[:size])
        if not state.strip():
            self._waits_since = None  # nothing to be seen: half a character, a bar that was wiped away
        else:
            # A state is whole that begins where the line does, or after a carriage return.
            whole = not self._inside_line or self._overwrites(size)
            yield from self._record(size)
            self._state = state if whole else None

    def _record(self, size: int) -> Iterator[str]:
        """Yield the text of the first bytes of the rest, unless that was written already, and take them."""
        lines = render(self._rest[:size])
        text: str | None = lines
        overwrites = False
        if self._inside_line:
            first, newline, others = lines.partition("\n")
            overwrites = self._overwrites(size)
            if not first or (overwrites and first == self._state):
                # Nothing but the end of the line, or what is seen of it already: that makes no line of its own.
                text = others if newline else None
                overwrites = False
        if text is not None:
            yield text
            if overwrites:
                self.last_lines.pop()
            newest = text.rsplit("\n", LAST_LINES)[-LAST_LINES:]
            self.last_lines.extend(line[:_LAST_LINE_CHARACTERS] for line in newest)
        self._inside_line = self._rest[size - 1] != ord("\n")
        self._returned = self._rest[size - 1] == ord("\r")
        self._waits_since = None
        self._take(size)

    def _take(self, size: int) -> None:
        del self._rest[:size]
        self.written = (self.written or 0) + size

    def _record_size(self, *, final: bool) -> int:
        """Return how many bytes make the next record, 0 when more must come first."""
        while True:
            end = self._rest.rfind(b"\n", 0, MAX_RECORD_BYTES) + 1
            if end:
                return end
            if len(self._rest) < MAX_RECORD_BYTES:
                return len(self._rest) if final else 0
            overwritten = self._overwritten()
            if not overwritten:
                return _character_boundary(self._rest[:MAX_RECORD_BYTES])
            self._take(overwritten)
            self._returned = True

    def _overwritten(self) -> int:
        """Return how many of the first bytes of the rest are states that were overwritten, looking at one record."""
        end = self._without_returns(MAX_RECORD_BYTES)
        return self._rest.rfind(b"\r", 0, end) + 1 if end else MAX_RECORD_BYTES

    def _unfinished_size(self) -> int:
        """Return how much of an unfinished line to write: of a progress bar the states that are complete."""
        end = self._rest.rfind(b"\r") + 1
        if self._rest[:end].strip(b"\r"):
            return end
        return _character_boundary(self._rest)

    def _overwrites(self, size: int) -> bool:
        """Return whether the last state of the first line in so many bytes overwrites what was written of that line."""
        end = self._rest.find(b"\n", 0, size)
        end = self._without_returns(size if end == -1 else end)
        return self._returned or self._rest.rfind(b"\r", 0, end) != -1

    def _without_returns(self, end: int) -> int:
        while end and self._rest[end - 1] == ord("\r"):
            end -= 1
        return end


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
