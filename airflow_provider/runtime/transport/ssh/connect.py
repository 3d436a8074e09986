"""One attempt to connect to a host and log in.

asyncssh tells its logger of every connection with level INFO. Importing this module raises that logger's level to
WARNING, unless somebody has set one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncssh

from airflow_provider.runtime.transport.ssh.algorithms import Algorithms, algorithms_for
from airflow_provider.runtime.transport.ssh.dial import dial
from airflow_provider.runtime.transport.ssh.errors import SshError, SshRefused, SshUnreachable
from airflow_provider.runtime.transport.ssh.explain import explain
from airflow_provider.runtime.transport.ssh.hostkeys import HostKeyCheck, public_text
from airflow_provider.runtime.transport.ssh.keys import LoadedKey, load_identity
from airflow_provider.runtime.transport.ssh.login import Client
from airflow_provider.runtime.transport.ssh.proxy import Proxy

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from airflow_provider.runtime.transport.ssh.target import SshTarget

_asyncssh_log = logging.getLogger("asyncssh")
if _asyncssh_log.level == logging.NOTSET:
    _asyncssh_log.setLevel(logging.WARNING)

_MAY_STAY_UNANSWERED = 2
"""Requests for a sign of life; when one more is due without an answer to these, the connection is closed."""

_LAST_WORDS_SECONDS = 0.3
"""How long a proxy command gets to say why it failed, once its end of the connection is closed."""

_CANCEL_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Connected:
    """An open connection, logged in.

    Attributes:
        connection: The connection; whoever has it closes it.
        host_key: The key by which the host has proved itself: ``ssh-ed25519 AAAA...``.
    """

    connection: asyncssh.SSHClientConnection
    host_key: str
    _client: Client = field(repr=False)

    @property
    def ended_because(self) -> str | None:
        """Why the connection has ended by itself; None while it is open, and when it was closed by us."""
        error = self._client.error
        return None if error is None else str(error) or type(error).__name__


async def connect(target: SshTarget, *, tunnel: asyncssh.SSHClientConnection | None = None) -> Connected:
    """Connect to a host and log in: one attempt, which takes ``target.connect_timeout`` seconds at most.

    (Reading and decrypting our own keys comes before that and is not counted: it is slow once per process.)

    Args:
        target: The host.
        tunnel: The open connection to ``target.jump``, through which the way leads. It stays open whatever happens.

    Raises:
        BadKey: one of our keys cannot be used; nothing was sent.
        HostKeyRefused: the host is not the right one, or we cannot know.
        SshRefused: the host does not let us in, or has no algorithm in common with us.
        SshUnreachable: nothing answers, or not in time, or the connection broke.
        ValueError: the target has a jump host, and there is no ``tunnel``.
    """
    if target.jump is not None and tunnel is None:
        raise ValueError(f"{target} is reached through {target.jump}: give the connection to that")
    attempt = _Attempt(target, *await asyncio.to_thread(_prepare, target))
    task = asyncio.ensure_future(attempt.run(tunnel))
    try:
        await asyncio.wait([task], timeout=target.connect_timeout)
    except asyncio.CancelledError:
        await _cancel(task)
        if not task.cancelled() and task.exception() is None:
            task.result().connection.abort()
        raise
    if not task.done():
        await _cancel(task)
        if task.cancelled():
            raise SshUnreachable(f"{target}: {attempt.too_late}")
    return task.result()


async def _cancel(task: asyncio.Task[Connected]) -> None:
    """Cancel until it has ended: a cancellation gets lost where a library's code does not pass it on."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_AGAIN_SECONDS)


def _prepare(target: SshTarget) -> tuple[HostKeyCheck, list[LoadedKey], Algorithms]:
    """Do all that can fail without the network; reads files and decrypts keys."""
    keys = [load_identity(identity) for identity in target.identities]
    return HostKeyCheck(target), keys, algorithms_for(target)


