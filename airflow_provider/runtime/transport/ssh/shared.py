"""SSH connections that are shared: one for each target, counted, made again when somebody wants it. On the SSH thread."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import asyncssh

from airflow_provider.runtime.transport.ssh.errors import SshRefused, SshUnreachable
from airflow_provider.runtime.transport.ssh.waiting import Way

if TYPE_CHECKING:
    from airflow_provider.runtime.transport.ssh.target import SshTarget

log = logging.getLogger(__name__)

OPEN_SECONDS = 30.0
"""For a connection, unless the opener says otherwise: a few attempts at a host that is too busy to greet."""

LINGER_SECONDS = 15.0
"""How long a connection that nobody uses waits for the next user."""

REFUSAL_SECONDS = 30.0
"""How long a host that refused us is left in peace: many hosts shut out for good who keeps on trying."""

_CONNECTS_PER_HOST = 4
"""At the same time. OpenSSH begins to drop connections that are not logged in yet from the tenth on."""

_SESSIONS = 8
"""Commands at the same time on a connection. OpenSSH allows ten by default, relays included."""

_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 3.0


class Connected(Protocol):
    """A connection that is logged in, and the key that its host showed."""

    @property
    def connection(self) -> asyncssh.SSHClientConnection:
        """The connection."""
        ...

    @property
    def host_key(self) -> str:
        """As ``ssh-ed25519 AAAA...``."""
        ...

    @property
    def ended_because(self) -> str | None:
        """Why the connection has ended by itself; None: it has not."""
        ...


class Connect(Protocol):
    """Makes one attempt to connect, in the time that the target sets."""

    def __call__(
        self, target: SshTarget, *, tunnel: asyncssh.SSHClientConnection | None
    ) -> Awaitable[Connected]:
        """Connect, through the connection ``tunnel`` if there is one.

        Raises:
            SshError: it failed.
        """
        ...


class SharedLink:
    """One SSH connection: being made, there, or lost. ``Links`` makes them and knows those that are not lost.

    Attributes:
        target: Where it leads.
        sessions: Limits the commands on it, so that they wait here and not at the host.
        forwards: Whether the host forwards to unix sockets; None until one of both was seen.
    """

    def __init__(self, links: Links, target: SshTarget) -> None:
        self.target = target
        self.sessions = asyncio.Semaphore(_SESSIONS)
        self.forwards: bool | None = None
        self._links = links
        self._holders = 0
        self._connected: Connected | None = None
        self._jump: SharedLink | None = None
        self._last: SshUnreachable | None = None
        self._doing = "it is being made"
        self._lost = False
        self._expiry: asyncio.TimerHandle | None = None
        self._attempt = asyncio.ensure_future(self._make())
        self._attempt.add_done_callback(self._made)

    @property
    def is_lost(self) -> bool:
        """Whether it is of no use any more."""
        return self._lost or (self._connected is not None and self.connection.is_closed())

    @property
    def connection(self) -> asyncssh.SSHClientConnection:
        """The connection; only once ``ready`` has returned."""
        return self._there().connection

    @property
    def host_key(self) -> str:
        """The key that the host showed; only once ``ready`` has returned."""
        return self._there().host_key

    def _there(self) -> Connected:
        if self._connected is None:
            raise SshUnreachable(f"{self.target}: the connection is not there")
        return self._connected

    def hold(self) -> None:
        """Count one more holder."""
        self._holders += 1
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def release(self) -> None:
        """Count one holder less; the connection goes some time after the last one."""
        self._holders -= 1
        if self._holders or self._lost:
            return
        if self._attempt.done():
            self._expiry = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._expire)
        else:
            self._attempt.cancel()
            self._forget()

    async def ready(self, seconds: float) -> None:
        """Wait until the connection is there.

        Raises:
            SshError: it cannot be made, or is not there in time.
        """
        await asyncio.wait({self._attempt}, timeout=seconds)
        if not self._attempt.done():
            why = self._last or self._doing
            raise SshUnreachable(f"{self.target}: no connection within {seconds:g} s: {why}")
        if self._attempt.cancelled():
            raise SshUnreachable(f"{self.target}: the connection is closed")
        if (error := self._attempt.exception()) is not None:
            # Each opener gets an error of its own: raising one again and again would keep the frames of all of them.
            raise copy.copy(error) from error.__cause__

    def abort(self) -> None:
        """Close it at once, whoever holds it."""
        self._attempt.cancel()
        if self._connected is not None:
            self._connected.connection.abort()

    async def closed(self) -> None:
        """Wait until nothing of it is left."""
        await asyncio.wait({self._attempt})
        if self._connected is not None:
            await self._connected.connection.wait_closed()

    async def _make(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            try:
                self._connected = await self._connect()
            except SshUnreachable as error:
                if self.target.proxy_command is not None or not _was_dropped(error):
                    raise
                self._last = error
            else:
                break
            # Whoever waits for it has a deadline, and the last one that leaves ends this.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret hangs on it
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)
        log.info("connected to %s", self.target)

    async def _connect(self) -> Connected:
        target = self.target
        if target.jump is None:
            async with self._links.turn(target):
                return await self._links.connect(target, tunnel=None)
        if self._jump is None or self._jump.is_lost:
            self._leave_jump()
            self._doing = f"waiting for the jump host {target.jump}"
            self._jump = await self._links.acquire(target.jump)
            self._doing = f"it is being made, through {target.jump}"
        async with self._links.turn(target):
            way = cast("asyncssh.SSHClientConnection", Way(self._jump.connection))
            return await self._links.connect(target, tunnel=way)

    def _made(self, attempt: asyncio.Task[None]) -> None:
        error = None if attempt.cancelled() else attempt.exception()
        if isinstance(error, SshRefused):
            self._links.remember_refusal(self.target, error)
        if self._connected is None:
            self._leave_jump()
            self._forget()
            self._links.ended(self)
            return
        self._links.watch(self)
        if self._holders == 0:  # they left just when it was made
            self._expire()

    async def until_lost(self) -> None:
        """Wait for the end of the connection, and let go of what it held."""
        await self.connection.wait_closed()
        why = self._there().ended_because
        self._forget()
        self._leave_jump()
        if why is not None:
            log.info("lost the connection to %s: %s", self.target, why)
        else:
            log.info("closed the connection to %s", self.target)

    def _expire(self) -> None:
        self._expiry = None
        self._forget()
        self.connection.close()

    def _leave_jump(self) -> None:
        if self._jump is not None:
            self._jump.release()
            self._jump = None

    def _forget(self) -> None:
        self._lost = True
        self._links.forget(self)


@dataclass
class _Turn:
    """Who connects to one host at the moment."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONNECTS_PER_HOST))
    users: int = 0


