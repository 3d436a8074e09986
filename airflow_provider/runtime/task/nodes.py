"""The tree that YAML text and Python dictionaries are both turned into before anything is checked.

A node remembers its line and, for scalars, the exact text that the user wrote. Both are gone once
YAML is loaded the usual way, and both are needed: the line for messages, the text because
``COUNTRY: NO`` must reach the environment as ``NO``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider.runtime.task.errors import Report, join_path

MAX_DEPTH = 40
"""Levels of nesting; real task files have fewer than ten."""

MAX_WEIGHT = 50_000
"""Nodes of a document with every alias expanded, plus one for each 100 characters of text."""


@dataclass(frozen=True)
class Scalar:
    """A single value: ``text`` as written, ``value`` as YAML understands it."""

    line: int | None
    text: str
    value: str | int | float | bool | None

    @property
    def weight(self) -> int:
        """What the node counts towards ``MAX_WEIGHT``."""
        return 1 + len(self.text) // 100


@dataclass(frozen=True)
class SequenceNode:
    """A list."""

    line: int | None
    items: tuple[Node, ...]
    weight: int = 1


@dataclass(frozen=True)
class MappingNode:
    """A mapping; the last of equal keys counts, the earlier ones are in ``repeated`` with their lines."""

    line: int | None
    entries: tuple[tuple[Scalar, Node], ...]
    repeated: tuple[tuple[Scalar, int | None], ...] = ()
    weight: int = 1


Node = Scalar | SequenceNode | MappingNode


class UnusableTextError(ValueError):
    """Text that no environment variable, file name or shell script can hold."""


def checked_text(text: str) -> str:
    """``text``; raises ``UnusableTextError`` for a NUL character or half a surrogate pair."""
    if "\0" in text:
        raise UnusableTextError("a NUL character")
    if re.search("[\ud800-\udfff]", text):
        raise UnusableTextError("a lone surrogate, which is not valid Unicode")
    return text


def plain_value(text: str, kind: str) -> str | int | float | bool | None:
    """The value of an unquoted YAML scalar that YAML 1.1 takes for a ``kind``.

    Numbers count as numbers only in plain decimal notation. ``012`` (ten), ``1_000`` and ``12:30``
    (750) stay text, so that a number that would silently be another one is refused where a number
    is expected.
    """
    match kind:
        case "null" if text in ("", "~", "null", "Null", "NULL"):
            return None
        case "bool" if text.lower() in ("yes", "true", "on", "no", "false", "off"):
            return text.lower() in ("yes", "true", "on")
        case "int" if len(text) <= 100 and re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", text):
            return int(text)
        case "float" if len(text) <= 100 and re.fullmatch(
            r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text
        ):
            number = float(text)
            return number if math.isfinite(number) else text
    return text


def node_of(value: object, report: Report, path: str = "") -> Node | None:
    """The tree of a Python value; None, with the problem noted, where it has no YAML counterpart."""
    try:
        return _PythonTree(report).node(value, path, 0)
    except TooLargeError as error:
        report.add(path, str(error), "Write the definition flat, and without repeating large parts")
        return None


class TooLargeError(ValueError):
    """A document is nested too deeply or is too large once its aliases are expanded."""


class _PythonTree:
    """Builds the tree of one Python value; counts as it goes, since lists and dictionaries may be shared."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._weight = 0

    def node(self, value: object, path: str, depth: int) -> Node | None:
        if depth > MAX_DEPTH:
            raise TooLargeError(f"more than {MAX_DEPTH} levels of nesting")
        node = self._build(value, path, depth)
        if node is not None:
            self._weight += node.weight if isinstance(node, Scalar) else 1
        if self._weight > MAX_WEIGHT:
            raise TooLargeError("the definition is too large")
        return node

    def _build(self, value: object, path: str, depth: int) -> Node | None:
        match value:
            case None:
                return Scalar(None, "null", None)
            case bool():
                return Scalar(None, "true" if value else "false", value)
            case str() | os.PathLike():
                return self._text(value, path)
            case int() if abs(value) < 10**100:
                return Scalar(None, str(int(value)), int(value))
            case float():
                text = repr(float(value))
                return Scalar(None, text, float(value) if math.isfinite(value) else text)
            case Mapping():
                return self._mapping(value, path, depth)
            case Sequence() if not isinstance(value, (bytes, bytearray, memoryview)):
                items = [self.node(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
                return SequenceNode(None, tuple(item for item in items if item is not None))
        kind = "int of more than 100 digits" if isinstance(value, int) else type(value).__name__
        self._report.add(
            path,
            f"a Python {kind} cannot be part of a task definition",
            "Use text, numbers, booleans, None, lists and dictionaries, as in YAML; commands are shell text",
        )
        return None

    def _text(self, value: str | os.PathLike[str], path: str) -> Scalar | None:
        # `str.__str__` gives the text of a string enumeration, not the name of its member.
        text: object = str.__str__(value) if isinstance(value, str) else os.fspath(value)
        try:
            if not isinstance(text, str):
                raise UnusableTextError("bytes instead of text")
            return Scalar(None, checked_text(text), text)
        except UnusableTextError as error:
            self._report.add(path, f"the value contains {error}", "Remove it")
            return None

    def _mapping(self, value: Mapping[object, object], path: str, depth: int) -> MappingNode:
        entries: dict[str, tuple[Scalar, Node]] = {}
        repeated: list[tuple[Scalar, int | None]] = []
        for name, child in value.items():
            key = self.node(name, path, depth + 1)
            if key is None:
                continue
            if not isinstance(key, Scalar):
                self._report.add(path, "a list or mapping is used as a key", "Use text as the key")
                continue
            if key.text in entries:
                repeated.append((key, None))
            node = self.node(child, join_path(path, key.text), depth + 1)
            if node is not None:
                entries[key.text] = (key, node)
        return MappingNode(None, tuple(entries.values()), tuple(repeated))


def walk_mappings(node: Node, path: str = "") -> Iterator[tuple[str, MappingNode]]:
    """Every mapping below ``node``, itself included, with its path."""
    match node:
        case MappingNode():
            yield path, node
            for key, value in node.entries:
                yield from walk_mappings(value, join_path(path, key.text))
        case SequenceNode():
            for index, item in enumerate(node.items):
                yield from walk_mappings(item, f"{path}[{index}]")
        case Scalar():
            pass
