"""gRPC channels to an agent's unix socket."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COMMON = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # Whether to try again is the controller's decision, made on evidence; hidden attempts would only delay it.
    ("grpc.enable_retries", 0),
    # A proxy of the environment knows nothing of sockets on this machine.
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)

LOCAL = (
    *_COMMON,
    # Notice a dead peer within about three seconds; grpcio ignores keepalive_timeout_ms here and takes the ping's.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
)
"""Options of a channel to an agent on this machine."""

TUNNELLED = (
    *_COMMON,
    # SSH watches the link, and whoever follows a job hears from its agent all the time; pings of hundreds of channels
    # would cost more than they tell.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Every message would set off a ping that measures the bandwidth, and a slow link delays it until it times out.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
)
"""Options of a channel to the near end of a tunnel."""


class UnixChannel:
    """A channel to the socket ``name`` in ``directory``, reached through a descriptor of the directory.

    Socket paths are limited to 107 bytes and directories of users are not: ``/proc/self/fd`` is a short name for any.
    """

    def __init__(self, directory: Path, name: str, *, options: Sequence[tuple[str, int]] = LOCAL) -> None:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._close_handle = weakref.finalize(self, os.close, handle)
        self.channel = grpc.aio.insecure_channel(f"unix:/proc/self/fd/{handle}/{name}", options=options)

    async def close(self) -> None:
        """Close the channel and the descriptor. Idempotent."""
        await self.channel.close(grace=None)
        self._close_handle()
