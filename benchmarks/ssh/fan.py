"""Two hundred tasks on one head at once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from airflow_provider.runtime.client import JobStatus
from airflow_provider.runtime.infra.base import ClusterHandle
from airflow_provider.runtime.infra.ssh.infra import SshInfra
from benchmarks.report import Figure
from benchmarks.ssh import ours, peer
from benchmarks.ssh.bench import Bench, Way, logins
from tests.hosts.host import Host

_TASKS = 200
_PATIENCE = 120.0
_LIMITS = {"MaxStartups": "10:30:100", "MaxSessions": "10"}


class _Run(NamedTuple):
    succeeded: int
    logins: int
    seconds: float
    failures: frozenset[str]
    unfinished: int


async def at_once(bench: Bench) -> list[Figure]:
    """Submit and follow tasks to their ends, all at the same time, from one process."""
    async with bench.hosts(2, **_LIMITS) as (host, other):
        mine = await _ours(bench, host)
        theirs = await _peer(bench.way(other), other)
    if mine.succeeded < _TASKS:
        print(f"not at an end: {mine.unfinished}; failed: {sorted(mine.failures)[:5]}", file=sys.stderr)
    how = (
        f"echo, submitted and followed to the end by a client each; "
        f"sshd has {', '.join(f'{name} {value}' for name, value in _LIMITS.items())}; peer: {_TASKS} threads run execute"
    )
    cut = f", {theirs.unfinished} not at an end after {_PATIENCE:g} s" if theirs.unfinished else ""
    what = f"{_TASKS} tasks on one head at once"
    return [
        Figure(
            f"{what}, succeeded",
            mine.succeeded,
            _TASKS,
            "tasks",
            f"{how}{cut}",
            peer.peer(theirs.succeeded),
            more_is_better=True,
        ),
        Figure(
            f"{what}, SSH connections",
            mine.logins,
            1,
            "logins",
            "that sshd accepted",
            peer.peer(theirs.logins),
        ),
        Figure(
            f"{what}, all at an end",
            mine.seconds,
            None,
            "s",
            "first submit to last end, on the cores that the host shares",
            peer.peer(theirs.seconds, unfinished=bool(theirs.unfinished)),
        ),
    ]


async def _ours(bench: Bench, host: Host) -> _Run:
    infra = bench.infra(host)
    handle = await ours.provision(infra, "head")
    found = await _all([_task(infra, handle, number) for number in range(_TASKS)])
    await infra.tear_down("head", handle)
    return found._replace(logins=logins(host))


async def _task(infra: SshInfra, handle: ClusterHandle, number: int) -> str:
    """Run a task with a connection of its own, as each trigger does; return why it failed, nothing if it did not."""
    client = await infra.connect(handle)
    try:
        lines = ours.Lines()
        state = await ours.follow(client, await ours.submit(client, f"echo {number}"), lines)
        if state.status is not JobStatus.SUCCEEDED:
            return f"{state.status.value}: {state.reason}"
        return "" if lines.texts == [str(number)] else f"its log holds {lines.texts}"
    finally:
        await client.close()


async def _peer(way: Way, host: Host) -> _Run:
    with ThreadPoolExecutor(_TASKS) as workers:
        tasks = [_peer_task(workers, way, number) for number in range(_TASKS)]
        found = await _all(tasks)
    return found._replace(logins=logins(host))


async def _peer_task(workers: ThreadPoolExecutor, way: Way, number: int) -> str:
    loop = asyncio.get_running_loop()
    trigger = await loop.run_in_executor(workers, partial(peer.submit, way, f"echo {number}"))
    async for event in peer.events(trigger):
        return "" if event["status"] == "success" else str(event["message"])
    return "its trigger told nothing"


async def _all(tasks: Iterable[Awaitable[str]]) -> _Run:
    begin = time.monotonic()
    running = [asyncio.ensure_future(task) for task in tasks]
    done, unfinished = await asyncio.wait(running, timeout=_PATIENCE)
    seconds = time.monotonic() - begin
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
    reasons = [_reason(task) for task in done]
    failures = [reason for reason in reasons if reason]
    return _Run(len(reasons) - len(failures), 0, seconds, frozenset(failures), len(unfinished))


def _reason(task: asyncio.Future[str]) -> str:
    error = task.exception()
    return task.result() if error is None else f"{type(error).__name__}: {error}"
