"""gRPC channels to a TCP port, such as the near end of a tunnel to a skylet."""

from __future__ import annotations

import grpc.aio

# No keepalive pings: a server with gRPC's defaults, as a skylet is, closes connections whose client pings more than
# once in five minutes without sending data ("too many pings"), and the log of a quiet job with them. Whether the far
# end lives is asked by calls with deadlines.
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
]


class TcpChannel:
    """A channel to ``port`` of ``host``, without encryption: the port is on this machine, a tunnel does the rest."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self.channel = grpc.aio.insecure_channel(f"{host}:{port}", options=_OPTIONS)

    async def close(self) -> None:
        """Close the channel. Idempotent."""
        await self.channel.close(grace=None)
