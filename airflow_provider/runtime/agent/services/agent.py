"""Our own service: everything that a controller needs of a cluster."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from typing import TYPE_CHECKING

import grpc

from airflow_provider.runtime.agent import node
from airflow_provider.runtime.agent.guard import BadRequest, Missing, answering, streaming
from airflow_provider.runtime.agent.jobs.jobdir import FileOrder, GitOrder, Order
from airflow_provider.runtime.agent.jobs.jobs import DEFAULT_GRACE_SECONDS, Jobs
from airflow_provider.runtime.agent.jobs.placement import DEFAULT_CPUS, Demand, unsound
from airflow_provider.runtime.agent.jobs.table import ADDED, NewJob
from airflow_provider.runtime.agent.services.answers import check_owner, job_state
from airflow_provider.runtime.agent.services.follow import Following
from airflow_provider.runtime.agent.services.transfer import Transfer
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire.rpcs import PROTOCOL_VERSION, Malformed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.protobuf.message import Message

    from airflow_provider.runtime.agent.autostop.autostop import Autostop
    from airflow_provider.runtime.agent.blobs import Blobs
    from airflow_provider.runtime.agent.lease import Lease
    from airflow_provider.runtime.agent.managed.managed import ManagedJobs

    Context = grpc.aio.ServicerContext[Message, Message]

FEATURES = (
    "submit",
    "follow",
    "cancel",
    "chunks",
    "lease",
    "queue",
    "placement",
    "programs",
    "autostop",
    "managed-jobs",
    "health",
)
"""What this agent can do, for clients that are newer or older than it."""

_PAGE = 500
_LONGEST_GRACE_SECONDS = 7 * 86_400
_GIB = 1 << 30

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FILE_KINDS = {pb.Files.DIRECTORY: "directory", pb.Files.FILE: "file"}


class AgentService:
    """One method per RPC of the table in ``wire/rpcs.py``."""

    def __init__(
        self,
        *,
        jobs: Jobs,
        managed: ManagedJobs,
        blobs: Blobs,
        lease: Lease,
        autostop: Autostop,
        root: Path,
        version: str,
        instance: str,
    ) -> None:
        self._jobs = jobs
        self._managed = managed
        self._blobs = blobs
        self._lease = lease
        self._autostop = autostop
        self._root = root
        self._version = version
        self._instance = instance
        self._boot_id = node.boot_id()
        self._following = Following(jobs, lease)
        self._transfer = Transfer(blobs, lease, jobs)

    @answering
    async def handshake(self, request: pb.HandshakeRequest, context: Context) -> pb.HandshakeResponse:
        """Say who we are; the first call of every client."""
        self._lease.renew(_seconds("lease_seconds", request.lease_seconds))
        return pb.HandshakeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_version=self._version,
            features=FEATURES,
            instance=self._instance,
            boot_id=self._boot_id,
            pid=os.getpid(),
        )

    @answering
    async def submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitResponse:
        """Accept a job, once per key."""
        self._lease.renew()
        _check_submit(request)
        spec = request.job
        files = [
            FileOrder(
                archive=str(self._blobs.path(item.digest)),
                kind=_FILE_KINDS[item.kind],
                destination=item.destination,
            )
            for item in spec.files
        ]
        for item in spec.files:
            if not await asyncio.to_thread(self._blobs.complete, item.digest):
                raise Missing(f"blob {item.digest} is not here, or not all of it")
        grace = spec.grace_seconds if spec.HasField("grace_seconds") else DEFAULT_GRACE_SECONDS
        order = Order(
            marker="",
            setup=spec.setup,
            run=spec.run,
            home="",
            files=files,
            grace_seconds=grace,
            git=GitOrder(spec.git.url, spec.git.ref) if spec.HasField("git") else None,
            node_ips=tuple(spec.node_ips),
        )
        if spec.HasField("flush_seconds"):
            order = order._replace(flush_seconds=spec.flush_seconds)
        job, created = await self._jobs.submit(
            NewJob(
                key=request.key,
                name=spec.name,
                owner_id=request.owner.id,
                generation=request.owner.generation,
                grace_seconds=grace,
                username=spec.managed.user,
                resources=spec.managed.resources,
                metadata=json.dumps(dict(spec.managed.metadata)),
            ),
            demand=_demand(spec),
            order=lambda marker, home: order._replace(marker=marker, home=home),
            variables={**spec.envs, **spec.secrets},
            accepted=lambda table, row: self._managed.accepted(table, row.job_id, spec),
        )
        return pb.SubmitResponse(job_id=job.row.job_id, created=created)

    @answering
    async def status(self, request: pb.StatusRequest, context: Context) -> pb.JobState:
        """Return a job's state."""
        self._lease.renew()
        return job_state(await self._jobs.get(request.job_id))

    @answering
    async def list_jobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """Return a page of the jobs, the newest first."""
        self._lease.renew()
        limit = min(request.limit, _PAGE) if request.limit > 0 else _PAGE
        before = request.before if request.HasField("before") else None
        rows = await self._jobs.read(
            lambda table: table.page(before=before, limit=limit + 1, all_jobs=request.all, username=None)
        )
        return pb.ListJobsResponse(
            jobs=[
                pb.JobState(
                    job_id=row.job_id,
                    name=row.name,
                    status=row.status,
                    exit_codes=row.exit_codes,
                    reason=row.reason,
                    submitted_at=row.submitted_at,
                    started_at=row.started_at,
                    ended_at=row.ended_at,
                )
                for row in rows[:limit]
            ],
            more=len(rows) > limit,
        )

    @answering
    async def cancel(self, request: pb.CancelRequest, context: Context) -> pb.JobState:
        """End a job and return its state once nothing of it is left. Repeating the call is safe."""
        self._lease.renew()
        grace = (
            _seconds("grace_seconds", request.grace_seconds) if request.HasField("grace_seconds") else None
        )
        job = await self._jobs.get(request.job_id)
        check_owner(request.owner)
        await self._jobs.own(job, request.owner.id, request.owner.generation)
        await self._jobs.cancel(job, grace)
        await self._jobs.ended(job)
        return job_state(job)

    @streaming
    async def follow(
        self, requests: AsyncIterator[pb.FollowRequest], context: Context
    ) -> AsyncIterator[pb.FollowResponse]:
        """Stream a job's log and state changes; ends after the last byte and the terminal state."""
        async for response in self._following.follow(requests):
            yield response

    @answering
    async def stat_blob(self, request: pb.StatBlobRequest, context: Context) -> pb.StatBlobResponse:
        """Say whether a whole archive is here."""
        return await self._transfer.stat(request)

    @answering
    async def missing_chunks(
        self, request: pb.MissingChunksRequest, context: Context
    ) -> pb.MissingChunksResponse:
        """Say which chunks are to be sent."""
        return await self._transfer.missing(request)

    @answering
    async def put_chunks(
        self, requests: AsyncIterator[pb.PutChunksRequest | Malformed], context: Context
    ) -> pb.PutChunksResponse:
        """Receive chunks; what arrived of a broken transfer is kept."""
        return await self._transfer.receive(requests)

    @answering
    async def put_blob(self, request: pb.PutBlobRequest, context: Context) -> pb.PutBlobResponse:
        """Take an archive for complete that consists of chunks which are here."""
        return await self._transfer.put_together(request)

    @answering
    async def lease(self, request: pb.LeaseRequest, context: Context) -> pb.LeaseResponse:
        """Keep the cluster for somebody who is about to need it."""
        self._lease.hold(request.holder, request.seconds)
        return pb.LeaseResponse(left=self._lease.left())

    @answering
    async def node_health(self, request: pb.NodeHealthRequest, context: Context) -> pb.NodeHealthResponse:
        """Say how the nodes are, and what the cluster is waiting for."""
        self._lease.renew()
        capacity, shares = self._jobs.queue.node, list(self._jobs.queue.shares())
        disk = await asyncio.to_thread(os.statvfs, self._root)
        autostop = self._autostop.state()
        return pb.NodeHealthResponse(
            nodes=[
                pb.NodeHealth(
                    rank=0,
                    alive=True,
                    boot_id=self._boot_id,
                    uptime=node.uptime(),
                    cpus=capacity.cpus,
                    cpus_taken=sum(share.cpus for share in shares),
                    memory=capacity.memory,
                    memory_taken=sum(share.memory for share in shares),
                    load=os.getloadavg()[0],
                    disk_free=disk.f_bavail * disk.f_frsize,
                    devices=[
                        pb.Device(
                            index=index,
                            model=device.model,
                            taken=sum(share.devices.get(device.name, 0.0) for share in shares),
                        )
                        for index, device in enumerate(capacity.devices)
                    ],
                )
            ],
            autostop=pb.AutostopState(
                set=autostop.set,
                idle_minutes=autostop.idle_minutes,
                down=autostop.down,
                wait_for=autostop.wait_for,
                idle_seconds=autostop.idle_seconds,
                autostopping=autostop.autostopping,
            ),
            lease_left=self._lease.left(),
        )


