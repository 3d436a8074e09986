"""OpenSSH's configuration files: from the alias of a host to what is needed to reach it."""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.transport.ssh.configfile import Evaluation
from airflow_provider.runtime.transport.ssh.errors import BadConfig
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRUE = ("yes", "true")
_HOP = re.compile(
    r"\A(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^@:]+))(?::(?P<port>\d+))?/?\Z"
)
_LISTS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms", "pubkeyacceptedalgorithms")


@dataclass(frozen=True)
class ConfiguredHost:
    """What configuration files say about a host; equal to what ``ssh -G`` prints, as far as it is here.

    Attributes:
        alias: What the host is called in them.
        host: Its name or address.
        user: The account; None: they do not say.
        port: Where its sshd listens; None: they do not say.
        identity_files: Files with private keys, expanded; they need not exist.
        certificate_files: Files with certificates of those keys.
        identities_only: Whether the keys of an ssh-agent are not to be tried.
        proxy_jump: The hosts on the way, in order: ``user@host:port``.
        proxy_command: The command that leads to it, expanded.
        known_hosts: Files with host keys; None: they do not say.
        host_key_alias: What these files call the host.
        strict_host_key_checking: In lower case; None: they do not say.
        connect_timeout: Seconds for an attempt to connect; None: they do not say.
        disabled_algorithms: What they take away from ssh's defaults (lists that begin with ``-``).
    """

    alias: str
    host: str
    user: str | None = None
    port: int | None = None
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str | None = None
    known_hosts: tuple[str, ...] | None = None
    host_key_alias: str | None = None
    strict_host_key_checking: str | None = None
    connect_timeout: float | None = None
    disabled_algorithms: tuple[str, ...] = ()


def apply_config(
    alias: str, files: Sequence[str], *, user: str | None = None, port: int | None = None
) -> ConfiguredHost:
    """Look a host up in configuration files; the first value found counts. May run commands (``Match exec``).

    Args:
        alias: What would be written after ``ssh``.
        files: The files, in order; ``~`` is the home of the process.
        user: The account, as after ``-l``; counts more than the files.
        port: As after ``-p``; counts more than the files.

    Raises:
        BadConfig: a file cannot be read or understood; names the line.
    """
    found = Evaluation(alias, user=user, port=port)
    found.read(files)
    values = found.values
    known_hosts = [
        name for key in ("userknownhostsfile", "globalknownhostsfile") for name in values.get(key, ())
    ]
    says_known_hosts = "userknownhostsfile" in values or "globalknownhostsfile" in values
    if says_known_hosts and "userknownhostsfile" not in values:
        known_hosts = ["~/.ssh/known_hosts", *known_hosts]
    if says_known_hosts and "globalknownhostsfile" not in values:
        known_hosts = [*known_hosts, "/etc/ssh/ssh_known_hosts"]
    jump = _unless_none(found.first("proxyjump", "none"))
    command = _unless_none(found.first("proxycommand", "none"))
    strict = values.get("stricthostkeychecking")
    return ConfiguredHost(
        alias=alias,
        host=found.host,
        user=found.values["user"][0] if "user" in values else None,
        port=_number(found, "port"),
        identity_files=_paths(found, "identityfile"),
        certificate_files=_paths(found, "certificatefile"),
        identities_only=found.first("identitiesonly", "no").lower() in _TRUE,
        proxy_jump=tuple(hop.strip() for hop in found.expand(jump).split(",")) if jump else (),
        proxy_command=found.expand(command) if command else None,
        known_hosts=tuple(found.expand_path(name) for name in known_hosts if name.lower() != "none")
        if says_known_hosts
        else None,
        host_key_alias=values["hostkeyalias"][0] if "hostkeyalias" in values else None,
        strict_host_key_checking=strict[0].lower() if strict else None,
        connect_timeout=_number(found, "connecttimeout"),
        disabled_algorithms=_taken_away(found),
    )


def target_from_config(
    alias: str,
    files: Sequence[str],
    *,
    name: str | None = None,
    user: str | None = None,
    port: int | None = None,
    identities: Sequence[Identity] | None = None,
    password: str | None = None,
    host_keys: HostKeys | None = None,
    proxy_command: str | None = None,
    connect_timeout: float | None = None,
    silence_limit: float | None = None,
    disabled_algorithms: Sequence[str] | None = None,
    use_agent: bool = False,
) -> SshTarget:
    """Return how a host is reached that configuration files describe, over the hosts that its ``ProxyJump`` names.

    What is given here counts more than the files, for the host itself; the hosts on the way are what the files say,
    with the same times, and ``use_agent`` for all.

    Args:
        alias: What would be written after ``ssh``.
        files: The files, in order; ``~`` is the home of the process.
        name: What people call the host; by default the alias.
        user: The account; by default the files', or else that of the process.
        port: Where its sshd listens.
        identities: Keys to try; by default those that the files name and that exist.
        password: Tried after the keys.
        host_keys: How the host proves itself.
        proxy_command: Command that leads to it, in place of a proxy that the files name.
        connect_timeout: Seconds for one attempt to connect and log in.
        silence_limit: Seconds without a sign of life after which the connection counts as dead.
        disabled_algorithms: Algorithms not to use.
        use_agent: Whether the keys of a running ssh-agent may be tried, unless the files forbid that.

    Raises:
        BadConfig: a file cannot be read or understood, or the hosts on the way lead in a circle.
    """
    found = apply_config(alias, files, user=user, port=port)
    target = _target(found, name=name or alias, use_agent=use_agent)
    if connect_timeout is not None:
        target = replace(target, connect_timeout=connect_timeout)
    if silence_limit is not None:
        target = replace(target, silence_limit=silence_limit)
    if proxy_command is not None:
        target = replace(target, proxy_command=proxy_command)
    elif found.proxy_jump:
        jump = _jumps(found.proxy_jump, files, (alias,), use_agent)
        target = replace(target, jump=_with_times(jump, target), proxy_command=None)
    return replace(
        target,
        identities=target.identities if identities is None else tuple(identities),
        password=password,
        host_keys=host_keys or target.host_keys,
        disabled_algorithms=target.disabled_algorithms
        if disabled_algorithms is None
        else tuple(disabled_algorithms),
    )


