"""Following a job that prints nothing, for minutes."""

from __future__ import annotations

import asyncio
import time

import grpc.aio

from airflow_provider.runtime.client import FollowStream, JobState, LinkLost
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from benchmarks.agent.ours import OWNER, Ours
from benchmarks.agent.peer import Peer
from benchmarks.report import Figure
from benchmarks.report import Peer as PeerValue

_PINGING = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.use_local_subchannel_pool", 1),
)
"""As SkyPilot's client sets up its channels; the last, as each call of its comes from a process of its own."""


async def follow(ours: Ours, peer: Peer, seconds: float) -> list[Figure]:
    """Follow for so long, again after each cut."""
    job_id = await ours.submit("sleep 10000")
    theirs_id = await peer.submit("sleep 10000")
    await peer.running(theirs_id)
    socket = f"unix:{ours.directory / 'agent' / 'agent.sock'}"
    mine, tail, theirs = await asyncio.gather(
        _follow_cuts(ours, job_id, seconds),
        _tail_cuts(socket, job_id, seconds),
        _tail_cuts(f"127.0.0.1:{peer.port}", theirs_id, seconds),
    )
    await ours.cancel(job_id)
    await peer.cancel(theirs_id)
    what = f"cuts in {seconds:.0f} s of a quiet log"
    return [
        Figure(f"{what}, Follow", mine, 0, "cuts", "our client; peer: as SkyPilot's", PeerValue(theirs)),
        Figure(
            f"{what}, TailLogs", tail, 0, "cuts", "a client that pings as SkyPilot's does", PeerValue(theirs)
        ),
    ]


async def _follow_cuts(ours: Ours, job_id: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    cuts = 0
    while time.monotonic() < end:
        stream = await ours.client.follow(job_id, OWNER, offset=0)

        async def read(stream: FollowStream = stream) -> None:
            async for message in stream:
                if isinstance(message, JobState) and message.status.terminal:
                    raise RuntimeError(f"the quiet job ended: {message}")

        try:
            await asyncio.wait_for(read(), end - time.monotonic())
        except asyncio.TimeoutError:
            return cuts
        except LinkLost:
            cuts += 1
        finally:
            await stream.close()
    return cuts


async def _tail_cuts(target: str, job_id: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    cuts = 0
    while (left := end - time.monotonic()) > 0:
        # A channel of its own for each call, as SkyPilot's client does it: an old one would ping ever less often.
        async with grpc.aio.insecure_channel(target, options=_PINGING) as channel:
            try:
                await asyncio.wait_for(_tail(channel, job_id), left)
            except asyncio.TimeoutError:
                return cuts
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                cuts += 1
    return cuts


async def _tail(channel: grpc.aio.Channel, job_id: int) -> None:
    async for message in rpcs.TAIL_LOGS.download(channel)(pb.TailLogsRequest(job_id=job_id, follow=True)):
        if message.exit_code:
            raise RuntimeError(f"the quiet job ended with {message.exit_code}")