class _Attempt:
    """An attempt to connect, and how far it has come."""

    def __init__(
        self, target: SshTarget, check: HostKeyCheck, keys: Sequence[LoadedKey], algorithms: Algorithms
    ) -> None:
        self._target = target
        self._check = check
        self._keys = keys
        self._algorithms = algorithms
        self._client: Client | None = None

    @property
    def too_late(self) -> str:
        """What to say when the time is over."""
        limit = f"within {self._target.connect_timeout:g} s"
        if self._client is None:
            return f"nothing answers {limit}"
        if not self._client.greeted:
            return f"connected, but it says nothing {limit}: the host may be frozen or overloaded"
        return f"not done {limit}: it stopped answering while {self._client.phase}"

    async def run(self, tunnel: asyncssh.SSHClientConnection | None) -> Connected:
        """Connect and log in, without a limit on the time."""
        target = self._target
        proxy: Proxy | None = None
        agent = await _agent(target) if target.use_agent else None
        try:
            agent_keys = await agent.get_keys() if agent is not None else []
            sock: socket.socket | None = None
            if tunnel is None and target.proxy_command is not None:
                proxy, sock = await Proxy.start(target.proxy_command)
            elif tunnel is None:
                sock = await dial(target)
            return await self._log_in(sock, tunnel, proxy, agent_keys)
        except SshError as error:
            if proxy is not None:
                await proxy.ended(_LAST_WORDS_SECONDS)
                if said := proxy.last_words:
                    raise type(error)(f"{error}. The proxy command said: {said}") from error.__cause__
            raise
        except BaseException:
            if proxy is not None:
                proxy.kill()
                await proxy.ended(_LAST_WORDS_SECONDS)
            raise
        finally:
            if agent is not None:
                agent.close()

    async def _log_in(
        self,
        sock: socket.socket | None,
        tunnel: asyncssh.SSHClientConnection | None,
        proxy: Proxy | None,
        agent_keys: Sequence[asyncssh.SSHKeyPair],
    ) -> Connected:
        target, algorithms = self._target, self._algorithms
        client = Client(
            check=self._check,
            keys=self._keys,
            agent_keys=agent_keys,
            password=target.password,
            disabled=target.disabled_algorithms,
            proxy=proxy,
        )
        self._client = client
        try:
            connection = await asyncssh.connect(
                target.host,
                target.port,
                sock=sock,
                tunnel=tunnel,
                client_factory=lambda: client,
                username=target.user,
                known_hosts=self._check.known_hosts,
                host_key_alias=target.host_keys.alias,
                server_host_key_algs=self._check.algorithms,
                kex_algs=algorithms.exchanges,
                encryption_algs=algorithms.ciphers,
                mac_algs=algorithms.macs,
                signature_algs=algorithms.signatures,
                compression_algs=None,
                # Nothing that the account of this process happens to have counts: no configuration, keys or agent.
                config=None,
                client_keys=None,
                agent_path=None,
                gss_host=None,
                host_based_auth=False,
                x11_forwarding=False,
                # The time is watched over all phases, and by us.
                connect_timeout=None,
                login_timeout=0,
                keepalive_interval=target.silence_limit / (_MAY_STAY_UNANSWERED + 1),
                keepalive_count_max=_MAY_STAY_UNANSWERED,
            )
        except (asyncssh.Error, OSError, ValueError) as error:
            raise explain(target, client, self._check, error) from error
        finally:
            if client.phase == "connecting" and sock is not None:
                sock.close()  # nobody has taken it over
        key = connection.get_server_host_key()
        if key is None:
            connection.abort()
            raise SshRefused(
                f"{target}: it has not proved who it is: no host key took part in the key exchange"
            )
        return Connected(connection, public_text(key), client)


async def _agent(target: SshTarget) -> asyncssh.SSHAgentClient:
    try:
        return await asyncssh.connect_agent()
    except (OSError, asyncssh.Error) as error:
        raise SshRefused(
            f"{target}: the keys of an ssh-agent are asked for, and there is none: {error}"
        ) from error
