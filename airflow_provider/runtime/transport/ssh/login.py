"""How we log in: which keys are offered in which order, and then the password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider.runtime.transport.ssh.hostkeys import HostKeyCheck
    from airflow_provider.runtime.transport.ssh.keys import LoadedKey
    from airflow_provider.runtime.transport.ssh.proxy import Proxy

_SHA1 = b"ssh-rsa"
_SHA2 = (b"rsa-sha2-512", b"rsa-sha2-256")
_DONE = "logged in"


class _Offer:
    """A key to offer, with the signatures that it may make.

    Attributes:
        tried: The algorithms that the server was offered it with.
    """

    def __init__(self, name: str, pair: asyncssh.SSHKeyPair, disabled: frozenset[bytes]) -> None:
        self._name = name
        self._pair = pair
        self._is_rsa = pair.get_algorithm() == _SHA1.decode()
        self._left = [name for name in pair.sig_algorithms if name not in disabled]
        self.tried: list[str] = []

    def next(self) -> asyncssh.SSHKeyPair | None:
        """Return the key as it is to be offered next, or None when every way has been tried.

        An RSA key signs with SHA-1 (which servers before OpenSSH 7.2 need and later ones refuse) or with SHA-2, and not
        every server says which it takes. So a refused one is offered once more, with the other family.
        """
        if self.tried:
            self._note_used()
        if not self._is_rsa:
            if self.tried or not self._left:
                return None
            self.tried.append(self._pair.get_algorithm())
            return self._pair
        if len(self.tried) == 2:
            return None
        allowed = [name for name in (*_SHA2, _SHA1) if name in self._left]
        if self.tried:
            used_sha1 = self.tried[0] == _SHA1.decode()
            allowed = [name for name in allowed if (name == _SHA1) is not used_sha1]
        if not allowed:
            return None
        # To a server that tells what it takes asyncssh offers the first one of these that fits; to any other one what
        # is set here, and such a server is most likely an old one.
        self._pair.sig_algorithms = allowed
        self._pair.set_sig_algorithm(_SHA1 if _SHA1 in allowed else allowed[0])
        self.tried.append(self._pair.get_algorithm())
        return self._pair

    def _note_used(self) -> None:
        """Correct what was tried last: asyncssh decides when it knows what the server takes."""
        self.tried[-1] = self._pair.get_algorithm()

    def __str__(self) -> str:
        self._note_used()
        algorithms = [name for name in self.tried if name not in self._name]
        return f"{self._name}, signed with {' and then '.join(self.tried)}" if algorithms else self._name


class Client(asyncssh.SSHClient):
    """What asyncssh asks while it connects and logs in, and how far it has come.

    Attributes:
        phase: What is being done, for the message when it takes too long.
        error: Why the connection has ended; None while it is open, or when we have closed it.
        methods: Ways to log in that the server would take, as it last said.
    """

    def __init__(
        self,
        *,
        check: HostKeyCheck,
        keys: Sequence[LoadedKey],
        agent_keys: Iterable[asyncssh.SSHKeyPair],
        password: str | None,
        disabled: Iterable[str],
        proxy: Proxy | None,
    ) -> None:
        never = frozenset(name.encode() for name in disabled)
        offers = [_Offer(str(key), pair, never) for key in keys for pair in key.pairs()]
        offers += [
            _Offer(f"a key of the ssh-agent ({_agent_name(pair)})", pair, never) for pair in agent_keys
        ]
        self._offers = offers
        self._place = 0
        self._check = check
        self._passwords = {"password": password, "keyboard-interactive": password}
        self._asked: set[str] = set()
        self._proxy = proxy
        self._connection: asyncssh.SSHClientConnection | None = None
        self.phase = "connecting"
        self.error: Exception | None = None
        self.methods: tuple[str, ...] = ()

    @property
    def tried(self) -> list[str]:
        """What the server has refused: keys with type and fingerprint, and passwords."""
        keys = list(dict.fromkeys(str(offer) for offer in self._offers if offer.tried))
        return [
            *keys,
            *(f"the {name}" if name == "password" else f"the password ({name})" for name in self._asked),
        ]

    @property
    def has_proxy(self) -> bool:
        """Whether a command leads to the host."""
        return self._proxy is not None

    @property
    def greeted(self) -> bool:
        """Whether the server has said that it speaks SSH."""
        return self._connection is not None and self._connection.get_extra_info("server_version") is not None

    # Called by asyncssh.

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Begin: there is a connection to something."""
        self._connection = conn
        self.phase = "exchanging keys"

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the connection is closed, or was never completed."""
        self.error = exc
        # Before that the attempt goes on for a moment: the command may say why there is no connection.
        if self._proxy is not None and self.phase == _DONE:
            self._proxy.close()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide about the host's key."""
        return self._check.accepts(key)

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Decide about who signed the host's key."""
        return self._check.accepts_authority(key)

    def begin_auth(self, username: str) -> None:
        """Go on: the host is the right one."""
        self.phase = "logging in"

    def auth_completed(self) -> None:
        """Go on: we are in."""
        self.phase = _DONE

    def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
        """Return the next key to offer."""
        self._note_methods()
        while self._place < len(self._offers):
            if (pair := self._offers[self._place].next()) is not None:
                return pair
            self._place += 1
        return None

    def password_auth_requested(self) -> str | None:
        """Return the password, once."""
        return self._password("password")

    def kbdint_auth_requested(self) -> str | None:
        """Say whether questions can be answered: once, with the password."""
        self._note_methods()
        can = self._passwords["keyboard-interactive"] is not None
        return "" if can else None

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer one hidden question with the password; what only tells something is answered with nothing."""
        if not prompts:
            return []
        if len(prompts) > 1 or prompts[0][1]:
            return None
        password = self._password("keyboard-interactive")
        return None if password is None else [password]

    def _password(self, method: str) -> str | None:
        self._note_methods()
        password, self._passwords[method] = self._passwords[method], None
        if password is not None:
            self._asked.add(method)
        return password

    def _note_methods(self) -> None:
        if self._connection is not None:
            self.methods = tuple(self._connection.get_server_auth_methods()) or self.methods


def _agent_name(pair: asyncssh.SSHKeyPair) -> str:
    return f"{pair.get_algorithm()} {pair.get_comment(errors='replace') or ''}".strip()
