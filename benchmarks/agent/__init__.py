"""Our agent on this machine, and SkyPilot's beside it: what both are asked for, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow_provider.runtime.infra.local import LocalInfra
from benchmarks.agent import followers, logs, queueing, quiet, start
from benchmarks.agent.ours import Ours, cluster
from benchmarks.agent.peer import Peer, skylet
from benchmarks.report import Figure

_QUIET_SECONDS = 160.0
"""A quiet log of the peer's is cut after two minutes, sometimes a ping later."""
_LONG_QUIET_SECONDS = 600.0


async def measure() -> list[Figure]:
    """Measure all but the long silence."""
    async with _both() as (infra, ours, peer):
        # Costs nobody anything, and takes its time.
        silence = asyncio.create_task(quiet.follow(ours, peer, _QUIET_SECONDS))
        try:
            # First of all: what the peer does by itself every 300 s must not come between.
            death = asyncio.create_task(queueing.peer_after_death(peer))
            figures = await start.agent_start(infra)
            dead = await death
            figures += await start.short_jobs(ours, peer)
            figures += await followers.idle_memory(ours, peer)
            figures += await queueing.after_death(ours, dead)
            figures += await queueing.many_jobs(ours, peer)
            figures += await logs.delays(ours, peer)
            figures += await logs.throughput(ours, peer)
            silent = await silence
        finally:
            silence.cancel()
        figures += await followers.beside_followers(ours, peer)
        return figures + silent


async def measure_quiet() -> list[Figure]:
    """Follow a quiet log for ten minutes."""
    async with _both() as (_, ours, peer):
        return await quiet.follow(ours, peer, _LONG_QUIET_SECONDS)


@asynccontextmanager
async def _both() -> AsyncIterator[tuple[LocalInfra, Ours, Peer]]:
    with TemporaryDirectory() as folder:
        infra = LocalInfra(Path(folder))
        async with skylet() as peer, cluster(infra, "warm") as ours:
            yield infra, ours, peer
