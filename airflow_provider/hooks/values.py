"""Reading what people write into connections: every problem is collected, and no secret is ever repeated."""

from __future__ import annotations

import json
import math
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow.sdk import Connection


def read_extra(connection: Connection, problems: list[str]) -> dict[str, object]:
    """Return a connection's extra; one that is no JSON object is noted, where Airflow takes it for an empty one."""
    try:
        given = json.loads(connection.extra or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        problems.append(f"connection {connection.conn_id}: its extra is not a JSON object")
        return {}
    return dict(connection.extra_dejson)


class Values:
    """The keys and values at one place of a connection.

    A value that is empty counts as not given: Airflow's form sends empty fields along.

    Args:
        where: The place, for messages: ``connection gpu``, ``connection gpu, hosts[2]``.
        given: The values by key.
        problems: Takes what is wrong, one text each.
    """

    def __init__(self, where: str, given: Mapping[str, object], problems: list[str]) -> None:
        self.where = where
        self._given = {key: value for key, value in given.items() if value not in (None, "", [], {})}
        self.problems = problems

    def __contains__(self, key: str) -> bool:
        return key in self._given

    def problem(self, text: str) -> None:
        """Note that something is wrong at this place."""
        self.problems.append(f"{self.where}: {text}")

    def check_keys(self, known: Sequence[str]) -> None:
        """Note keys that nothing reads, with the one that was probably meant."""
        for key in self._given:
            if key not in known:
                close = get_close_matches(str(key), known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                self.problem(f"unknown key {key!r}; {hint}")

    def only_one_of(self, *keys: str) -> None:
        """Note when more than one of the keys is given."""
        given = [key for key in keys if key in self]
        if len(given) > 1:
            self.problem(f"{' and '.join(given)} exclude each other; keep one")

    def raw(self, key: str) -> object:
        """Return the value as it is, None when there is none."""
        return self._given.get(key)

    def text(self, key: str) -> str | None:
        """Return a line of text: a name, a path, a command."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            self._refuse(key, f"is a {type(value).__name__}; it must be text")
            return None
        text = str(value).strip()
        if not text.isprintable():
            self._refuse(key, "holds line breaks or control characters")
            return None
        return text

    def word(self, key: str) -> str | None:
        """Return text that a program may get as an argument: without blanks, and no option."""
        text = self.text(key)
        if text is not None and (text.startswith("-") or " " in text):
            self._refuse(key, f"is {text!r}; it must have no blanks and not begin with a dash")
            return None
        return text

    def secret(self, *keys: str) -> str | None:
        """Return the first of the keys that is given, whatever text it is; no message repeats it."""
        for key in keys:
            value = self.raw(key)
            if isinstance(value, str):
                return value
            if value is not None:
                self._refuse(key, "is not text; write it in quotes")
        return None

    def number(self, key: str, what: str = "a positive number") -> float | None:
        """Return a number above 0."""
        text = self.text(key)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self._refuse(key, f"is {text!r}; it must be {what}")
            return None
        return number

    def seconds(self, key: str) -> float | None:
        """Return a number of seconds above 0."""
        return self.number(key, "a positive number of seconds")

    def port(self, key: str) -> int | None:
        """Return the number of a TCP port."""
        text = self.text(key)
        if text is None:
            return None
        if not text.isdecimal() or not 0 < int(text) < 65536:
            self._refuse(key, f"is {text!r}; it must be a port from 1 to 65535")
            return None
        return int(text)

    def flag(self, key: str) -> bool | None:
        """Return yes or no."""
        text = str(self.raw(key)).lower()
        if key not in self:
            return None
        if text not in ("true", "false"):
            self._refuse(key, f"is {self.raw(key)!r}; it must be true or false")
            return None
        return text == "true"

    def names(self, key: str) -> tuple[str, ...]:
        """Return the names of a list, or of text with commas or line breaks between them."""
        value = self.raw(key)
        parts: Iterable[object] = ()
        if isinstance(value, str):
            parts = value.replace("\n", ",").split(",")
        elif isinstance(value, (list, tuple)):
            parts = value
        elif value is not None:
            self._refuse(key, "is neither a list nor text with commas")
        return tuple(name for part in parts if (name := str(part).strip()))

    def _refuse(self, key: str, text: str) -> None:
        self.problem(f"{key} {text}")
