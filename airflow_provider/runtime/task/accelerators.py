"""The ways to ask for accelerators, each brought to a list of alternatives."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.nodes import Scalar

_COUNT = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_MEMORY = r"[0-9]{1,6}(?:\.[0-9]{1,3})?[GgTt][Bb]\+?"
_NAME = re.compile(rf"(?:[a-zA-Z][a-zA-Z0-9]*:)?{_MEMORY}|[a-zA-Z][a-zA-Z0-9._-]*")
_FORMS = 'Write a name or a memory size, with a count if not 1: "A100:8", "80GB+", "nvidia:80GB:2"'


@dataclass(frozen=True)
class Accelerators:
    """Alternatives, each a name and its count; ``kind`` tells how they were written."""

    alternatives: tuple[tuple[str, float], ...]
    kind: str  # "text", "mapping" or "list"


def read_accelerators(field: Field) -> Accelerators | None:
    """The alternatives of text, of a mapping (in no order) or of a list (in order of preference)."""
    if field.is_empty:
        field.problem("names no accelerator", "Name one, or remove the field")
        return None
    if field.is_mapping:
        kind, parsed = "mapping", [_with_count(key, value) for key, value in (field.mapping() or {}).items()]
    elif field.is_list:
        kind, parsed = "list", [_read_text(item) for item in field.items() or []]
    else:
        kind, parsed = "text", [_read_text(field)]
    alternatives = [alternative for alternative in parsed if alternative is not None]
    if len(alternatives) < len(parsed):
        return None
    return Accelerators(tuple(dict.fromkeys(alternatives)), kind)


def _read_text(field: Field) -> tuple[str, float] | None:
    text = field.text()
    if text is None:
        return None
    parsed = _parse(text.strip())
    if parsed is None:
        field.problem("not an accelerator", _FORMS)
    return parsed


def _with_count(key: str, field: Field) -> tuple[str, float] | None:
    """An entry of a mapping: ``A100: 8``, or a key of a flow set such as ``{L4, A100:8}``."""
    parsed = _parse(key.strip())
    if parsed is None:
        field.misplaced("not an accelerator", _FORMS)
        return None
    if field.is_null:
        return parsed
    if _COUNT.fullmatch(key.rpartition(":")[2].strip()):
        field.problem("the count is given twice", "Write it in the name or as the value, not both")
        return None
    value = field.node.value if isinstance(field.node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        field.problem("not a count of accelerators", "Write a number above 0, without quotes")
        return None
    return parsed[0], float(value)


def _parse(text: str) -> tuple[str, float] | None:
    name, colon, count = text.rpartition(":")
    if not colon or not _COUNT.fullmatch(count.strip()):
        name, count = text, "1"
    if not _NAME.fullmatch(name.strip()) or float(count) <= 0:
        return None
    return name.strip(), float(count)