def _demand(spec: pb.JobSpec) -> Demand:
    demand = Demand(
        cpus=spec.demand.cpus if spec.demand.HasField("cpus") else DEFAULT_CPUS,
        memory=spec.demand.memory,
        accelerators=dict(spec.demand.accelerators),
    )
    problem = unsound(demand)
    if problem:
        raise BadRequest(f"job.demand.{problem}")
    return demand


def _seconds(field: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise BadRequest(f"{field} is {value}: a number from 0 on is needed")
    return value


def _check_submit(request: pb.SubmitRequest) -> None:
    """Refuse what no process could be started with, naming the field."""
    if not request.key:
        raise BadRequest("key is empty")
    if request.key.startswith(ADDED):
        raise BadRequest(f"key begins with {ADDED!r}, which is kept for jobs of AddJob")
    if request.job.grace_seconds > _LONGEST_GRACE_SECONDS:
        raise BadRequest(f"job.grace_seconds is {request.job.grace_seconds}: a week is the most")
    check_owner(request.owner)
    _seconds("job.grace_seconds", request.job.grace_seconds)
    _seconds("job.flush_seconds", request.job.flush_seconds)
    for field, variables in (("envs", request.job.envs), ("secrets", request.job.secrets)):
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise BadRequest(f"job.{field}[{name!r}]: empty names, '=' in names and NUL are not possible")
    for item in request.job.files:
        if "\0" in item.destination or not item.destination.startswith(("/", "~/")):
            raise BadRequest(f"job.files: destination {item.destination!r} is neither absolute nor below ~/")
        if item.kind not in _FILE_KINDS:
            raise BadRequest(f"job.files: kind {item.kind} of {item.destination} is not known")
    if request.job.HasField("git"):
        _check_git(request.job.git)
    for address in request.job.node_ips:
        if not address or _UNPRINTABLE.search(address) or " " in address:
            raise BadRequest(f"job.node_ips: {address!r} is no address")


def _check_git(git: pb.GitSource) -> None:
    """Refuse what git could take for an option, or the log for several lines."""
    if not git.url:
        raise BadRequest("job.git.url is empty")
    for field, value in (("url", git.url), ("ref", git.ref)):
        if value.startswith("-"):
            raise BadRequest(f"job.git.{field} begins with '-', which would be an option of git's")
        if _UNPRINTABLE.search(value):
            raise BadRequest(f"job.git.{field} holds control characters")