def _target(found: ConfiguredHost, *, name: str, use_agent: bool) -> SshTarget:
    """Return the target for a host, without the way to it."""
    plain = SshTarget(name=name, host=found.host, user=found.user or getpass.getuser())
    strict = found.strict_host_key_checking
    return replace(
        plain,
        port=found.port or plain.port,
        identities=_identities(found),
        host_keys=HostKeys(
            known_hosts=plain.host_keys.known_hosts if found.known_hosts is None else found.known_hosts,
            trust_first=strict in ("accept-new", "off", "no"),
            alias=found.host_key_alias,
        ),
        proxy_command=found.proxy_command,
        connect_timeout=plain.connect_timeout if not found.connect_timeout else found.connect_timeout,
        disabled_algorithms=found.disabled_algorithms,
        use_agent=use_agent and not found.identities_only,
    )


def _jumps(hops: Sequence[str], files: Sequence[str], seen: tuple[str, ...], use_agent: bool) -> SshTarget:
    """Return the target for the last of several hops; only the first of them may have a proxy of its own."""
    jump: SshTarget | None = None
    for hop in hops:
        parts = _HOP.match(hop)
        if parts is None:
            raise BadConfig(f"{seen[0]}: ProxyJump {hop!r} is not [user@]host[:port]")
        alias = parts["v6"] or parts["host"]
        if alias in seen:
            raise BadConfig(f"{seen[0]}: its ProxyJump leads in a circle: {' -> '.join((*seen, alias))}")
        port = int(parts["port"]) if parts["port"] else None
        found = apply_config(alias, files, user=parts["user"], port=port)
        target = _target(found, name=alias, use_agent=use_agent)
        if jump is not None:
            target = replace(target, jump=jump, proxy_command=None)
        elif found.proxy_jump:
            target = replace(target, jump=_jumps(found.proxy_jump, files, (*seen, alias), use_agent))
        jump, seen = target, (*seen, alias)
    if jump is None:
        raise BadConfig(f"{seen[0]}: its ProxyJump names no host")
    return jump


def _with_times(jump: SshTarget, target: SshTarget) -> SshTarget:
    before = jump.jump if jump.jump is None else _with_times(jump.jump, target)
    return replace(jump, jump=before, silence_limit=target.silence_limit)


def _identities(found: ConfiguredHost) -> tuple[Identity, ...]:
    """Return the keys that exist, each with the certificate that belongs to it, as ssh finds it."""
    identities = []
    for path in found.identity_files:
        if not Path(path).exists():
            continue
        certificate = None
        own = f"{path}-cert.pub"
        for candidate in (own, *found.certificate_files):
            # A certificate file names no key: the one that is not called after a key goes with a single key.
            if Path(candidate).is_file() and (candidate == own or len(found.identity_files) == 1):
                certificate = Path(candidate).read_text(errors="replace")
                break
        identities.append(Identity(f"IdentityFile of {found.alias}", path=path, certificate=certificate))
    return tuple(identities)


def _paths(found: Evaluation, keyword: str) -> tuple[str, ...]:
    words = found.values.get(keyword, ())
    return tuple(found.expand_path(word) for word in words if word.lower() != "none")


def _number(found: Evaluation, keyword: str) -> int | None:
    if keyword not in found.values or found.first(keyword, "").lower() == "none":
        return None
    text = found.first(keyword, "")
    if not text.isdecimal():
        raise BadConfig(f"{found.alias}: {keyword} {text!r} is not a number")
    return int(text)


def _taken_away(found: Evaluation) -> tuple[str, ...]:
    taken = []
    for keyword in _LISTS:
        text = found.first(keyword, "")
        if text.startswith("-"):
            taken += [name for name in text[1:].split(",") if name and not set(name) & {"*", "?"}]
    return tuple(dict.fromkeys(taken))


def _unless_none(text: str) -> str | None:
    return None if text.lower() == "none" else text


def default_files() -> tuple[str, ...]:
    """Return the files that ssh reads unless told otherwise, as far as they exist."""
    return tuple(
        name
        for name in ("~/.ssh/config", "/etc/ssh/ssh_config")
        if os.access(Path(name).expanduser(), os.R_OK)
    )