@dataclass(frozen=True)
class _Refusal:
    at: float
    error: SshRefused


class Links:
    """All SSH connections of a process, by target.

    Args:
        connect: Makes one attempt to connect.
    """

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self._links: dict[SshTarget, SharedLink] = {}
        self._turns: dict[tuple[str, int, SshTarget | None], _Turn] = {}
        self._refusals: dict[SshTarget, _Refusal] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._alive: set[SharedLink] = set()

    async def acquire(self, target: SshTarget, seconds: float | None = None) -> SharedLink:
        """Return the connection to a target, which is there; to be released.

        Raises:
            SshError: there is none, and it cannot be made in time.
        """
        link = self._links.get(target)
        if link is None or link.is_lost:
            self._raise_refusal(target)
            link = SharedLink(self, target)
            self._links[target] = link
            self._alive.add(link)
        link.hold()
        try:
            await link.ready(OPEN_SECONDS if seconds is None else seconds)
        except BaseException:
            link.release()
            raise
        return link

    @asynccontextmanager
    async def turn(self, target: SshTarget) -> AsyncIterator[None]:
        """Be one of the few that connect to a host at the same time."""
        key = (target.host, target.port, target.jump)
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.free:
                yield
        finally:
            turn.users -= 1
            if turn.users == 0:
                del self._turns[key]

    def watch(self, link: SharedLink) -> None:
        """Take note of the end of a connection that is there now."""
        watch = asyncio.ensure_future(link.until_lost())
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        watch.add_done_callback(lambda _: self.ended(link))

    def forget(self, link: SharedLink) -> None:
        """Let the next one who wants the target have a new connection."""
        if self._links.get(link.target) is link:
            del self._links[link.target]

    def ended(self, link: SharedLink) -> None:
        """Take note that nothing of a connection is left."""
        self._alive.discard(link)

    def remember_refusal(self, target: SshTarget, error: SshRefused) -> None:
        """Give the same answer to all who ask for the target in the next time."""
        now = time.monotonic()
        self._refusals = {
            known: refusal for known, refusal in self._refusals.items() if now - refusal.at < REFUSAL_SECONDS
        }
        self._refusals[target] = _Refusal(now, error)

    def _raise_refusal(self, target: SshTarget) -> None:
        refusal = self._refusals.get(target)
        if refusal is not None and time.monotonic() - refusal.at < REFUSAL_SECONDS:
            raise copy.copy(refusal.error)

    async def close(self) -> None:
        """Close all connections at once, and wait until nothing of them is left."""
        links = list(self._alive)
        for link in links:
            link.abort()
        await asyncio.gather(*(link.closed() for link in links), return_exceptions=True)


def _was_dropped(error: SshUnreachable) -> bool:
    """Whether the host took the connection and closed it before the log-in: it has too many of those (MaxStartups)."""
    return isinstance(error.__cause__, (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError))
