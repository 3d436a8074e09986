"""Amounts with an optional unit and an optional ``+`` for "at least"."""

from __future__ import annotations

import math
import re

from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.nodes import Scalar
from airflow_provider.runtime.task.spec import Quantity

_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([a-zA-Z]*)(\+?)")

# Sizes are binary throughout: 1 GB is 2**30 bytes.
_GIGABYTES = {
    "b": 2.0**-30,
    "k": 2.0**-20,
    "m": 2.0**-10,
    "g": 1.0,
    "t": 2.0**10,
    "p": 2.0**20,
}


def read_cpus(field: Field) -> Quantity | None:
    """A number of CPUs: ``4``, ``0.5``, ``"4"``, ``"4+"``."""
    parsed = _parse(field)
    if parsed is None or parsed[1] or parsed[0] <= 0:
        field.problem("not a number of CPUs", 'Write a number above 0, or for example "4+" for at least 4')
        return None
    return Quantity(parsed[0], parsed[2])


def read_memory(field: Field) -> Quantity | None:
    """Memory in GB: ``16``, ``"16+"``, ``"32GB"``, ``"512MiB+"``; 0 is for the caller to judge."""
    parsed = _parse(field)
    scale = 1.0 if parsed is None else _scale(parsed[1])
    if parsed is None or scale is None:
        field.problem(
            "not an amount of memory", 'Write GB as a number, or for example "16+", "32GB" or "512MB"'
        )
        return None
    return Quantity(parsed[0] * scale, parsed[2])


def read_disk_size(field: Field) -> int | None:
    """Disk size in whole GB, rounded up: ``100``, ``"100GB"``, ``"1TB"``."""
    parsed = _parse(field)
    scale = None if parsed is None else _scale(parsed[1])
    if parsed is None or scale is None or parsed[2] or parsed[0] <= 0:
        field.problem("not a disk size", 'Write GB as a number above 0, or for example "100GB" or "1TB"')
        return None
    return math.ceil(parsed[0] * scale)


def _scale(unit: str) -> float | None:
    """GB for one ``unit``, written ``g``, ``GB``, ``Gi`` or ``GiB``; no unit is GB."""
    if not unit:
        return 1.0
    match = re.fullmatch(r"([kmgtp])(?:i?b|i)?|b", unit.lower())
    return None if match is None else _GIGABYTES[unit[0].lower()]


def _parse(field: Field) -> tuple[float, str, bool] | None:
    """Amount, unit and "at least" of a number or of text."""
    value = field.node.value if isinstance(field.node, Scalar) else None
    match value:
        case bool():
            return None
        case int() | float():
            return (float(value), "", False) if value >= 0 else None
        case str() if found := _AMOUNT.fullmatch(value.strip()):
            return float(found[1]), found[2], bool(found[3])
    return None
