"""From the bytes of a log to pieces of text for a reader's terminal, as they come in.

The pieces put together are the log, decoded; bytes that are no UTF-8 become U+FFFD. Of a line that was overwritten
with carriage returns (a progress bar), states that were overwritten before anybody saw them are left out. What was
shown already stays overwritten: the carriage return comes along.
"""

from __future__ import annotations

import codecs

MAX_PIECE_CHARACTERS = 16 * 1024
"""As large as the pieces of SkyPilot's skylet; 64 KiB of UTF-8 at most, far below what a message may have."""


class LogText:
    """Cuts one log into pieces of text; keeps no more of it than one state of one line."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state = ""  # what is not yet given out of the last line's newest state
        self._shown = False  # whether something of the last line was given out
        self._overwrites = False  # whether the state begins by overwriting what was given out
        self._returned = False  # whether the state is followed by a carriage return

    @property
    def waiting(self) -> bool:
        """Whether a part of a line waits for the line's end, or for ``flush``."""
        return bool(self._state)

    @property
    def rewritten(self) -> bool:
        """Whether the line that waits is one that overwrites itself."""
        return self._overwrites or self._returned

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the text that is complete, whole lines where they are short enough."""
        return _pieces(self._take(self._decoder.decode(data)))

    def flush(self) -> list[str]:
        """Return what there is of a line without its end: the newest state of a progress bar, a prompt."""
        return _pieces(self._unfinished())

    def finish(self) -> list[str]:
        """Return what is left when the log has ended."""
        return _pieces(self._take(self._decoder.decode(b"", final=True)) + self._unfinished())

    def _take(self, text: str) -> str:
        complete, newline, rest = text.rpartition("\n")
        if newline and ("\r" in complete or self._returned):
            complete = "".join(self._line(line) for line in complete.split("\n"))
        elif newline:
            # The usual case, at the speed of the disk: nothing overwrites anything.
            complete = f"{self._unfinished()}{complete}\n"
            self._shown = False
        self._overwrite(rest)
        if len(self._state) >= MAX_PIECE_CHARACTERS:
            complete += self._unfinished()
        return complete

    def _line(self, text: str) -> str:
        self._overwrite(text)
        line = f"{self._unfinished()}\n"
        self._shown = self._returned = False
        return line

    def _overwrite(self, text: str) -> None:
        """Go on with the last line; its newest state is the last that is not empty."""
        states = text.rstrip("\r")
        if states:
            _, returned, state = states.rpartition("\r")
            if returned or self._returned:
                self._state = state
                self._overwrites = self._shown
            else:
                self._state += state
            self._returned = len(states) < len(text)
        elif text and (self._state or self._shown):
            self._returned = True

    def _unfinished(self) -> str:
        text = f"\r{self._state}" if self._overwrites else self._state
        self._shown = self._shown or bool(text)
        self._state = ""
        self._overwrites = False
        return text


def _pieces(text: str) -> list[str]:
    pieces = []
    begin = 0
    while len(text) - begin > MAX_PIECE_CHARACTERS:
        limit = begin + MAX_PIECE_CHARACTERS
        end = text.rfind("\n", begin, limit) + 1 or limit
        pieces.append(text[begin:end])
        begin = end
    if begin < len(text):
        pieces.append(text[begin:])
    return pieces
