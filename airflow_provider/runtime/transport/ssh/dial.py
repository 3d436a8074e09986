"""Network connections to where an sshd listens."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import TYPE_CHECKING

from airflow_provider.runtime.transport.ssh.errors import SshUnreachable

if TYPE_CHECKING:
    from airflow_provider.runtime.transport.ssh.target import SshTarget


async def dial(target: SshTarget) -> socket.socket:
    """Connect to the first address of a host that answers; each gets its share of the time that is left.

    Raises:
        SshUnreachable: the name is not known, or no address answers; with the reason of each.
    """
    deadline = time.monotonic() + target.connect_timeout
    found = await _addresses(target)
    reasons = []
    for index, (family, kind, protocol, _, address) in enumerate(found):
        share = (deadline - time.monotonic()) / (len(found) - index)
        try:
            return await _connect(socket.socket(family, kind, protocol), address, share, target.silence_limit)
        except asyncio.TimeoutError:
            reasons.append(f"{address[0]}: no answer within {share:.3g} s")
        except OSError as error:
            reasons.append(f"{address[0]}: {os.strerror(error.errno) if error.errno else error}")
    raise SshUnreachable(f"{target}: cannot connect to port {target.port} of {'; '.join(reasons)}")


async def _addresses(target: SshTarget) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    try:
        # An address needs no resolver, and none of the few threads that may all be waiting for one.
        return [
            *socket.getaddrinfo(
                target.host, target.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        ]
    except (OSError, UnicodeError):
        pass  # it is a name
    loop = asyncio.get_running_loop()
    try:
        return [*await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SshUnreachable(f"{target}: the name {target.host!r} is not known: {reason}") from error


async def _connect(
    sock: socket.socket, address: tuple[object, ...], within: float, silence_limit: float
) -> socket.socket:
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Without it a connection whose peer has vanished lives for a quarter of an hour while there is something to
        # send. It bounds the connecting too.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(silence_limit * 1000)))
        connecting = asyncio.ensure_future(asyncio.get_running_loop().sock_connect(sock, address))
        try:
            # Not wait_for(): before Python 3.12 it forgets that it was cancelled if the result comes at that moment.
            await asyncio.wait([connecting], timeout=within)
        finally:
            if not connecting.done():
                connecting.cancel()
                await asyncio.wait([connecting])
        if connecting.cancelled():
            raise asyncio.TimeoutError
        connecting.result()
    except BaseException:
        sock.close()
        raise
    return sock
