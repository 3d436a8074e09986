"""Places in a job's log: where its last lines begin, where its output begins. Reads no more of the file than it must.

All of it blocks for a block's read at most; memory does not grow with the log.
"""

from __future__ import annotations

import os
from typing import NamedTuple

START_MARKER = b"Waiting for task resources on "
"""In the line with which the output of a driver that SkyPilot wrote begins; what comes before concerns nobody."""

HEAD_BYTES = 64 * 1024
"""A marker is looked for in so much of the log: a log that does not begin with it has none."""

_BLOCK_BYTES = 256 * 1024


class Span(NamedTuple):
    """A part of a file: the offset of its first byte, and that of the first one after it."""

    begin: int
    end: int


class LastLines:
    """Finds the last lines of a file, one block after the other from its end towards its begin.

    A line ends with its newline; a last one without counts too. Whoever has to stay able to stop reads block by block
    (a line, or what is skipped, may have gigabytes), others call ``last_lines``.

    Args:
        handle: Descriptor of the file, open for reading.
        size: How much of the file counts; it may have grown since.
        lines: How many lines are wanted, from 1 on.
        skip: How many lines at the end are not wanted.
    """

    def __init__(self, handle: int, size: int, *, lines: int, skip: int = 0) -> None:
        if lines < 1 or skip < 0:
            raise ValueError(f"{lines} lines after {skip} skipped ones: at least 1 and 0 are needed")
        self._handle = handle
        # Lines are told apart by the newlines between them: the one at the very end is between none.
        self._position = max(0, size - 1)
        self._seen = 0
        self._end: int | None = None if skip else size
        self._begin: int | None = None
        self._skip = skip
        self._wanted = skip + lines

    def read_block(self) -> Span | None:
        """Look at the next block; return the place of the lines once it is known."""
        begin = max(0, self._position - _BLOCK_BYTES)
        block = os.pread(self._handle, self._position - begin, begin)
        newlines = block.count(b"\n")
        if self._end is None and self._seen + newlines >= self._skip:
            self._end = begin + _last_newline(block, self._skip - self._seen) + 1
        if self._seen + newlines >= self._wanted:
            self._begin = begin + _last_newline(block, self._wanted - self._seen) + 1
        elif begin == 0:
            self._begin = 0
        self._seen += newlines
        self._position = begin
        if self._begin is None:
            return None
        return Span(self._begin, self._end or 0)  # no end: there are no more lines than those to skip


def last_lines(handle: int, size: int, *, lines: int, skip: int = 0) -> Span:
    """Return the place of the last ``lines`` lines before the last ``skip`` ones; see ``LastLines``."""
    search = LastLines(handle, size, lines=lines, skip=skip)
    while (span := search.read_block()) is None:
        pass
    return span


def marked_begin(handle: int) -> int | None:
    """Return where the first line with the marker begins; None when there is none at the head of the log.

    SkyPilot's skylet hides what comes before that line, and all of a log that has none.
    """
    head = os.pread(handle, HEAD_BYTES, 0)
    place = head.find(START_MARKER)
    if place == -1:
        return None
    return max(head.rfind(b"\n", 0, place), head.rfind(b"\r", 0, place)) + 1


def _last_newline(block: bytes, number: int) -> int:
    """Return the index of the ``number``-th newline, counted from the end, of a block that has so many."""
    place = len(block)
    for _ in range(number):
        place = block.rfind(b"\n", 0, place)
    return place
