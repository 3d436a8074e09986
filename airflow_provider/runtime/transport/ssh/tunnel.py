"""Tunnels: unix sockets on this machine that lead to unix sockets on a host. On the SSH thread.

There is no port on either side. A tunnel's near end lies in a directory that only this account can enter; its far end
is the socket of an agent, which the host's sshd connects to, or a command there that does, where forwarding is off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket as sockets
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from airflow_provider.runtime.transport.ssh.errors import SshError, SshUnreachable
from airflow_provider.runtime.transport.ssh.private import PrivateDirectory
from airflow_provider.runtime.transport.ssh.splice import FarEnd, ForwardedEnd, NearEnd, RelayEnd
from airflow_provider.runtime.transport.ssh.waiting import open_channel, within

if TYPE_CHECKING:
    from airflow_provider.runtime.transport.ssh.shared import Links, SharedLink
    from airflow_provider.runtime.transport.ssh.target import SshTarget

log = logging.getLogger(__name__)

_LONGEST_SOCKET = 107
"""Bytes of a path that the kernel takes for a unix socket."""

_FAR_SECONDS = 10.0
"""For a connection to get from its near end to the socket on the host, the making of an SSH connection excepted."""

_PAUSE_SECONDS = 0.3

_BACKLOG = 128


class Tunnel:
    """A listening socket here whose connections lead to one socket on a host. ``Tunnels`` makes and counts them.

    It outlives the SSH connections below it: a connection to the near end gets the one that there is, or a new one. If
    there cannot be one within the target's time, or the host's socket does not answer, it is closed.

    Attributes:
        relay: Shell command that connects its standard input and output to the socket.
        holders: How many hold it.
    """

    def __init__(self, links: Links, target: SshTarget, socket: str, *, directory: Path, name: str) -> None:
        self.relay = ""
        self.holders = 0
        self.directory = directory
        self.name = name
        self._links = links
        self._target = target
        self._socket = socket
        self._link: SharedLink | None = None
        self._server: asyncio.AbstractServer | None = None
        self._beginning = asyncio.Lock()
        self._served: dict[NearEnd, asyncio.Task[None]] = {}

    @property
    def path(self) -> Path:
        """The near end."""
        return self.directory / self.name

    async def listen(self, short: str) -> None:
        """Begin to take connections; ``short`` is a short path of the near end. Once more does nothing.

        Raises:
            OSError: the socket cannot be made.
        """
        async with self._beginning:
            if self._server is not None:
                return
            listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
            try:
                listener.bind(short)
                self.path.chmod(0o600)
                # Begins only once it is known here, so that being cancelled meanwhile leaves nothing behind.
                self._server = await asyncio.get_running_loop().create_unix_server(
                    lambda: NearEnd(self._accept, self._leave),
                    sock=listener,
                    backlog=_BACKLOG,
                    start_serving=False,
                )
            except BaseException:
                listener.close()
                raise
            await self._server.start_serving()

    async def ready(self) -> None:
        """Wait until there is an SSH connection below it, which is then held.

        Raises:
            SshError: there is none, and it cannot be made in time.
        """
        if self._link is not None and not self._link.is_lost:
            return
        self._hold(await self._links.acquire(self._target))

    def _hold(self, link: SharedLink) -> None:
        before, self._link = self._link, link
        if before is not None:
            before.release()
        if self._server is None or not self.holders:  # closed meanwhile
            self._let_go()

    def _let_go(self) -> None:
        if self._link is not None:
            self._link.release()
            self._link = None

    def close(self) -> None:
        """Close it with all its connections, and let go of the SSH connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.path.unlink(missing_ok=True)
        for near in list(self._served):
            near.close(abruptly=True)
        self._let_go()

    # Its connections.

    def _accept(self, near: NearEnd) -> None:
        self._served[near] = asyncio.ensure_future(self._serve(near))

    def _leave(self, near: NearEnd) -> None:
        self._served.pop(near).cancel()

    async def _serve(self, near: NearEnd) -> None:
        """Hold an SSH connection until a connection to the near end is gone, which cancels this."""
        try:
            link = await self._links.acquire(self._target, self._target.connect_timeout)
            try:
                if link is not self._link:
                    link.hold()
                    self._hold(link)
                near.join(await within(_FAR_SECONDS, self._reach(link), discard=FarEnd.abort))
                await asyncio.get_running_loop().create_future()
            finally:
                link.release()
        except (SshError, asyncssh.Error, TimeoutError) as error:
            log.debug("%s: %s is not reached: %s", self._target, self._socket, error)
        finally:
            near.close(abruptly=True)

    async def _reach(self, link: SharedLink) -> FarEnd:
        if link.forwards is not False and len(os.fsencode(self._socket)) <= _LONGEST_SOCKET:
            far = ForwardedEnd()
            try:
                await open_channel(link.connection.create_unix_connection(lambda: far, self._socket))
            except asyncssh.ChannelOpenError:
                # Forbidden and absent look the same; a relay tells them apart.
                if link.forwards:
                    raise
            else:
                link.forwards = True
                return far
        return await self._relay(link)

    async def _relay(self, link: SharedLink) -> RelayEnd:
        marker = f"relay-{os.urandom(8).hex()}"

        def connected() -> None:
            if link.forwards is None and len(os.fsencode(self._socket)) <= _LONGEST_SOCKET:
                link.forwards = False
                log.info("%s forwards to no unix sockets; a relay on the host does", self._target)

        # An echo of its own line is what every shell can do.
        command = f"echo {marker}; {self.relay}"
        far = RelayEnd(marker.encode(), connected)
        while True:
            try:
                await open_channel(link.connection.create_session(lambda: far, command, encoding=None))
                break
            except asyncssh.ChannelOpenError as error:
                await asyncio.sleep(0)
                if link.is_lost or error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                    raise
            # MaxSessions: commands use the connection too, and end some time.
            await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - no secret hangs on it
        try:
            await asyncio.wait({far.begun})
        except asyncio.CancelledError:
            far.abort()
            raise
        if far.begun.result():
            return far
        said = far.said.decode(errors="replace").strip()
        raise SshUnreachable(f"the relay on {self._target} did not begin: {said}")


