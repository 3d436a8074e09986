"""The agent process: one lock, one socket, jobs that outlive it."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from airflow_provider.runtime.agent.blobs import Blobs
from airflow_provider.runtime.agent.jobs import Jobs
from airflow_provider.runtime.agent.lease import Lease
from airflow_provider.runtime.agent.service import AgentService
from airflow_provider.runtime.agent.trees import remove_tree
from airflow_provider.runtime.wire.rpcs import handlers
from airflow_provider.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

SOCKET_NAME = "agent.sock"

_OPTIONS = [
    # Clients ping every few seconds; with default options the server answers that with GOAWAY too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A client that is stopped or cut off must not hold the lease, or a blob's lock, for ever.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]


@dataclass(frozen=True)
class AgentConfig:
    """How an agent is set up.

    Attributes:
        root: The agent's directory, which must exist: ``agent/`` (socket, job table, log), ``jobs/``, ``blobs/``.
        instance: Identity of the cluster, made anew with each cluster.
        lease_seconds: Seconds that the cluster lives without hearing from a controller.
        disposable: The root is the whole cluster: each job has a home directory of its own in it, and the root is
            removed when the lease ends. Otherwise jobs live in the user's home directory.
    """

    root: Path
    instance: str
    lease_seconds: float
    disposable: bool


class AgentRuns(Exception):
    """Another live agent serves this root."""


async def serve(config: AgentConfig, ready: Callable[[], None]) -> None:
    """Run the agent until SIGTERM or the end of its lease.

    Args:
        config: How it is set up.
        ready: Called once the socket accepts calls.

    Raises:
        AgentRuns: another agent has the lock of this root.
    """
    directory = config.root / "agent"
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    # A relative socket path: absolute ones may be longer than the 107 bytes that the kernel takes.
    os.chdir(directory)
    lock = _lock(directory / "agent.lock")
    jobs = Jobs(root=config.root, cluster=str(config.root), private_home=config.disposable)
    await jobs.load()
    lease = Lease(config.lease_seconds)
    server = grpc.aio.server(options=_OPTIONS)
    service = AgentService(
        jobs=jobs,
        blobs=Blobs(config.root / "blobs"),
        lease=lease,
        version=VERSION,
        instance=config.instance,
        boot_id=boot_id(),
    )
    server.add_generic_rpc_handlers((handlers(service),))
    before = os.umask(0o177)
    server.add_insecure_port(f"unix:{SOCKET_NAME}")
    os.umask(before)
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    log.info("agent %s (pid %s) serves %s", VERSION, os.getpid(), config.root)
    ready()
    expired = await _first(stop, lease)
    if expired:
        log.warning("no controller was heard for %s s: ending all jobs", lease.seconds)
        await jobs.cancel_all()
    await server.stop(grace=1.0)
    await jobs.close()
    if expired and config.disposable:
        await asyncio.to_thread(_vanish, config.root)
    os.close(lock)


def _vanish(root: Path) -> None:
    # Away from its name first: nobody shall take what is left for a cluster.
    remains = root.with_name(f".removed-{root.name}-{secrets.token_hex(16)}")
    with suppress(FileNotFoundError):  # somebody removes it already
        root.rename(remains)
        remove_tree(remains)


def boot_id() -> str:
    """Return the identity of this boot of the machine; nothing that ran survives its change."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def answers() -> bool:
    """Return whether an agent takes connections in the current directory."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(SOCKET_NAME) == 0


async def _first(stop: asyncio.Event, lease: Lease) -> bool:
    """Wait for the stop signal or the lease; True when it was the lease."""
    stopped = asyncio.create_task(stop.wait())
    expired = asyncio.create_task(lease.expired())
    done, pending = await asyncio.wait({stopped, expired}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return stopped not in done


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise AgentRuns(f"another agent serves {path.parent.parent}") from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle
