"""StatBlob, MissingChunks, PutChunks, PutBlob: archives that controllers send to this node."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.background import Background
from airflow_provider.runtime.agent.blobs import BadBlob, Blobs
from airflow_provider.runtime.agent.guard import BadRequest
from airflow_provider.runtime.agent.waiting import within
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire.rpcs import Malformed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory
    from airflow_provider.runtime.agent.jobs.jobs import Jobs
    from airflow_provider.runtime.agent.lease import Lease

_DRAIN_SECONDS = 1.0


class Transfer:
    """Receives archives in chunks.

    Args:
        blobs: Where they are kept.
        lease: Renewed by all that arrives.
        jobs: Those that may still be to unpack some of them.
    """

    def __init__(self, blobs: Blobs, lease: Lease, jobs: Jobs) -> None:
        self._blobs = blobs
        self._lease = lease
        self._jobs = jobs
        self._background = Background()
        self._collect_again = False
        self._collecting: asyncio.Task[None] | None = None

    async def stat(self, request: pb.StatBlobRequest) -> pb.StatBlobResponse:
        """Say whether a whole archive is here."""
        self._lease.renew()
        if self._collecting is None:
            self._collect()  # what others, or an earlier agent, left: before more comes
        return pb.StatBlobResponse(complete=await asyncio.to_thread(self._blobs.complete, request.digest))

    async def missing(self, request: pb.MissingChunksRequest) -> pb.MissingChunksResponse:
        """Say which chunks are to be sent."""
        self._lease.renew()
        return pb.MissingChunksResponse(digests=await asyncio.to_thread(self._blobs.missing, request.digests))

    async def receive(self, requests: AsyncIterator[pb.PutChunksRequest | Malformed]) -> pb.PutChunksResponse:
        """Receive chunks; what arrived of a broken transfer is kept."""
        received = 0
        try:
            async for request in requests:
                self._lease.renew()
                if isinstance(request, Malformed):
                    raise BadRequest(request.reason)
                received += await asyncio.to_thread(self._blobs.add, request.data)
        except (BadRequest, BadBlob, OSError):
            await _drain(requests)
            raise
        return pb.PutChunksResponse(received=received)

    async def put_together(self, request: pb.PutBlobRequest) -> pb.PutBlobResponse:
        """Take an archive for complete.

        Raises:
            ChunksMissing: it is not.
        """
        self._lease.renew()
        await asyncio.to_thread(self._blobs.put_together, request.digest, request.size, list(request.chunks))
        self._collect()
        return pb.PutBlobResponse()

    def _collect(self) -> None:
        """Remove what is too much, now or after what is being removed."""
        self._collect_again = True
        if self._collecting is None or self._collecting.done():
            self._collecting = self._background.spawn(self._collect_all())

    async def _collect_all(self) -> None:
        while self._collect_again:
            self._collect_again = False
            directories = [job.directory for job in self._jobs.live()]
            needed = await asyncio.to_thread(_needed, directories)
            await asyncio.to_thread(self._blobs.collect, needed)


def _needed(jobs: list[JobDirectory]) -> set[str]:
    """Return the digests of the archives that these jobs are to unpack."""
    needed: set[str] = set()
    for job in jobs:
        # One that is just being accepted has no order yet; its archives were asked for a moment ago.
        with suppress(OSError, ValueError, TypeError, KeyError):
            needed.update(Path(file.archive).name for file in job.order().files)
    return needed


async def _drain(requests: AsyncIterator[pb.PutChunksRequest | Malformed]) -> None:
    """Read on for a while: a client that is told of an error in the middle of a write does not get the reason."""

    async def read() -> None:
        async for _ in requests:
            pass

    with suppress(asyncio.TimeoutError):
        await within(_DRAIN_SECONDS, read())
