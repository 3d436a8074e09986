"""How hosts are logged in to, as a connection or an entry of a pool says it, and what becomes of it: an SshTarget.

Whatever comes from the process itself is left out: user names, keys and settings below its home directory differ
between worker and triggerer, and the task would begin on one side and fail on the other. So unlike Airflow's own
``SSHHook`` this does not fall back to the name of the process's user, to ``~/.ssh/config`` or to keys in ``~/.ssh``.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget

if TYPE_CHECKING:
    from airflow_provider.hooks.values import Values

KEYS = (
    "user",
    "port",
    "key_file",
    "private_key",
    "private_key_passphrase",
    "passphrase",
    "password",
    "host_key",
    "known_hosts",
    "host_key_policy",
    "no_host_key_check",
    "ssh_config",
    "proxy_command",
    "proxy_jump",
    "connect_timeout",
    "silence_limit",
    "disabled_algorithms",
)
POLICIES = ("strict", "trust_first", "none")
_NO_FILE = "none"
_SAFE_IN_SHELL = re.compile(r"[\w.:%@+-]*")
_SAID = (
    "user",
    "port",
    "identities",
    "password",
    "host_keys",
    "proxy_command",
    "connect_timeout",
    "silence_limit",
    "disabled_algorithms",
)
"""What an Access says in the words of an SshTarget."""


@dataclass(frozen=True)
class Access:
    """What is said about logging in, None where nothing is said; ``SshTarget`` has the meanings.

    Attributes:
        proxy_jump: Hosts to go through, in order: ``user@host:port`` or ids of Airflow connections of type ``ssh``.
        ssh_config: A file in the format of OpenSSH's client that says more.
    """

    user: str | None = None
    port: int | None = None
    identities: tuple[Identity, ...] | None = None
    password: str | None = field(default=None, repr=False)
    host_keys: HostKeys | None = None
    proxy_command: str | None = None
    proxy_jump: tuple[str, ...] | None = None
    ssh_config: str | None = None
    connect_timeout: float | None = None
    silence_limit: float | None = None
    disabled_algorithms: tuple[str, ...] | None = None

    def over(self, defaults: Access) -> Access:
        """Return this, completed by what ``defaults`` says and this does not."""
        if self.identities is not None or self.password is not None:
            defaults = replace(defaults, identities=None, password=None)
        if self.proxy_command is not None or self.proxy_jump is not None:
            defaults = replace(defaults, proxy_command=None, proxy_jump=None)
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.host_keys is not None and self.host_keys == HostKeys(self.host_keys.pinned):
            # The key of a host says nothing of the hosts on the way to it: for those the default goes on to count.
            rules = defaults.host_keys or HostKeys()
            given["host_keys"] = replace(rules, pinned=self.host_keys.pinned, verify=True)
        return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def read_access(values: Values) -> Access:
    """Return what ``values`` say about logging in; what is wrong with them is noted there."""
    values.only_one_of("key_file", "private_key")
    values.only_one_of("proxy_command", "proxy_jump")
    return Access(
        user=values.word("user"),
        port=values.port("port"),
        identities=_identities(values),
        password=values.secret("password"),
        host_keys=_host_keys(values),
        proxy_command=values.text("proxy_command"),
        proxy_jump=values.names("proxy_jump") or None,
        ssh_config=read_path(values, "ssh_config"),
        connect_timeout=values.seconds("connect_timeout"),
        silence_limit=values.seconds("silence_limit"),
        disabled_algorithms=read_algorithms(values),
    )


def make_target(name: str, host: str, access: Access, *, jump: SshTarget | None, where: Values) -> SshTarget:
    """Return how ``host`` is reached; what is missing is noted at ``where``."""
    said = {key: value for key in _SAID if (value := getattr(access, key)) is not None}
    if access.ssh_config is None:
        target = replace(SshTarget(name=name, host=host, user="", jump=jump), **said)
    else:
        target = _configured(name, host, access.ssh_config, said, jump, where)
    if access.proxy_command is not None:
        target = replace(target, proxy_command=_expanded(access.proxy_command, target, where))
    if not target.user:
        where.problem(f"host {name} has no user; set user (login, in an ssh connection)")
    if not target.identities and target.password is None:
        where.problem(f"host {name} has nothing to log in with; set private_key, key_file or password")
    return target


def _configured(
    name: str, host: str, file: str, said: dict[str, Any], jump: SshTarget | None, where: Values
) -> SshTarget:
    """Return how ``host`` is reached according to ``file``, over which goes what the connection says."""
    from airflow_provider.runtime.transport.ssh.config import apply_config, target_from_config
    from airflow_provider.runtime.transport.ssh.errors import BadConfig

    try:
        user = said.get("user") or apply_config(host, [file], port=said.get("port")).user
        target = target_from_config(host, [file], name=name, **{**said, "user": user or "nobody"})
    except BadConfig as error:
        where.problem(f"ssh_config {file}: {error}")
        return SshTarget(name=name, host=host, user="unknown", password="")
    # Without a user, ssh takes that of its process, which is another one in every process.
    target = replace(target, user=user or "")
    return target if jump is None else replace(target, jump=jump, proxy_command=None)


def _expanded(command: str, target: SshTarget, where: Values) -> str:
    """Return a proxy command with the host, port and user in it where ssh puts them."""
    values = {"%h": target.host, "%p": str(target.port), "%r": target.user, "%%": "%"}
    for value in (target.host, target.user):
        if not _SAFE_IN_SHELL.fullmatch(value):
            where.problem(
                f"{value!r} cannot be put into a proxy_command; only letters, digits and .:_%@+- can"
            )
            return command
    return re.sub("%[hpr%]", lambda found: values[found[0]], command)


def read_algorithms(values: Values) -> tuple[str, ...] | None:
    """Return names of algorithms, from a list or from a mapping of kinds to lists, as paramiko takes it."""
    given = values.raw("disabled_algorithms")
    if isinstance(given, dict):
        lists = [
            names if isinstance(names, (list, tuple)) else str(names).split(",") for names in given.values()
        ]
        return tuple(dict.fromkeys(str(name).strip() for names in lists for name in names))
    return values.names("disabled_algorithms") or None


def _identities(values: Values) -> tuple[Identity, ...] | None:
    passphrase = values.secret("private_key_passphrase", "passphrase")
    text = values.secret("private_key")
    path = read_path(values, "key_file", remedy="paste the key as private_key")
    if text is not None:
        return (Identity(source=f"{values.where}, private_key", text=text, passphrase=passphrase),)
    if path is not None:
        return (Identity(source=f"{values.where}, key_file", path=path, passphrase=passphrase),)
    if passphrase is not None and "key_file" not in values:
        values.problem("private_key_passphrase is given without private_key or key_file")
    return None


def _host_keys(values: Values) -> HostKeys | None:
    pinned = _pinned(values)
    policy = values.text("host_key_policy")
    if policy is not None and policy not in POLICIES:
        values.problem(f"host_key_policy is {policy!r}; it must be one of {', '.join(POLICIES)}")
    unchecked = values.flag("no_host_key_check")
    if policy == "none" or (unchecked and policy is None):
        if pinned:
            values.problem(
                "host_key says which key the host has, and it is not to be checked; keep one of both"
            )
        return HostKeys(known_hosts=(), verify=False)
    if unchecked:
        values.problem(f"host_key_policy is {policy!r} and no_host_key_check is true; keep one of both")
    files = values.text("known_hosts")
    if files is not None and files.lower() == _NO_FILE:
        return HostKeys(
            pinned,
            known_hosts=(),
            verify=bool(pinned) or policy is not None,
            trust_first=policy == "trust_first",
        )
    file = read_path(values, "known_hosts", remedy="set host_key to the host's key")
    if not pinned and file is None and policy is None and unchecked is None:
        return None
    keys = HostKeys(pinned, trust_first=policy == "trust_first")
    return keys if file is None else replace(keys, known_hosts=(file,))


def _pinned(values: Values) -> tuple[str, ...]:
    """Return the host's keys as ``type data``; a key without its type is an RSA key, as in Airflow's ``SSHHook``."""
    pinned = []
    given = values.raw("host_key")
    lines = (
        given.splitlines() if isinstance(given, str) else given if isinstance(given, (list, tuple)) else ()
    )
    if given is not None and not lines:
        values.problem("host_key is no text; write the line that ssh-keyscan shows")
    for words in (str(line).split() for line in lines):
        if not words:
            continue
        begin = next((n for n, word in enumerate(words) if word.startswith(("ssh-", "ecdsa-", "sk-"))), None)
        if begin is None:
            pinned.append(f"ssh-rsa {words[0]}")
        elif len(words) < begin + 2:
            values.problem(
                f"host_key {words[begin]!r} has a type and no key; write both, as ssh-keyscan does"
            )
        else:
            pinned.append(f"{words[begin]} {words[begin + 1]}")
    return tuple(pinned)


def read_path(values: Values, key: str, *, remedy: str = "") -> str | None:
    """Return the path of a file or folder; one that this process cannot read is noted."""
    path = values.text(key)
    if path is None:
        return None
    file = Path(path).expanduser()
    if not os.access(file, os.R_OK):
        what = "cannot be read" if file.exists() else "does not exist"
        values.problem(
            f"{key} {path} {what} on {socket.gethostname()} (process {os.getpid()}); workers and triggerers all need "
            f"it{f', or {remedy}' if remedy else ''}"
        )
    return path
