"""Whether the key that a host shows is the right one.

Only what the target names is looked at: pinned keys, or else files in the format of ``known_hosts``. Those are read and
never written.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from airflow_provider.runtime.transport.ssh.errors import HostKeyRefused, SshRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.transport.ssh.target import SshTarget

log = logging.getLogger(__name__)

_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")}
_CERTIFICATE = "-cert-v01@openssh.com"
# In the order of preference. The last one, with SHA-1, is all that servers before OpenSSH 7.2 have with RSA keys.
_PLAIN = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
    "ssh-rsa",
)


def public_text(key: asyncssh.SSHKey) -> str:
    """Return a public key as ``known_hosts`` has it, without a comment: ``ssh-ed25519 AAAA...``."""
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


def described(key: asyncssh.SSHKey) -> str:
    """Return type and fingerprint of a key."""
    return f"{key.get_algorithm()} {key.get_fingerprint()}"


@dataclass(frozen=True)
class _Known:
    """What is known of a host.

    Attributes:
        origin: Where it is known from, in words.
        keys: The keys that it may show.
        authorities: The keys that may have signed its key.
        revoked: Keys that it must not show.
    """

    origin: str
    keys: tuple[asyncssh.SSHKey, ...] = ()
    authorities: tuple[asyncssh.SSHKey, ...] = ()
    revoked: tuple[asyncssh.SSHKey, ...] = ()


class HostKeyCheck:
    """The decision about the key of one host, for one attempt to connect.

    Attributes:
        refusal: Why the key was refused; None unless it was.
    """

    def __init__(self, target: SshTarget) -> None:
        """Look up what is known of the host. Reads files: keep it away from an event loop.

        Raises:
            SshRefused: a pinned key is no key.
        """
        self.refusal: HostKeyRefused | None = None
        self._target = target
        self._policy = target.host_keys
        self._name = (self._policy.alias or target.host).lower()
        # A key that is known without a port, where that port is not 22, counts if it fits and proves nothing if not:
        # there may be two servers on one address.
        self._portless: tuple[asyncssh.SSHKey, ...] = ()
        if not self._policy.verify:
            self._known = _Known("nowhere: it is not verified")
        elif self._policy.pinned:
            keys = tuple(_pinned(target, text) for text in self._policy.pinned)
            self._known = _Known("pinned for this host", keys)
        else:
            self._known = self._look_up()

    def _look_up(self) -> _Known:
        known = asyncssh.SSHKnownHosts()
        for name in self._policy.known_hosts:
            _load(known, Path(name).expanduser())
        origin = " and ".join(self._policy.known_hosts) or "no known_hosts file"
        if self._target.port == 22 or self._policy.alias:
            keys, authorities, revoked = known.match(self._name, "", None)[:3]
        else:
            keys, authorities, revoked = known.match(f"[{self._name}]:{self._target.port}", "", None)[:3]
            without_port = known.match(self._name, "", None)
            revoked = [*revoked, *without_port[2]]
            if not keys and not authorities:
                self._portless = tuple(without_port[0])
        return _Known(origin, tuple(keys), tuple(authorities), tuple(revoked))

    @property
    def known_hosts(
        self,
    ) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]] | None:
        """What asyncssh's option of this name is to be: nothing is trusted unless this object says so."""
        if not self._policy.verify:
            return None
        return [], [], list(self._known.revoked)

    @property
    def algorithms(self) -> list[str]:
        """The algorithms to ask the host for, in order: it then shows a key of a type that is known of it.

        Raises:
            SshRefused: all of them are disabled.
        """
        types = [key.get_algorithm() for key in (*self._known.keys, *self._portless)]
        wanted = [name for kind in types for name in _SIGNATURES.get(kind, (kind,)) if name in _PLAIN]
        wanted += _PLAIN
        if self._known.authorities:
            # A host may have a certificate of a stranger's: they are asked for only where we know who signs.
            certificates = [name + _CERTIFICATE for name in _PLAIN]
            wanted = [*wanted, *certificates] if self._known.keys else [*certificates, *wanted]
        disabled = set(self._target.disabled_algorithms)
        # One mention of a type disables its certificates too.
        left = [name for name in wanted if not disabled & {name, name.removesuffix(_CERTIFICATE)}]
        if not left:
            raise SshRefused(
                f"{self._target}: every algorithm for host keys is disabled ({', '.join(wanted)})"
            )
        return list(dict.fromkeys(left))

    def accepts(self, key: asyncssh.SSHKey) -> bool:
        """Decide about a key that the host has proved to have; ``refusal`` says why not."""
        known = self._known
        if key in known.revoked:
            self.refusal = HostKeyRefused(
                f"{self._target}: the host shows the key {described(key)}, which is marked @revoked in {known.origin}. "
                "Somebody may have stolen it: do not connect before the host has new keys"
            )
        elif key in known.keys or key in self._portless:
            return True
        elif known.keys:
            self.refusal = HostKeyRefused(self._changed(key))
        elif self._policy.trust_first and not known.authorities:
            return True
        else:
            self.refusal = HostKeyRefused(self._unknown(key))
        return False

    def accepts_authority(self, key: asyncssh.SSHKey) -> bool:
        """Decide about the key that has signed the host's; ``refusal`` says why not."""
        if key in self._known.authorities:
            return True
        expected = _list(self._known.authorities)
        self.refusal = HostKeyRefused(
            f"{self._target}: the host's key is signed by {described(key)}; expected: {expected}, "
            f"the @cert-authority of {self._known.origin}"
        )
        return False

    def explain(self, reason: str) -> HostKeyRefused:
        """Return the refusal, also where asyncssh has found it: a revoked key, an expired or foreign certificate."""
        if self.refusal is not None:
            return self.refusal
        if "revoked" in reason:
            revoked = f"Marked @revoked in {self._known.origin}: {_list(self._known.revoked)}. "
            advice = "Somebody may have stolen it: do not connect before the host has new keys"
            return HostKeyRefused(f"{self._target}: {reason}. {revoked}{advice}")
        return HostKeyRefused(f"{self._target}: the host's certificate is not accepted: {reason}")

    def _changed(self, key: asyncssh.SSHKey) -> str:
        if self._policy.pinned:
            remedy = "put the new key in place of the pinned one (host_key)"
        else:
            remedy = (
                f"remove the old line (ssh-keygen -R {self._lookup_name}) and add the new one ({self._scan})"
            )
        return (
            f"{self._target}: the host shows the key {described(key)}; expected: {_list(self._known.keys)}, "
            f"{self._known.origin}. Either somebody is in between, or it is another host on the same address. "
            f"If the host was rebuilt, make sure of its new fingerprint and {remedy}"
        )

    def _unknown(self, key: asyncssh.SSHKey) -> str:
        known_for = ""
        if self._known.authorities:
            known_for = f"; expected: one signed by {_list(self._known.authorities)}"
        elif self._portless:
            known_for = f"; without the port, {self._name} is known with {_list(self._portless)}"
        return (
            f"{self._target}: the host shows the key {described(key)}, and no key of it is known from "
            f"{self._known.origin}{known_for}. Make sure of the fingerprint and add its line ({self._scan}), "
            "or set host_key, or set host_key_policy: trust_first"
        )

    @property
    def _lookup_name(self) -> str:
        if self._target.port == 22 or self._policy.alias:
            return self._name
        return f"'[{self._name}]:{self._target.port}'"

    @property
    def _scan(self) -> str:
        port = f"-p {self._target.port} " if self._target.port != 22 else ""
        files = self._policy.known_hosts
        return f"ssh-keyscan {port}{self._target.host}" + (f" >> {files[0]}" if files else "")


