"""The hosts of a pool as a connection lists them, checked all at once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider.hooks.access import KEYS as ACCESS_KEYS
from airflow_provider.hooks.access import Access, make_target, read_access
from airflow_provider.hooks.ssh_connection import read_ssh_connection
from airflow_provider.hooks.values import Values
from airflow_provider.runtime.infra.ssh.pool import DEFAULT_BASE, PoolHost
from airflow_provider.runtime.transport.ssh.target import HostKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow.sdk import Connection

    from airflow_provider.runtime.transport.ssh.target import SshTarget

_ADDRESS_KEYS = ("address", "host", "ip")
_DESCRIPTION_KEYS = ("name", "cpus", "memory", "accelerators", "labels", "zone", "python", "base")
HOST_KEYS = (*_ADDRESS_KEYS, *_DESCRIPTION_KEYS, "ssh_conn_id", *ACCESS_KEYS)
_MOST_HOPS = 5

_PLACE = re.compile(
    r"(?:(?P<user>[^@\s/]+)@)?(?P<host>\[[^]\s]+\]|[^][:@,\s/]+|[0-9a-fA-F:.]*::?[0-9a-fA-F:.]+)(?::(?P<port>[0-9]+))?"
)
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([GT])(?:i?B)?)?", re.IGNORECASE)


class PoolReader:
    """Reads the hosts of one pool.

    Args:
        fetch: Returns the Airflow connection of an id; raises AirflowNotFoundException.
        problems: Takes what is wrong, one text each.
    """

    def __init__(self, fetch: Callable[[str], Connection], problems: list[str]) -> None:
        self._fetch = fetch
        self._problems = problems

    def hosts(self, values: Values, defaults: Access, *, single: str | None) -> tuple[PoolHost, ...]:
        """Return the hosts of a pool's connection: those of ``hosts`` and ``ssh_conn_ids``, or its own.

        Args:
            values: What the connection says.
            defaults: What it says about logging in to all hosts.
            single: The host in the connection's own field, for a pool of one.
        """
        hosts = [self._host(entry, values, defaults) for entry in self._entries(values)]
        hosts += [
            self._of_connection(conn_id, values, defaults, None) for conn_id in values.names("ssh_conn_ids")
        ]
        if single:
            entry = Values(values.where, {"address": single}, self._problems)
            hosts.append(self._host(entry, values, defaults))
        if not hosts and not self._problems:
            values.problem("has no hosts; list them in hosts, or name ssh connections in ssh_conn_ids")
        known = tuple(host for host in hosts if host is not None)
        self._check_doubles(known, values)
        return known

    def of_ssh_connection(self, connection: Connection) -> tuple[PoolHost, ...]:
        """Return the one host of a connection of type ``ssh`` that is used as a pool."""
        values, access = read_ssh_connection(connection, self._problems)
        host = self._described(values, self._target(connection.conn_id, values, access))
        return () if host is None else (host,)

    def _entries(self, values: Values) -> Iterator[Values]:
        given = values.raw("hosts")
        if isinstance(given, str):
            given = _parsed(given, values)
        if isinstance(given, Mapping):
            if not any(key in given for key in (*_ADDRESS_KEYS, "ssh_conn_id")):
                values.problem("hosts is a mapping without an address; write a list of hosts")
                return
            given = [given]
        if given is not None and not isinstance(given, (list, tuple)):
            values.problem("hosts is neither a list of hosts nor YAML text of one")
            return
        for number, entry in enumerate(given or (), 1):
            where = f"{values.where}, host {number}"
            if isinstance(entry, str):
                yield Values(where, {"address": entry}, self._problems)
            elif isinstance(entry, Mapping):
                called = next(
                    (str(entry[key]) for key in ("name", *_ADDRESS_KEYS, "ssh_conn_id") if entry.get(key)), ""
                )
                yield Values(
                    f"{where} ({called})" if called.isprintable() and called else where, entry, self._problems
                )
            else:
                values.problem(
                    f"host {number} is a {type(entry).__name__}; write user@host:port or a mapping"
                )

    def _host(self, entry: Values, pool: Values, defaults: Access) -> PoolHost | None:
        entry.check_keys(HOST_KEYS)
        conn_id = entry.text("ssh_conn_id")
        if conn_id is not None:
            return self._of_connection(conn_id, pool, defaults, entry)
        entry.only_one_of(*_ADDRESS_KEYS)
        address = next((text for key in _ADDRESS_KEYS if (text := entry.text(key))), None)
        if address is None:
            entry.problem("has no address; write address: or ssh_conn_id:")
            return None
        place = _place(address)
        if place is None:
            entry.problem(f"{address!r} is not a host; write user@host:port")
            return None
        user, host, port = place
        access = read_access(entry).over(Access(user=user, port=port)).over(defaults)
        if (user and "user" in entry) or (port and "port" in entry):
            entry.problem(f"user or port is given in {address!r} and beside it; keep one")
        own_port = port or entry.port("port") or 22
        name = entry.text("name") or (host if own_port == 22 else f"{host}:{own_port}")
        values = Values(entry.where, {"host": host, **_given(entry)}, self._problems)
        return self._described(_over(values, pool), self._target(name, values, access))

    def _of_connection(
        self, conn_id: str, pool: Values, defaults: Access, entry: Values | None
    ) -> PoolHost | None:
        connection = self._connection(conn_id, entry or pool)
        if connection is None:
            return None
        values, access = read_ssh_connection(connection, self._problems)
        if entry is not None:
            access = read_access(entry).over(access)
        # What the pool says of keys and proxies is for the hosts that have no connection of their own.
        timing = Access(
            host_keys=defaults.host_keys,
            connect_timeout=defaults.connect_timeout,
            silence_limit=defaults.silence_limit,
            disabled_algorithms=defaults.disabled_algorithms,
        )
        name = (entry.text("name") if entry is not None else None) or conn_id
        target = self._target(name, values, access.over(timing))
        described = values if entry is None else _over(entry, values)
        return self._described(_over(described, pool), target)

    def _connection(self, conn_id: str, where: Values) -> Connection | None:
        from airflow.sdk.exceptions import AirflowNotFoundException

        try:
            return self._fetch(conn_id)
        except AirflowNotFoundException:
            where.problem(f"the ssh connection {conn_id!r} does not exist; create it or name another")
            return None

    def _target(self, name: str, values: Values, access: Access, hops: int = 0) -> SshTarget:
        host = values.word("host") or ""
        jump = None
        if access.proxy_jump:
            jump = self._jump(access.proxy_jump, values, access, hops)
        return make_target(name, host, access, jump=jump, where=values)

    def _jump(self, places: tuple[str, ...], values: Values, access: Access, hops: int) -> SshTarget | None:
        """Return the last of the hosts to go through, which is reached through those before it."""
        if hops + len(places) > _MOST_HOPS:
            values.problem(f"proxy_jump leads over more than {_MOST_HOPS} hosts, or in a circle")
            return None
        *before, last = places
        found = self._jump_connection(last)
        if found is not None:
            reached, own = read_ssh_connection(found, self._problems)
            own = own if before == [] else replace(own, proxy_command=None, proxy_jump=tuple(before))
            return self._target(last, reached, own, hops + len(places))
        place = _place(last)
        if place is None:
            values.problem(
                f"proxy_jump {last!r} is neither an ssh connection nor a host; write user@host:port"
            )
            return None
        user, host, port = place
        rules = access.host_keys or HostKeys()
        # The same keys are tried, and the password is for the host itself alone; so are the keys that it has.
        through = replace(
            access,
            user=user or access.user,
            port=port or 22,
            password=None,
            host_keys=replace(rules, pinned=()),
            proxy_command=None,
            proxy_jump=tuple(before) or None,
        )
        reached = Values(f"{values.where}, proxy_jump {host}", {"host": host}, self._problems)
        return self._target(host, reached, through, hops + 1)

    def _jump_connection(self, name: str) -> Connection | None:
        from airflow.sdk.exceptions import AirflowNotFoundException

        if "@" in name or ":" in name:
            return None
        try:
            return self._fetch(name)
        except AirflowNotFoundException:
            return None

    def _described(self, values: Values, target: SshTarget) -> PoolHost | None:
        host = PoolHost(
            target=target,
            cpus=values.number("cpus"),
            memory=_memory(values),
            accelerators=_accelerators(values),
            labels=_labels(values),
            zone=values.text("zone"),
            python=values.text("python") or "python3",
            base=values.text("base") or DEFAULT_BASE,
        )
        return host if target.host else None

    def _check_doubles(self, hosts: tuple[PoolHost, ...], values: Values) -> None:
        # The same address behind different proxies is another host.
        places: dict[tuple[str, int, SshTarget | None, str | None], str] = {}
        names: set[str] = set()
        for host in hosts:
            target = host.target
            place = (target.host.lower(), target.port, target.jump, target.proxy_command)
            if place in places:
                also = "" if places[place] == host.name else f" (as {places[place]} and {host.name})"
                values.problem(f"host {place[0]}:{place[1]} is listed twice{also}; list it once")
            elif host.name in names:
                values.problem(f"two hosts are called {host.name}; give one another name")
            places.setdefault(place, host.name)
            names.add(host.name)


def _parsed(text: str, values: Values) -> object:
    """Return the YAML of ``hosts``; hosts with blanks, commas or line breaks between them need no YAML."""
    import yaml

    try:
        parsed: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        # Without YAML's own message, which shows the line, and that may hold a secret.
        mark = getattr(error, "problem_mark", None)
        values.problem(f"hosts is not valid YAML{'' if mark is None else f' (line {mark.line + 1})'}")
        return None
    return parsed.replace(",", " ").split() if isinstance(parsed, str) else parsed


def _place(text: str) -> tuple[str | None, str, int | None] | None:
    match = _PLACE.fullmatch(text)
    if match is None or match["host"].startswith("-") or (match["user"] or "").startswith("-"):
        return None
    port = None if match["port"] is None else int(match["port"])
    host = match["host"].strip("[]")
    if (port is not None and not 0 < port < 65536) or (":" in host and not _is_ipv6(host)):
        return None
    return match["user"], host, port


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _given(values: Values) -> dict[str, object]:
    return {key: values.raw(key) for key in _DESCRIPTION_KEYS if key in values}


def _over(values: Values, defaults: Values) -> Values:
    """Return what describes a host, completed by what the pool says of all of them."""
    shared = {key: defaults.raw(key) for key in ("python", "base", "zone", "labels") if key in defaults}
    return Values(values.where, {**shared, **_given(values)}, values.problems)


def _memory(values: Values) -> float | None:
    text = values.text("memory")
    if text is None:
        return None
    match = _MEMORY.fullmatch(text)
    if match is None or not float(match[1]):
        values.problem(f"memory is {text!r}; it must be a number of GiB, such as 64 or 64GB")
        return None
    return float(match[1]) * (1024 if (match[2] or "").upper() == "T" else 1)


def _accelerators(values: Values) -> dict[str, float] | None:
    given = values.raw("accelerators")
    if given is None:
        return None
    if isinstance(given, Mapping):
        pairs = [(str(model), str(count)) for model, count in given.items()]
    else:
        pairs = [
            (name, count or "1")
            for name, _, count in (text.partition(":") for text in values.names("accelerators"))
        ]
    counts = {}
    for model, count in pairs:
        if not count.strip().isdecimal() or not model.strip():
            values.problem(
                f"accelerators has {model}:{count}; write a model and a whole number, such as V100:4"
            )
        else:
            counts[model.strip()] = float(count)
    return counts


def _labels(values: Values) -> dict[str, str]:
    given = values.raw("labels") or {}
    if not isinstance(given, Mapping):
        values.problem("labels is not a mapping; write key: value pairs")
        return {}
    return {str(key): str(value) for key, value in given.items()}