class Tunnels:
    """All tunnels of a process, by target and the host's socket.

    Args:
        links: The SSH connections.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._tunnels: dict[tuple[SshTarget, str], Tunnel] = {}
        self._directory: PrivateDirectory | None = None
        self._names = count(1)

    async def acquire(self, target: SshTarget, socket: str, relay: str) -> Tunnel:
        """Return a tunnel that listens and has an SSH connection below it; to be released.

        Args:
            target: The host.
            socket: Absolute path of the socket there.
            relay: Shell command that connects its standard input and output to that.

        Raises:
            SshError: there is no SSH connection, and it cannot be made.
            OSError: the near end cannot be made.
        """
        directory = self._where()
        tunnel = self._tunnels.get((target, socket))
        if tunnel is None or not tunnel.path.exists():
            name = f"{next(self._names)}.sock"
            tunnel = Tunnel(self._links, target, socket, directory=directory.path, name=name)
            self._tunnels[target, socket] = tunnel
        tunnel.relay = relay
        tunnel.holders += 1
        try:
            await tunnel.listen(directory.short(tunnel.name))
            await tunnel.ready()
        except BaseException:
            self.release(tunnel)
            raise
        return tunnel

    def _where(self) -> PrivateDirectory:
        if self._directory is None or not self._directory.path.is_dir():
            # The first time, or somebody has tidied up the directory for temporary files.
            self._directory = PrivateDirectory()
        return self._directory

    def release(self, tunnel: Tunnel) -> None:
        """Count one holder less; the tunnel goes with the last one."""
        tunnel.holders -= 1
        if tunnel.holders:
            return
        self._tunnels = {key: known for key, known in self._tunnels.items() if known is not tunnel}
        tunnel.close()

    async def close(self) -> None:
        """Close all tunnels, and remove their near ends."""
        for tunnel in self._tunnels.values():
            tunnel.close()
        self._tunnels = {}
        if self._directory is not None:
            self._directory.remove()
            self._directory = None
