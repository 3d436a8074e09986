"""Secrets of a task, by reference only. Nothing here may put a value into a message or a record."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider.runtime.task.environment import NAME
from airflow_provider.runtime.task.errors import Report
from airflow_provider.runtime.task.fields import Field
from airflow_provider.runtime.task.nodes import Scalar, node_of

_PREFIX = "secrets:"
_VARIABLE = re.compile(r"variable:\S(?:[^\x00-\x1f\x7f]{0,248}\S)?")
_CONNECTION = re.compile(
    r"connection:[^\s.]+|connection:\S+?\.(?:password|login|host|schema|port)|connection:\S+?\.extra\.\S+"
)
_FORMS = "variable:<key>, connection:<id> or connection:<id>.<password|login|host|schema|port|extra.key>"


def read_secrets(field: Field) -> dict[str, str]:
    """The references of a ``secrets`` mapping or list, by the name of the variable to set."""
    secret = Field(field.report, field.node, field.path, field.line, hidden=True)
    if secret.is_list:
        return _read_list(secret)
    secrets: dict[str, str] = {}
    fields = secret.mapping("Write NAME: reference pairs, or a list of secrets:NAME") or {}
    for key, value in fields.items():
        name = key.removeprefix(_PREFIX)
        if not NAME.fullmatch(name):
            _bad_name(value)
            continue
        if name in secrets:
            value.misplaced(f"the secret {name} is given twice", "Keep one of the two")
            continue
        if key != name and not value.is_null:
            value.misplaced(
                "a name that starts with secrets: is a reference already and takes no value",
                f"Remove the value, or write {name}: with {_FORMS}",
            )
            continue
        reference = _reference(name, value)
        if reference is not None:
            secrets[name] = reference
    return secrets


def overrides(values: Mapping[str, str | None] | None, report: Report) -> dict[str, str]:
    """The references of a Python mapping, under the rules of ``read_secrets``."""
    if values is None:
        return {}
    node = node_of(values, report, "secrets")
    return {} if node is None else read_secrets(Field(report, node, "secrets", None))


def _read_list(field: Field) -> dict[str, str]:
    secrets: dict[str, str] = {}
    for item in field.items() or []:
        text = item.node.value if isinstance(item.node, Scalar) else None
        if not isinstance(text, str) or not text.startswith(_PREFIX):
            item.misplaced("a list of secrets holds references only", f"Write {_PREFIX}NAME")
            continue
        name = text.removeprefix(_PREFIX)
        if not NAME.fullmatch(name):
            _bad_name(item)
        elif name in secrets:
            item.misplaced(f"the secret {name} is given twice", "Keep one of the two")
        else:
            secrets[name] = f"variable:{name}"
    return secrets


def _bad_name(field: Field) -> None:
    field.misplaced(
        "not a valid name of a secret",
        "Use letters, digits and _, not starting with a digit, and no scope such as personal",
    )


def _reference(name: str, field: Field) -> str | None:
    if field.is_null:
        return f"variable:{name}"
    value = field.node.value if isinstance(field.node, Scalar) else None
    if isinstance(value, str):
        if _VARIABLE.fullmatch(value) or _CONNECTION.fullmatch(value):
            return value
        if value.startswith(("variable:", "connection:")):
            field.misplaced("not a valid reference to a secret", f"Write {_FORMS}")
            return None
    field.misplaced(
        "the value of a secret must not be written in a task definition",
        f"Store it in Airflow and write {_FORMS}; with no value, {name} refers to the variable {name}",
    )
    return None
