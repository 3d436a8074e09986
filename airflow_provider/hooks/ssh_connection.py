"""Airflow connections of type ``ssh``: what each of their fields means to us.

Read alike by worker, triggerer and API server. Where Airflow's ``SSHHook`` trusts more, or looks at what only one
process has, this does not:

- ``no_host_key_check`` accepts any key at the first contact only: as long as a cluster is on the host, the host must
  keep the key that it showed.
- ``allow_host_key_change`` leaves ``known_hosts`` files aside and trusts the first key, with the same restriction.
- ``look_for_keys``, ``~/.ssh/config`` and the name of the process's user have no effect, see ``access``.
- ``compress``, ``cmd_timeout`` and ``ciphers`` (an order of preference) have none either.

Keys that ``SSHHook`` does not know are left alone, as it does; of ours they may have those of a host of a pool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider.hooks.access import Access, read_access
from airflow_provider.hooks.values import Values, read_extra
from airflow_provider.runtime.transport.ssh.target import HostKeys

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_TYPE = "ssh"
_SAME_MEANING = {
    "conn_timeout": "connect_timeout",
    "host_proxy_cmd": "proxy_command",
    "ignore_hostkey_verification": "no_host_key_check",
}


def read_ssh_connection(connection: Connection, problems: list[str]) -> tuple[Values, Access]:
    """Return what a connection of type ``ssh`` says, its host under ``host``, and how that is logged in to.

    Args:
        connection: The connection.
        problems: Takes what is wrong with it.
    """
    given: dict[str, object] = {}
    for key, value in read_extra(connection, problems).items():
        given.setdefault(_SAME_MEANING.get(key, key), value)
    fields = {"host": connection.host, "user": connection.login, "port": connection.port}
    given.update({key: value for key, value in fields.items() if value})
    if connection.password:
        given["password"] = connection.password
    values = Values(f"connection {connection.conn_id}", given, problems)
    if connection.conn_type != CONN_TYPE:
        values.problem(f"is of type {connection.conn_type!r}; it must be of type {CONN_TYPE!r}")
    if "host" not in values:
        values.problem("has no host")
    access = read_access(values)
    if values.flag("allow_host_key_change") and not (access.host_keys and access.host_keys.pinned):
        trusting = replace(access.host_keys or HostKeys(), known_hosts=(), trust_first=True)
        access = replace(access, host_keys=trusting)
    return values, access
