"""How soon it shows that a host has lost its power and says nothing more."""

from __future__ import annotations

import asyncio
import logging
import time

from airflow_provider.runtime.client import LinkLost, LogBytes
from benchmarks.report import Figure, Peer
from benchmarks.ssh import ours, peer
from benchmarks.ssh.bench import Bench
from tests.hosts.host import Host

_PATIENCE = 60.0
_QUICK_SILENCE = 2.7
_COMMAND = "echo ready; sleep 1000"


async def noticed(bench: Bench) -> list[Figure]:
    """Switch hosts off while a quiet job is followed."""
    async with bench.hosts(3) as (plain, quick, theirs):
        seconds, quick_seconds, beside = await asyncio.gather(
            _ours(bench, plain), _ours(bench, quick, silence_limit=_QUICK_SILENCE), _peer(bench, theirs)
        )
    how = "the cable pulled and the power cut while a quiet job is followed, to the stream's end in an error"
    peer_how = f"peer: its defaults, to its trigger's first warning, ended after {_PATIENCE:g} s"
    return [
        Figure("silent power-off noticed", seconds, 10, "s", f"{how}; {peer_how}", beside),
        Figure(
            "silent power-off noticed when asked",
            quick_seconds,
            3,
            "s",
            f"the same with silence_limit {_QUICK_SILENCE:g}; the peer has no such setting",
            beside,
        ),
    ]


async def _ours(bench: Bench, host: Host, *, silence_limit: float | None = None) -> float:
    infra = bench.infra(host) if silence_limit is None else bench.infra(host, silence_limit=silence_limit)
    client = await infra.connect(await ours.provision(infra, "silence"))
    try:
        stream = await client.follow(await ours.submit(client, _COMMAND), ours.OWNER, offset=0)
        messages = aiter(stream)
        try:
            while not isinstance(await anext(messages), LogBytes):
                pass
            begin = time.monotonic()
            cutting = asyncio.create_task(asyncio.to_thread(host.silent_power_off))
            try:
                async for _ in messages:  # heartbeats that were under way
                    pass
            except LinkLost:
                return time.monotonic() - begin
            finally:
                await cutting
        finally:
            await stream.close()
    finally:
        await client.close()
    raise RuntimeError("the stream of a host without power ended in peace")


async def _peer(bench: Bench, host: Host) -> Peer:
    trigger = await asyncio.to_thread(peer.submit, bench.way(host), _COMMAND)
    async with peer.watched(trigger) as next_record:
        await next_record()
        begin = time.time()
        await asyncio.to_thread(host.silent_power_off)
        try:
            record = await asyncio.wait_for(next_record(), _PATIENCE)
        except asyncio.TimeoutError:
            return peer.peer(_PATIENCE, unfinished=True)
    if record.levelno < logging.WARNING:
        raise RuntimeError(f"the peer's trigger said: {record.getMessage()}")
    return peer.peer(record.created - begin)
