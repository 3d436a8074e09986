"""A job's log as text, as TailLogs and StreamLogs send it: some of it, all of it, or all that still comes.

Nothing is read before the reader asks for more, and what a reader that leaves had open is closed: a follower costs
one descriptor and one block, and while its job prints nothing, nothing else.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from airflow_provider.runtime.agent.jobs.jobdir import open_regular
from airflow_provider.runtime.agent.logs.lines import HEAD_BYTES, LastLines, Span, marked_begin
from airflow_provider.runtime.agent.logs.text import LogText
from airflow_provider.runtime.agent.waiting import happens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from airflow_provider.runtime.agent.jobs.job import Changed

Result = TypeVar("Result")

_BLOCK_BYTES = 64 * 1024
_GATHER_SECONDS = 0.05
"""At least so long between two looks at a log that grows: each costs the same, whether it finds one line or many."""

_SILENCE_SECONDS = 0.05
"""A line without its end is shown when nothing came for so long: a prompt must be visible."""

_REDRAW_SECONDS = 0.5
"""A line that never pauses is shown as far as it is, and a progress bar anew, after so long."""

_MARKER_SECONDS = 2.0
"""For so long a marker is waited for; a program that prints none is then shown from its first byte on."""


class JobText:
    """Reads one job's log.

    Args:
        log: The file. One that is not there (yet, or because its job removed it) is an empty log.
        changed: Notified after every change of the log, and of the job's state.
        over: Set when the job has ended and all of its log is written.
    """

    def __init__(self, *, log: Path, changed: Changed, over: asyncio.Event) -> None:
        self._log = log
        self._changed = changed
        self._over = over

    async def pieces(
        self, *, follow: bool, tail: int = 0, tail_offset: int = 0, marked: bool = False
    ) -> AsyncGenerator[str, None]:
        """Yield the text of the log, in pieces of ``MAX_PIECE_CHARACTERS`` at most.

        Close the generator (``aclose``) unless it was read to its end.

        Args:
            follow: Go on until the job is over and the last byte is read, instead of to the present end.
            tail: So many of the present last lines, 0 and less: all. Whoever follows gets all that comes after them.
            tail_offset: So many lines at the present end are left out; counts with ``tail`` only, as in SkyPilot.
            marked: Whether the output begins at a marker (see ``logs.START_MARKER``). Of a program that prints none,
                nothing is left out.
        """
        handle = await self._open(wait=follow)
        if handle is None:
            return
        try:
            begin = await self._output_begin(handle, wait=follow) if marked else 0
            size = os.fstat(handle).st_size
            span = Span(0, size)
            if tail > 0:
                span = await _last_lines(handle, size, lines=tail, skip=max(0, tail_offset))
            text = LogText()
            position = max(begin, span.begin)
            while position < span.end:
                data = await _in_thread(_read, handle, position, min(_BLOCK_BYTES, span.end - position))
                if not data:
                    break  # the job truncated its log meanwhile
                position += len(data)
                for piece in text.feed(data):
                    yield piece
            if follow:
                async with aclosing(self._growth(handle, max(begin, size), text)) as growth:
                    async for piece in growth:
                        yield piece
            for piece in text.finish():
                yield piece
        finally:
            os.close(handle)

    async def _open(self, *, wait: bool) -> int | None:
        while True:
            change, over = self._changed.next(), self._over.is_set()
            try:
                # Not in a thread: a reader that leaves meanwhile would leave the descriptor open.
                return open_regular(self._log)
            except OSError:
                if over or not wait:
                    return None
            await change.wait()

    async def _output_begin(self, handle: int, *, wait: bool) -> int:
        """Return the place of the marker, 0 when there is none and none will come."""
        limit = time.monotonic() + _MARKER_SECONDS
        while True:
            change, over = self._changed.next(), self._over.is_set()
            begin = await _in_thread(marked_begin, handle)
            if begin is not None:
                return begin
            left = limit - time.monotonic()
            if not wait or over or left <= 0 or os.fstat(handle).st_size >= HEAD_BYTES:
                return 0
            await happens(change, left)

    async def _growth(self, handle: int, position: int, text: LogText) -> AsyncGenerator[str, None]:
        """Yield what is written from ``position`` on, until the job is over and the last byte is read."""
        pace = _Pace(text)
        while True:
            # The end is looked at before the log: all of the log was written before it was set.
            change, over = self._changed.next(), self._over.is_set()
            data = await _in_thread(_read, handle, position, _BLOCK_BYTES)
            position += len(data)
            for piece in pace.feed(data):
                yield piece
            if len(data) == _BLOCK_BYTES:
                continue  # there is more
            if over and not data:
                return
            if not over:
                if data:
                    await happens(self._over, _GATHER_SECONDS)
                else:
                    await happens(change, pace.patience())


class _Pace:
    """Decides when a line that has not ended is shown as far as it is."""

    def __init__(self, text: LogText) -> None:
        self._text = text
        self._grown = self._shown = self._since = time.monotonic()

    def feed(self, data: bytes) -> list[str]:
        """Take what was read, if anything, and return what is to be shown now."""
        now = time.monotonic()
        if data:
            self._grown = now
        waited = self._text.waiting
        pieces = self._text.feed(data)
        if pieces or not waited:
            self._since = now
        if self._text.waiting and self._due() <= now:
            pieces += self._text.flush()
        if pieces:
            self._shown = now
        return pieces

    def patience(self) -> float | None:
        """Return the seconds after which to call ``feed`` again although nothing was written; None: for ever."""
        if not self._text.waiting:
            return None
        return max(0.0, self._due() - time.monotonic())

    def _due(self) -> float:
        if self._text.rewritten:
            return max(self._since + _SILENCE_SECONDS, self._shown + _REDRAW_SECONDS)
        return min(self._grown + _SILENCE_SECONDS, self._since + _REDRAW_SECONDS)


async def _last_lines(handle: int, size: int, *, lines: int, skip: int) -> Span:
    search = LastLines(handle, size, lines=lines, skip=skip)
    # Block by block: a reader that leaves does not leave a thread behind that reads gigabytes.
    while (span := await _in_thread(search.read_block)) is None:
        pass
    return span


def _read(handle: int, position: int, size: int) -> bytes:
    return os.pread(handle, size, position)


async def _in_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """Call ``function`` in a thread; a cancelled caller waits for its end, as it closes what the thread reads from."""
    call = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        call.exception()  # looked at: nobody else will
        raise cancelled
    return call.result()
