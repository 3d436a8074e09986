"""Hundreds of clusters followed by one process, in which nothing else happens."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import psutil

from airflow_provider.runtime.infra.ssh.packages import install
from airflow_provider.runtime.infra.ssh.pool import DEFAULT_BASE
from airflow_provider.runtime.transport.ssh.links import open_link
from benchmarks.report import Figure
from benchmarks.ssh import ours, peer
from benchmarks.ssh.bench import Bench, connection, connection_id, target
from benchmarks.ssh.followers import Agents
from benchmarks.ssh.pollers import Jobs
from tests.hosts.host import Host

_HOSTS = 30
_AGENTS = 10
"""On each host."""
_SECONDS = 60.0
_SETTLE_SECONDS = 5.0
_START_SECONDS = 300.0
_AT_ONCE = 2
_SSH_PORT = 22

# The agent goes into the background when it serves, and only then does its command end.
_START = """
set -e
umask 077
for number in $(seq {count}); do
  mkdir -p "$HOME/crowd/$number/agent"
  PYTHONPATH={runtime} {python} -m airflow_provider.runtime.agent \\
    --root "$HOME/crowd/$number" --instance "$number" --lease 3600
done
"""
_PEER_JOBS = """
for number in $(seq {count}); do
  mkdir -p {folder}/$number
  echo quiet > {folder}/$number/stdout.log
done
"""
_PEER_FOLDER = "airflow-ssh-jobs"


class _Found(NamedTuple):
    """What a process takes that follows; megabytes and percent of a core."""

    memory: float
    growth: float
    cpu: float
    threads: int
    connections: int


async def follow(bench: Bench) -> list[Figure]:
    """Have processes follow quiet jobs, first ours and then the peer's."""
    count = _HOSTS * _AGENTS
    async with bench.hosts(_HOSTS) as hosts:
        agents = await _start_agents(bench, hosts)
        mine = await _measured("benchmarks.ssh.followers", agents, {})
        await asyncio.gather(*(asyncio.to_thread(host.reboot) for host in hosts))  # the agents are in the way
        jobs, connections = await _make_jobs(bench, hosts)
        theirs = await _measured("benchmarks.ssh.pollers", jobs, connections)
    what = f"{count} followed clusters"
    how = f"{_HOSTS} hosts with {_AGENTS} agents each, a quiet job each; a process that only follows"
    return [
        Figure(
            f"{what}, memory",
            mine.memory,
            350,
            "MB",
            f"RSS; {how}: {mine.threads} threads (peer: {theirs.threads}); the peer's whole process, with all of "
            f"Airflow in it",
            peer.peer(theirs.memory),
        ),
        Figure(
            f"{what}, memory of each",
            mine.growth / count,
            None,
            "MB",
            "RSS beyond what the process has after its imports",
            peer.peer(theirs.growth / count),
        ),
        Figure(
            f"{what}, CPU",
            mine.cpu,
            10,
            "% of a core",
            f"over {_SECONDS:g} s; the peer polls every 5 s",
            peer.peer(theirs.cpu),
        ),
        Figure(
            f"{what}, SSH connections",
            mine.connections,
            _HOSTS,
            "connections",
            "one for each host",
            peer.peer(theirs.connections),
        ),
    ]


async def _start_agents(bench: Bench, hosts: list[Host]) -> list[Agents]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def on(host: Host) -> Agents:
        async with room:
            return await _start_on(bench, host)

    return await asyncio.gather(*(on(host) for host in hosts))


async def _start_on(bench: Bench, host: Host) -> Agents:
    way = bench.way(host)
    link = await open_link(target(way))
    try:
        installed = await install(
            link,
            host=host.name,
            base=DEFAULT_BASE,
            python="python3",
            wheelhouse=str(bench.wheelhouse),
            say=ours.quiet,
        )
    finally:
        await link.close()
    script = _START.format(count=_AGENTS, runtime=installed.runtime_dir, python=installed.python)
    await _run(host, script)
    sockets = [f"/home/{host.user}/crowd/{number}/agent/agent.sock" for number in range(1, _AGENTS + 1)]
    return Agents(way=way, sockets=sockets)


async def _make_jobs(bench: Bench, hosts: list[Host]) -> tuple[list[Jobs], Mapping[str, str]]:
    """Make what the peer's jobs that run look like on the hosts; return them, and the hosts' Airflow connections."""
    found: list[Jobs] = []
    variables: dict[str, str] = {}
    for host in hosts:
        await _run(host, _PEER_JOBS.format(count=_AGENTS, folder=_PEER_FOLDER))
        way = bench.way(host)
        variables |= connection(way)
        folders = [f"{_PEER_FOLDER}/{number}" for number in range(1, _AGENTS + 1)]
        found.append(Jobs(connection_id=connection_id(way), folders=folders))
    return found, variables


async def _run(host: Host, script: str) -> None:
    done = await asyncio.to_thread(host.run, script, user=host.user, timeout=_START_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{host}: {done.stderr}")


async def _measured(module: str, order: list[Agents] | list[Jobs], variables: Mapping[str, str]) -> _Found:
    """Have a process of its own follow everything in ``order``, and look at what it takes."""
    async with _process(module, variables) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await _hear(process.stdout, b"imported\n")
        seen = psutil.Process(process.pid)
        before = seen.memory_info().rss
        process.stdin.write(json.dumps(order).encode() + b"\n")
        await _hear(process.stdout, b"ready\n")
        await asyncio.sleep(_SETTLE_SECONDS)
        begin = sum(seen.cpu_times()[:2])
        await asyncio.sleep(_SECONDS)
        cpu = (sum(seen.cpu_times()[:2]) - begin) / _SECONDS * 100
        memory = seen.memory_info().rss
        connected = [one for one in seen.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
        connections = [one for one in connected if one.raddr.port == _SSH_PORT]
        found = _Found(memory / 1e6, (memory - before) / 1e6, cpu, seen.num_threads(), len(connections))
        process.stdin.close()
        if await process.wait() != 0:
            raise RuntimeError(f"{module} failed")
        return found


async def _hear(output: asyncio.StreamReader, word: bytes) -> None:
    said = await asyncio.wait_for(output.readline(), _START_SECONDS)
    if said != word:
        raise RuntimeError(f"{word!r} was to be said, not {said!r}")


@asynccontextmanager
async def _process(module: str, variables: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
