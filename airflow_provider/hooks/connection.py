"""What the connection that clusters come from says, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider import settings
from airflow_provider.hooks.access import KEYS as ACCESS_KEYS
from airflow_provider.hooks.access import read_access, read_path
from airflow_provider.hooks.site import site_name
from airflow_provider.hooks.ssh_connection import CONN_TYPE as SSH
from airflow_provider.hooks.ssh_pool import PoolReader
from airflow_provider.hooks.values import Values, read_extra
from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Connection

    from airflow_provider.runtime.infra.local import LocalInfra
    from airflow_provider.runtime.infra.ssh.infra import SshInfra
    from airflow_provider.runtime.transport.ssh.target import SshTarget

CONN_TYPE = "managed_cluster"
INFRAS = ("local", "ssh")
DEFAULT_LEASE_SECONDS = 3600.0
DEFAULT_UNREACHABLE_SECONDS = 600.0

_LOCAL_KEYS = ("root",)
_SSH_KEYS = ("hosts", "ssh_conn_ids", "wheelhouse", "site", "python", "base", *ACCESS_KEYS)
_FIELDS = ("user", "password", "port")
"""Keys that are fields of every connection too: they say nothing about the infra."""
KEYS = ("infra", "lease_seconds", "unreachable_timeout", *_LOCAL_KEYS, *_SSH_KEYS)


class BadConnection(ValueError):
    """A connection says something that is not acceptable; the text lists everything that is wrong with it."""


@dataclass(frozen=True)
class ClusterSettings:
    """Where clusters come from.

    Attributes:
        infra: ``local`` or ``ssh``.
        root: Folder of local clusters; by default ``managed_jobs/clusters`` below ``AIRFLOW_HOME``.
        pool: The hosts of infra ``ssh``.
        lease_seconds: How long a cluster lives without hearing from a controller.
        unreachable_timeout: Seconds without contact after which a cluster counts as lost.
    """

    infra: str
    root: Path
    pool: SshPool | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    unreachable_timeout: float = DEFAULT_UNREACHABLE_SECONDS

    def make_infra(self) -> LocalInfra | SshInfra:
        """Return the infra that these settings describe."""
        if self.pool is None:
            from airflow_provider.runtime.infra.local import LocalInfra

            return LocalInfra(self.root, lease_seconds=self.lease_seconds)
        from airflow_provider.runtime.infra.ssh.infra import SshInfra

        return SshInfra(self.pool)

    def secrets(self) -> tuple[str, ...]:
        """Return every secret in these settings, for masking."""
        found: list[str | None] = []
        for host in self.pool.hosts if self.pool is not None else ():
            target: SshTarget | None = host.target
            while target is not None:
                found.append(target.password)
                for identity in target.identities:
                    found += [identity.text, identity.passphrase]
                target = target.jump
        return tuple(dict.fromkeys(secret for secret in found if secret))


def local_settings() -> ClusterSettings:
    """Return the settings of this machine, as they are without any connection."""
    return ClusterSettings("local", settings.home() / "clusters")


def read_connection(connection: Connection, fetch: Callable[[str], Connection]) -> ClusterSettings:
    """Return what a connection of type ``managed_cluster`` or ``ssh`` says. Blocking.

    Args:
        connection: The connection.
        fetch: Returns other connections that it names, by id.

    Raises:
        BadConnection: something is not acceptable; the text names the places, what is wrong and the remedies.
    """
    problems: list[str] = []
    reader = PoolReader(fetch, problems)
    given = read_extra(connection, problems)
    hosts: tuple[PoolHost, ...] = ()
    if connection.conn_type == SSH:
        infra, values = "ssh", Values(f"connection {connection.conn_id}", given, problems)
        hosts = reader.of_ssh_connection(connection)
    else:
        fields = {"user": connection.login, "password": connection.password, "port": connection.port}
        for key, value in fields.items():
            given = {**given, key: value} if value and not given.get(key) else given
        values = Values(f"connection {connection.conn_id}", given, problems)
        infra = _infra(connection, values)
        if infra == "ssh":
            hosts = reader.hosts(values, read_access(values), single=connection.host)
    lease = values.seconds("lease_seconds") or DEFAULT_LEASE_SECONDS
    root = values.text("root")
    checked = ClusterSettings(
        infra=infra,
        root=Path(root).expanduser() if root else local_settings().root,
        pool=SshPool(
            name=connection.conn_id,
            hosts=hosts,
            wheelhouse=read_path(values, "wheelhouse"),
            site=values.text("site") or site_name(),
            lease_seconds=lease,
        )
        if infra == "ssh"
        else None,
        lease_seconds=lease,
        unreachable_timeout=values.seconds("unreachable_timeout") or DEFAULT_UNREACHABLE_SECONDS,
    )
    if problems:
        raise BadConnection("\n".join(dict.fromkeys(problems)))
    return checked


def _infra(connection: Connection, values: Values) -> str:
    """Return the infra of a connection of type ``managed_cluster``; note what does not go with it."""
    if connection.conn_type != CONN_TYPE:
        values.problem(f"is of type {connection.conn_type!r}; it must be of type {CONN_TYPE!r} or {SSH!r}")
    values.check_keys(KEYS)
    pool = connection.host or any(key in values for key in _SSH_KEYS if key not in _FIELDS)
    infra = values.text("infra") or ("ssh" if pool else "local")
    if infra not in INFRAS:
        values.problem(f"infra is {infra!r}; this version has: {', '.join(INFRAS)}")
        return "local"
    for key in _SSH_KEYS if infra == "local" else _LOCAL_KEYS:
        if key in values and key not in _FIELDS:
            values.problem(
                f"{key} is for infra {'ssh' if infra == 'local' else 'local'}, and infra is {infra}"
            )
    return infra
