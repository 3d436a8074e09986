"""Replacing ``$NAME`` and ``${NAME}`` by environment variables, on values that are parsed already."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\{([a-zA-Z_][a-zA-Z0-9_]*)\}|([a-zA-Z_][a-zA-Z0-9_]*))")


def references(text: str) -> list[str]:
    """The names that ``text`` refers to, in order."""
    return [match[1] or match[2] for match in _REFERENCE.finditer(text)]


def substitute(text: str, envs: Mapping[str, str | None]) -> str:
    """``text`` with the value of each variable of ``envs``.

    Unknown names, ``${NAME:-default}`` and lone braces stay as they are, and values that hold a ``$``
    are not looked at again.
    """

    def value_of(match: re.Match[str]) -> str:
        value = envs.get(match[1] or match[2])
        return match[0] if value is None else value

    return _REFERENCE.sub(value_of, text)
