"""The two ends of a tunnelled connection, and the bytes between them."""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, cast

import asyncssh

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.transport.ssh.waiting import Channel

_EARLY_LIMIT = 256 * 1024
"""Bytes of the near end that are kept before there is a far end; then it is not read any more."""

_FLUSH_SECONDS = 5.0
"""How long the far side may take to read what was sent before the near end was closed."""

_NOISE_LIMIT = 256 * 1024
"""Bytes that a login shell may write before a relay begins."""


class NearEnd(asyncio.Protocol):
    """A connection that somebody on this machine has made to a tunnel.

    Args:
        accepted: Called when it is there.
        closed: Called when it is gone.
    """

    def __init__(self, accepted: Callable[[NearEnd], None], closed: Callable[[NearEnd], None]) -> None:
        self._accepted = accepted
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()
        self._ended = False
        self._far: FarEnd | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nobody is there any more."""
        return self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def join(self, far: FarEnd) -> None:
        """Pass on all that comes, and that has come, to the far end; and the other way round."""
        if self._transport is None or self._transport.is_closing():
            far.close(abruptly=True)
            return
        self._far = far
        early, self._early = bytes(self._early), bytearray()
        if early:
            far.write(early)
        if self._ended:
            far.write_eof()
        far.join(self)
        self.resume_reading()

    # What the far end asks for.

    def write(self, data: bytes) -> None:
        """Hand over what came from the far end."""
        if self._transport is not None:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Tell that nothing more comes from the far end."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def close(self, *, abruptly: bool) -> None:
        """Close it, abruptly or once everything is handed over."""
        if self._transport is None:
            return
        if abruptly:
            self._transport.abort()
        else:
            self._transport.close()

    def pause_reading(self) -> None:
        """Take nothing more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._transport is not None:
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._accepted(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._far is not None:
            self._far.write(data)
            return
        self._early += data
        if len(self._early) > _EARLY_LIMIT:
            self.pause_reading()

    def eof_received(self) -> bool:
        """See asyncio."""
        self._ended = True
        if self._has_hung_up():
            return False
        if self._far is not None:
            self._far.write_eof()
        return True

    def _has_hung_up(self) -> bool:
        """Whether the other side has closed its socket, and not only said that it writes no more."""
        if self._transport is None:
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def pause_writing(self) -> None:
        """See asyncio."""
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        if self._far is not None:
            self._far.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._transport = None
        if self._far is not None:
            self._far.close(abruptly=exc is not None)
            self._far = None
        self._closed(self)


class FarEnd:
    """A channel of an SSH connection that leads to a socket on the host. Paused until it is joined to a near end.

    Attributes:
        heard: Whether anything came from the far side.
    """

    def __init__(self) -> None:
        self.heard = False
        self._near: NearEnd | None = None
        self._channel: Channel | None = None
        self._full = False
        self._lost: tuple[Exception | None] | None = None

    def join(self, near: NearEnd) -> None:
        """Pass on all that comes to a near end."""
        self._near = near
        if self._lost is not None:
            near.close(abruptly=self._lost[0] is not None)
            return
        if self._full:
            near.pause_reading()
        self.resume_reading()

    # What the near end asks for.

    def write(self, data: bytes) -> None:
        """Send what came from the near end."""
        try:
            if self._channel is not None:
                self._channel.write(data)
        except BrokenPipeError:  # it is closing, which the near end is told too
            self.close(abruptly=True)

    def write_eof(self) -> None:
        """Tell that nothing more comes from the near end."""
        if self._channel is not None:
            self._channel.write_eof()

    def pause_reading(self) -> None:
        """Take nothing more for now: the host is held back once the channel's window is full."""
        if self._channel is not None:
            self._channel.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._channel is not None:
            self._channel.resume_reading()

    def close(self, *, abruptly: bool) -> None:
        """Close the channel, abruptly or once everything is sent, which may take a few seconds."""
        self._near = None
        channel = self._channel
        if channel is None or self._lost is not None:
            return
        if abruptly:
            self.abort()
        else:
            channel.close()
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.abort)

    def abort(self) -> None:
        """Close the channel at once."""
        if self._channel is not None and self._lost is None:
            self._channel.abort()

    # Called by asyncssh.

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.pause_reading()

    def eof_received(self) -> bool:
        """See asyncssh."""
        if self._near is not None:
            self._near.write_eof()
        return True

    def pause_writing(self) -> None:
        """See asyncssh."""
        self._full = True
        if self._near is not None:
            self._near.pause_reading()

    def resume_writing(self) -> None:
        """See asyncssh."""
        self._full = False
        if self._near is not None:
            self._near.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncssh."""
        self._lost = (exc,)
        if self._near is not None:
            self._near.close(abruptly=exc is not None)
            self._near = None


class ForwardedEnd(FarEnd, asyncssh.SSHUNIXSession[bytes]):
    """A socket on the host that its sshd connects to."""

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        """See asyncssh."""
        self._opened(chan)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """See asyncssh."""
        self.heard = True
        if self._near is not None:
            self._near.write(data)


class RelayEnd(FarEnd, asyncssh.SSHClientSession[bytes]):
    """A socket on the host that a command connects its standard input and output to.

    Args:
        marker: What the command writes, on a line of its own, before anything of the socket. What comes before that is
            from the files that a login shell reads.
        connected: Called when the socket has said something.

    Attributes:
        begun: Done when the command begins to relay; False: it ended before that.
        said: The end of what the command wrote to its standard error.
    """

    def __init__(self, marker: bytes, connected: Callable[[], None]) -> None:
        super().__init__()
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.said = bytearray()
        self._marker = marker + b"\n"
        self._connected = connected
        self._noise = bytearray()
        self._rest = b""

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """See asyncssh."""
        self._channel = chan

    def join(self, near: NearEnd) -> None:
        """Pass on all that comes, and that has come, to a near end."""
        if self._rest:
            near.write(self._rest)
            self._rest = b""
        super().join(near)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """See asyncssh."""
        if datatype is not None:
            self.said += data
            del self.said[:-500]
        elif self.begun.done():
            self._hear(data)
        else:
            self._search(data)

    def _search(self, data: bytes) -> None:
        self._noise += data
        place = self._noise.find(self._marker)
        if place < 0:
            if len(self._noise) > _NOISE_LIMIT:
                self._begin(False)
                self.abort()
            return
        rest = bytes(self._noise[place + len(self._marker) :])
        self._noise.clear()
        # Until there is somebody to hear it; the window of the channel bounds what has come already.
        self.pause_reading()
        self._begin(True)
        if rest:
            self._hear(rest)

    def _hear(self, data: bytes) -> None:
        if not self.heard:
            self.heard = True
            self._connected()
        if self._near is not None:
            self._near.write(data)
        else:
            self._rest += data

    def abort(self) -> None:
        """Close the channel at once, and end the command."""
        if isinstance(self._channel, asyncssh.SSHClientChannel) and self._lost is None:
            self._channel.terminate()
        super().abort()

    def _begin(self, begun: bool) -> None:
        if not self.begun.done():
            self.begun.set_result(begun)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncssh."""
        self._begin(False)
        super().connection_lost(exc)
