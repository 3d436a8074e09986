"""The log of a job as a skylet tells it: what belongs to the log, and where in it one stands."""

from __future__ import annotations

import re

from airflow_provider.runtime.client.skylet_driver.output import IDLE_MARK

_BEGIN = "Waiting for task resources on "
_IDLE = re.compile(f"(?<![^\r\n]){IDLE_MARK}[\r\n]")
_WORDS = "Job finished (status: "
_FINISHED = re.compile(r"Job finished \(status: \w+\)\.(?:\x1b\[[0-9;]*m)*[\r\n]?\Z")
_SIGN = re.compile(r"[^\w\s\x1b] ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class SkyletText:
    """The text of one TailLogs call, cut down to the log's own bytes.

    The log begins after the first line with SkyPilot's marker; what comes before are the skylet's own remarks, and so
    may be the last line ("Job finished"). The driver program's idle marks are left out and CR LF counts as LF, as a
    skylet sends it either way. So the same byte has the same offset in every call. (A lone CR is a CR while the job
    runs and LF afterwards: one byte all the same.)

    Attributes:
        position: Offset of the byte that ``feed`` returns next.
    """

    def __init__(self, skip: int) -> None:
        self.position = 0
        self._skip = skip
        self._begun = False
        self._rest = ""
        self._line_begins = True

    def feed(self, text: str) -> bytes:
        """Take text and return the log's bytes in it that come after the first ``skip``."""
        text = self._rest + text
        self._rest = ""
        if not self._begun:
            text = self._after_marker(text)
            if not self._begun:
                return b""
        # What could yet turn out to be no part of the log waits for what follows: a CR for its LF, an idle mark for
        # its CR, a line that looks like the skylet's last word for another line.
        held = len(text) - (1 if text.endswith("\r") else 0)
        if text.endswith(IDLE_MARK):
            held = len(text) - 1
        elif text.endswith(IDLE_MARK + "\r"):
            held = len(text)
        # Not only a whole line: the log's last one may have no end.
        line = max(text.rfind(end, 0, max(0, len(text) - 1)) for end in "\r\n") + 1
        finished = _last_word(text, line)
        if finished is not None:
            held = min(held, finished)
        text, self._rest = text[:held], text[held:]
        return self._taken(text)

    def finish(self, size: int | None) -> bytes:
        """Return what was held back, after the last text of a job that has ended.

        Args:
            size: Bytes of the whole log, when known; it tells the job's words from the skylet's. A last line like the
                skylet's is the skylet's unless it is just what is missing.
        """
        text, self._rest = self._rest, ""
        if not self._begun:
            return b""
        if _last_word(text, 0) == 0:
            fits = size is not None and size - self.position == len(text.encode("utf-8", "replace"))
            return self._taken(text) if fits else b""
        if size is None:
            return self._taken(text)
        before = self.position
        data = self._taken(text)
        surplus = self.position - max(before, size)
        if surplus > 0:
            data = data[: max(0, len(data) - surplus)]
            self.position -= surplus
        return data

    def _after_marker(self, text: str) -> str:
        at = text.find(_BEGIN)
        end = re.compile("[\r\n]").search(text, at) if at >= 0 else None
        if end is None:
            # Of remarks only the last line may become the marker's.
            self._rest = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
            return ""
        self._begun = True
        return text[end.end() :]

    def _taken(self, text: str) -> bytes:
        if not text:
            return b""
        begins = self._line_begins
        self._line_begins = text[-1] in "\r\n"
        if not begins:  # so that a mark at the begin of the text is none at the begin of a line
            text = "\0" + text
        text = _IDLE.sub("", text)
        text = (text if begins else text[1:]).replace("\r\n", "\n")
        data = text.encode("utf-8", "replace")
        skipped = min(len(data), max(0, self._skip - self.position))
        self.position += len(data)
        return data[skipped:]


def _last_word(text: str, line: int) -> int | None:
    """Return where the skylet's last word ("Job finished"), with its colours, begins in the last line of a text.

    Takes time in proportion to the line, whatever a job prints: no search is begun at each of many escapes.

    Args:
        text: Any.
        line: Where its last line begins.
    """
    at = text.rfind(_WORDS, line)
    if at < 0 or not _FINISHED.match(text, at):
        return None
    if at - line >= 2 and _SIGN.match(text, at - 2):
        at -= 2
    while (colour := text.rfind("\x1b", line, at)) >= 0 and _COLOUR.fullmatch(text, colour, at):
        at = colour
    return at
