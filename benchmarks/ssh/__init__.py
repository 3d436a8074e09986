"""Clusters on SSH hosts of this machine, and Airflow's SSHRemoteJobOperator on the same hosts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.report import Figure
from tests.hosts.lab import Lab
from tests.hosts.machine import unavailable

if TYPE_CHECKING:
    from benchmarks.ssh.bench import Bench


def measure() -> list[Figure]:
    """Measure all but the crowd."""
    return _on_hosts(_measure)


def measure_crowd() -> list[Figure]:
    """Follow 300 clusters at once."""
    return _on_hosts(_measure_crowd)


async def _measure(bench: Bench) -> list[Figure]:
    # Airflow, which the peer brings along, may be imported only now that its home is set.
    from benchmarks.ssh import calls, fan, logs, silence, start

    # First of all: the first runtime that is sent is also packed then.
    figures = await start.cold(bench)
    figures += await start.warm(bench)
    figures += await calls.latencies(bench)
    figures += await logs.throughput(bench)
    figures += await fan.at_once(bench)
    # Last: what is switched off then is not needed any more.
    return figures + await silence.noticed(bench)


async def _measure_crowd(bench: Bench) -> list[Figure]:
    from benchmarks.ssh import crowd

    return await crowd.follow(bench)


def _on_hosts(measuring: Callable[[Bench], Awaitable[list[Figure]]]) -> list[Figure]:
    if reason := unavailable():
        print(f"left out: {reason}", file=sys.stderr)
        return []

    async def run() -> list[Figure]:
        from benchmarks.ssh.bench import Bench
        from benchmarks.ssh.wheelhouse import make

        with TemporaryDirectory() as folder, Lab() as lab, _airflow(Path(folder) / "airflow"):
            return await measuring(Bench(lab, make(Path(folder) / "wheelhouse")))

    return asyncio.run(run())


@contextmanager
def _airflow(home: Path) -> Iterator[None]:
    """Have Airflow keep its files there and be quiet: its log lines would stand between the figures.

    What is added to the environment meanwhile, the hosts' Airflow connections, is gone afterwards.
    """
    before = dict(os.environ)
    os.environ.update({"AIRFLOW_HOME": str(home), "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL"})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
