"""The log of a job, in the form that a skylet can show."""

from __future__ import annotations

import codecs
import os
import re
from contextlib import suppress
from pathlib import Path

MARKER_LINE = "Waiting for task resources on 1 node.\n"
"""SkyPilot's TailLogs shows a log from the first line on that has these words; the log proper begins after it."""

IDLE_MARK = "\x16"
"""Written alone, with a carriage return, at the begin of a line of a quiet job: a skylet notices that a follower has
left only when the log grows, and each follower holds one of its few threads until then."""

_RETURNS = re.compile("\r\r+")


class Log:
    """A log of valid UTF-8 whose lines end in one character, the last one too.

    A skylet stops reading for good at a byte that is no UTF-8, counts CR LF as two characters or one, depending on how
    it is asked, and never shows a last line without its end.

    Attributes:
        size: Bytes written after the marker line, idle marks left out.
        lost: Bytes that a full disk did not take.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._return = ""
        self._last = "\n"
        self._marked = False
        self.size = 0
        self.lost = 0
        self._write(MARKER_LINE)
        self.size = 0

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Write output of the job."""
        text = self._return + self._decoder.decode(data, final)
        # The LF that belongs to a CR may still be under way.
        body = text if final else text.rstrip("\r")
        self._return = text[len(body) :][:1]
        text = body
        if "\r" in text:
            text = _RETURNS.sub("\r", text).replace("\r\n", "\n")
        self._write(text)

    def say(self, text: str) -> None:
        """Write a line of ours."""
        self.finish()
        self._write(f"[managed job] {text}\n")

    def idle(self) -> None:
        """Note that nothing was written for a while."""
        if self._last == "\n":
            self._mark("\r")

    def finish(self) -> None:
        """Write what is held back and end the line."""
        if self._return:  # a CR with a LF of ours would count as one, and as two
            self._return = "\n"
        self.feed(b"", final=True)
        if self._last != "\n":
            self._write("\n")

    def _mark(self, end: str) -> None:
        size = self.size
        self._write(IDLE_MARK + end)
        self.size, self._last, self._marked = size, "\n", end == "\r"

    def _write(self, text: str) -> None:
        if self._marked and text:
            self._marked = False
            if text[0] in "\r\n":  # the mark's CR must not become half of a CR LF
                self._mark("\n")
        data = text.encode("utf-8", "replace")
        while data:
            try:
                written = os.write(self._file, data)
            except OSError:  # the disk is full: the job goes on without its log, and the last word says so
                self.lost += len(data)
                return
            self.size += written
            data = data[written:]
        self._last = text[-1:] or self._last


def end_line(path: Path) -> None:
    """End the last line of a log whose writer died."""
    with suppress(OSError), open(path, "rb+") as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
