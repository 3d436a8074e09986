"""What is needed to reach a host over SSH. Plain data, from one place for every process."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Identity:
    """A private key to log in with.

    Attributes:
        source: Where it is from, for messages: ``connection gpu, private_key``.
        text: The key itself, as it was pasted; never shown.
        path: The file that holds it, when there is no text. ``~`` is the home of the process.
        passphrase: What it is encrypted with; None: it is not.
        certificate: An OpenSSH certificate of the key, as text.
    """

    source: str
    text: str | None = field(default=None, repr=False)
    path: str | None = None
    passphrase: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class HostKeys:
    """How a host proves who it is. By default with a key that ``known_hosts`` files name.

    Attributes:
        pinned: The keys that are accepted, as ``ssh-ed25519 AAAA...``; with any, nothing else is looked at.
        known_hosts: Files in OpenSSH's format; ``~`` is the home of the process. They are read, never written.
        alias: What ``known_hosts`` calls the host, where that is not its address (HostKeyAlias).
        trust_first: Where nothing is known of the host, accept the key that it shows. (Whoever asked for that then
            pins it.)
        verify: False accepts every key, every time.
    """

    pinned: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
    trust_first: bool = False
    verify: bool = True
    alias: str | None = None


@dataclass(frozen=True)
class SshTarget:
    """An account on a host, and how it is reached. Equal targets share one connection per process.

    Attributes:
        name: What people call the host, for messages.
        host: Its name or address.
        user: The account.
        port: Where its sshd listens.
        identities: Keys to try, in order.
        password: Tried after the keys; never shown.
        host_keys: How the host proves itself.
        jump: The host through which it is reached (ProxyJump).
        proxy_command: Command whose standard input and output lead to it (ProxyCommand), expanded already.
        connect_timeout: Seconds for one attempt to connect and log in.
        silence_limit: Seconds without a sign of life after which the connection counts as dead.
        disabled_algorithms: Names of key exchanges, ciphers, MACs, host key and signature algorithms not to use.
        use_agent: Whether the keys of a running ssh-agent may be tried too.
    """

    name: str
    host: str
    user: str
    port: int = 22
    identities: tuple[Identity, ...] = ()
    password: str | None = field(default=None, repr=False)
    host_keys: HostKeys = HostKeys()
    jump: SshTarget | None = None
    proxy_command: str | None = None
    connect_timeout: float = 10.0
    silence_limit: float = 9.0
    disabled_algorithms: tuple[str, ...] = ()
    use_agent: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.user}@{self.host}:{self.port})"
