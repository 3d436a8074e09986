"""Secrets: references in the task, values only where and when a job is started."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider.runtime.blocking import run_slowly
from airflow_provider.runtime.control.controller import SecretMissing

if TYPE_CHECKING:
    from airflow.sdk import Connection


# A connection's id may hold dots; a field can be told from the end of one because there are few.
_CONNECTION = re.compile(r"(?P<id>.+?)\.(?P<field>password|login|host|schema|port|extra\..+)")


async def resolve_secrets(references: dict[str, str]) -> dict[str, str]:
    """Return the values of secrets by name, and have Airflow mask them in logs.

    Args:
        references: ``variable:<key>``, ``connection:<id>`` (its password) or ``connection:<id>.<field>`` by name.

    Raises:
        SecretMissing: a reference leads nowhere.
    """
    # In a thread: Airflow's calls are blocking ones, and from a thread they work in triggerer and worker alike.
    return await run_slowly(_resolve, references) if references else {}


def _resolve(references: dict[str, str]) -> dict[str, str]:
    from airflow.sdk.log import mask_secret

    values = {}
    for name, reference in references.items():
        kind, _, target = reference.partition(":")
        value = _variable(name, target) if kind == "variable" else _connection_field(name, target)
        # Without a name: given one, Airflow masks the value only if the name sounds like a secret's.
        mask_secret(value)
        values[name] = value
    return values


def _variable(name: str, key: str) -> str:
    from airflow.sdk import Variable

    value = Variable.get(key, default=None)
    if value is None:
        raise SecretMissing(f"secrets.{name}: the Airflow Variable {key!r} does not exist; create it")
    return str(value)


def _connection_field(name: str, target: str) -> str:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    match = _CONNECTION.fullmatch(target)
    conn_id, field = (target, None) if match is None else match.group("id", "field")
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise SecretMissing(
            f"secrets.{name}: the Airflow connection {conn_id!r} does not exist; create it"
        ) from None
    value = _field(connection, field or "password")
    if value is None:
        raise SecretMissing(
            f"secrets.{name}: the Airflow connection {conn_id!r} has no {field or 'password'}"
        )
    return str(value)


def _field(connection: Connection, field: str) -> object:
    if field.startswith("extra."):
        return connection.extra_dejson.get(field.removeprefix("extra."))
    return getattr(connection, field)
