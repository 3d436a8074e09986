"""The agent process: one lock, one socket, jobs that outlive it."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from airflow_provider.runtime.agent import node
from airflow_provider.runtime.agent.autostop.autostop import Autostop, Decision
from airflow_provider.runtime.agent.autostop.ending import before_end, run_command, until_due, vanish
from airflow_provider.runtime.agent.autostop.idle import Action
from airflow_provider.runtime.agent.blobs import Blobs
from airflow_provider.runtime.agent.gate import Gate
from airflow_provider.runtime.agent.host.clusters import leave_host
from airflow_provider.runtime.agent.host.hostlease import HostLease
from airflow_provider.runtime.agent.host.keeper import HostKeeper
from airflow_provider.runtime.agent.jobs.jobs import Jobs
from airflow_provider.runtime.agent.lease import Lease
from airflow_provider.runtime.agent.managed.managed import ManagedJobs
from airflow_provider.runtime.agent.services.agent import AgentService
from airflow_provider.runtime.agent.services.autostop import AutostopService
from airflow_provider.runtime.agent.services.jobs import JobsService
from airflow_provider.runtime.agent.services.managed_jobs import ManagedJobsService
from airflow_provider.runtime.agent.services.serve import ServeService
from airflow_provider.runtime.wire import rpcs
from airflow_provider.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from airflow_provider.runtime.agent.autostop.idle import AutostopConfig

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
    # A sender's estimate of the link needs pings, which on a slow link wait behind what is sent, and time out.
    ("grpc.http2.bdp_probe", 0),
]


@dataclass(frozen=True)
class AgentConfig:
    """How an agent is set up.

    Attributes:
        root: The agent's directory, which must exist: ``agent/`` (socket, job table, log), ``jobs/``, ``blobs/``.
        instance: Identity of the cluster, made anew with each cluster.
        lease_seconds: Seconds that the cluster lives without hearing from a controller.
        disposable: The root is removed when the cluster goes down.
        private_homes: Each job has a home directory of its own in the root. Otherwise jobs live in the user's.
        host_lease: Where the records of the host's lease are, which the agent keeps; the cluster ends where somebody
            else has the host. None: nobody leases the host.
        chunks: Where pieces of files are kept, for other clusters of the account too; None: below the root.
        autostop: The setting of autostop where none was ever stored; None: no autostop until it is set.
        stop_command: Bash command that stops the machine; it runs when the agent has ended its work.
        down_command: Bash command that takes the machine away for good; it runs at the end of the lease too.
    """

    root: Path
    instance: str
    lease_seconds: float
    disposable: bool
    private_homes: bool = False
    host_lease: Path | None = None
    chunks: Path | None = None
    autostop: AutostopConfig | None = None
    stop_command: str | None = None
    down_command: str | None = None


class AgentRuns(Exception):
    """Another live agent serves this root."""


async def serve(config: AgentConfig, ready: Callable[[], None]) -> None:
    """Run the agent until SIGTERM, or until the cluster ends by its lease or by autostop.

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
    gate = Gate()
    lease = Lease(config.lease_seconds)
    autostop = Autostop(
        directory=directory,
        boot_id=node.boot_id(),
        live=lambda: len(jobs.live()) + jobs.arriving,
        held=lease.held_seconds,
        gate=gate,
        initial=config.autostop,
    )
    lease.on_hold(autostop.wake)
    jobs = Jobs(
        root=config.root,
        cluster=str(config.root),
        private_home=config.private_homes,
        capacity=node.load(directory),
        on_change=autostop.activity,
        refusing=lambda: gate.closed,
    )
    await autostop.load()
    await jobs.load()
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((gate, *_services(config, jobs, lease, autostop)))
    before = os.umask(0o177)
    server.add_insecure_port(f"unix:{SOCKET_NAME}")
    os.umask(before)
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    keeper = _keep_host(config, lease, gate, stop)
    log.info("agent %s (pid %s) serves %s", VERSION, os.getpid(), config.root)
    ready()
    decision = await until_due(stop, lease, autostop, gate)
    ends = decision is not None and await before_end(
        decision, stop=stop, autostop=autostop, directory=directory / "hooks", cancel_jobs=jobs.cancel_all
    )
    if keeper.lost:
        log.error("%s: ending all jobs", keeper.lost)
        await jobs.cancel_all()
        decision, ends = Decision(Action.DOWN, keeper.lost), True
    await server.stop(grace=1.0)
    await jobs.close()
    await keeper.close()
    if decision is not None and ends:
        await _leave(config, decision, autostop)
    os.close(lock)


def _keep_host(config: AgentConfig, lease: Lease, gate: Gate, stop: asyncio.Event) -> HostKeeper:
    def end(why: str) -> None:
        gate.close(why)
        stop.set()  # nothing else is worth waiting for, hooks neither

    return HostKeeper(
        None if config.host_lease is None else HostLease(config.host_lease),
        root=config.root,
        instance=config.instance,
        seconds=lambda: lease.seconds,
        on_lost=end,
    )


def _services(
    config: AgentConfig, jobs: Jobs, lease: Lease, autostop: Autostop
) -> list[grpc.GenericRpcHandler[Message, Message]]:
    managed = ManagedJobs(jobs)
    agent = AgentService(
        jobs=jobs,
        managed=managed,
        blobs=Blobs(config.root / "blobs", config.chunks or config.root / "chunks"),
        lease=lease,
        autostop=autostop,
        root=config.root,
        version=VERSION,
        instance=config.instance,
    )
    return [
        rpcs.handlers(rpcs.AGENT_RPCS, agent),
        rpcs.handlers(rpcs.JOBS_RPCS, JobsService(jobs=jobs, managed=managed, lease=lease, root=config.root)),
        rpcs.handlers(rpcs.MANAGED_JOBS_RPCS, ManagedJobsService(managed, jobs, lease)),
        rpcs.handlers(rpcs.AUTOSTOP_RPCS, AutostopService(autostop=autostop)),
        rpcs.handlers(rpcs.SERVE_RPCS, ServeService()),
    ]


async def _leave(config: AgentConfig, decision: Decision, autostop: Autostop) -> None:
    """Do what is left when nothing runs any more: the machine's command, the directory's end."""
    down = decision.action is Action.DOWN
    command = config.down_command if down else config.stop_command
    if command is not None:
        if not await run_command(command):
            log.error("the machine is still there; an agent that is started again tries again")
            return
    elif not (down and config.disposable):
        log.warning("%s: the agent ends; it was given no command to end its machine", decision.why)
    if down and config.disposable:
        if config.host_lease is None:
            await asyncio.to_thread(vanish, config.root)
        else:
            await asyncio.to_thread(leave_host, config.root, config.instance, HostLease(config.host_lease))
    else:
        await autostop.finished()


def answers() -> bool:
    """Return whether an agent takes connections in the current directory."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(SOCKET_NAME) == 0


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
