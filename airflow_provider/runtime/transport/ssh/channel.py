"""gRPC channels through tunnels: one for each event loop and tunnel, shared by all who use it there."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider.runtime.transport.channel import TUNNELLED, UnixChannel
from airflow_provider.runtime.transport.ssh.process import SshSide, ssh_side

if TYPE_CHECKING:
    from airflow_provider.runtime.transport.ssh.target import SshTarget
    from airflow_provider.runtime.transport.ssh.tunnel import Tunnel


class TunnelChannel:
    """A channel to an agent on a host, through the one SSH connection that this process has to it; from ``open``.

    It belongs to the event loop in which it was opened. One that is forgotten is let go of when it is collected.

    Attributes:
        channel: The gRPC channel.
    """

    def __init__(self, shared: _LoopChannel) -> None:
        self.channel = shared.unix.channel
        self._shared: _LoopChannel | None = shared
        shared.holders += 1

    @classmethod
    async def open(cls, target: SshTarget, *, socket: str, relay: str) -> TunnelChannel:
        """Return a channel to a socket on a host.

        It outlives the SSH connection below: calls are UNAVAILABLE while the host cannot be reached.

        Args:
            target: The host.
            socket: Absolute path of the agent's socket there.
            relay: Shell command, for any login shell, that connects its standard input and output to the socket; used
                where forwarding is refused and for paths that are too long for that.

        Raises:
            SshError: there is no SSH connection to the host, and it cannot be made.
            OSError: the near end of the tunnel cannot be made.
        """
        side = ssh_side()
        tunnel = await side.thread.call(
            partial(side.tunnels.acquire, target, socket, relay), discard=side.tunnels.release
        )
        return cls(_shared(side, tunnel))

    async def close(self) -> None:
        """Let go of the channel, which is closed with its last user. Idempotent."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.holders -= 1
        if shared.holders == 0:
            await shared.close()


class _LoopChannel:
    """The channel of one event loop through one tunnel; has a share in the tunnel."""

    def __init__(self, side: SshSide, tunnel: Tunnel) -> None:
        self.holders = 0
        self.unix = UnixChannel(tunnel.directory, tunnel.name, options=TUNNELLED)
        self._tunnel = tunnel
        self._letting_go = weakref.finalize(self, side.thread.post, partial(side.tunnels.release, tunnel))
        self._letting_go.atexit = False

    async def close(self) -> None:
        _of_this_loop().pop(self._tunnel, None)
        try:
            await self.unix.close()
        finally:
            self._letting_go()


_channels: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Tunnel, _LoopChannel]
] = weakref.WeakKeyDictionary()


def _of_this_loop() -> weakref.WeakValueDictionary[Tunnel, _LoopChannel]:
    return _channels.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())


def _shared(side: SshSide, tunnel: Tunnel) -> _LoopChannel:
    """Return this loop's channel through a tunnel, of which the caller has a share: that goes into the channel."""
    known = _of_this_loop()
    shared = known.get(tunnel)
    if shared is not None:
        side.thread.post(partial(side.tunnels.release, tunnel))
        return shared
    try:
        shared = _LoopChannel(side, tunnel)
    except BaseException:
        side.thread.post(partial(side.tunnels.release, tunnel))
        raise
    known[tunnel] = shared
    return shared