def _list(keys: Iterable[asyncssh.SSHKey]) -> str:
    return " or ".join(described(key) for key in keys) or "none"


def _pinned(target: SshTarget, text: str) -> asyncssh.SSHKey:
    words = text.strip().strip("\"'").split()
    # A whole line of known_hosts is accepted too: its first word is the host.
    if len(words) >= 3 and words[2].startswith("AAAA"):
        words = words[1:]
    try:
        return asyncssh.import_public_key(" ".join(words[:2]))
    except asyncssh.KeyImportError:
        raise SshRefused(
            f"{target}: the pinned host key {text[:60]!r} is no public key; "
            "write it as ssh-keyscan shows it: ssh-ed25519 AAAA..."
        ) from None


def _load(known: asyncssh.SSHKnownHosts, path: Path) -> None:
    """Add the lines of a file; like ssh, a file that is not there or a line that makes no sense is passed over."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("Host keys: %s cannot be read and is left out: %s", path, error.strerror)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            known.load(_in_lower_case(line))
        except ValueError:
            log.warning("Host keys: %s line %d makes no sense and is left out", path, number)


def _in_lower_case(line: str) -> str:
    """Return a line with its hosts in lower case, in which they are looked up; hashes stay as they are."""
    words = line.split(None, 2)
    place = 1 if line.lstrip().startswith("@") else 0
    if len(words) > place and not words[place].startswith("|"):
        words[place] = words[place].lower()
    return " ".join(words)
