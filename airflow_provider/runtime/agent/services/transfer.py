"""PutBlob and StatBlob: archives that controllers send to this node."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from airflow_provider.runtime.agent.blobs import BadBlob, Blobs, BrokenBlob
from airflow_provider.runtime.agent.guard import BadRequest
from airflow_provider.runtime.agent.waiting import within
from airflow_provider.runtime.wire import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_provider.runtime.agent.lease import Lease

_DRAIN_SECONDS = 1.0


class Transfer:
    """Receives blobs."""

    def __init__(self, blobs: Blobs, lease: Lease) -> None:
        self._blobs = blobs
        self._lease = lease
        self._receiving: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def stat(self, request: pb.StatBlobRequest) -> pb.StatBlobResponse:
        """Say how much of a blob is here."""
        self._lease.renew()
        received = await asyncio.to_thread(self._blobs.received, request.digest)
        return pb.StatBlobResponse(received=received.bytes, complete=received.complete)

    async def receive(self, requests: AsyncIterator[pb.PutBlobRequest]) -> pb.PutBlobResponse:
        """Receive a blob from the given offset on; what arrived of a broken transfer is kept."""
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("start"):
            raise BadRequest("a blob begins with `start`")
        start = first.start
        try:
            self._blobs.path(start.digest)
            # One sender at a time: what a second one brings is the same bytes.
            async with self._receiving.setdefault(start.digest, asyncio.Lock()):
                if (await asyncio.to_thread(self._blobs.received, start.digest)).complete:
                    async for _ in requests:
                        self._lease.renew()
                    return pb.PutBlobResponse(received=start.size)
                size = await asyncio.to_thread(self._blobs.append, start.digest, start.offset, b"")
                async for request in requests:
                    self._lease.renew()
                    size = await asyncio.to_thread(self._blobs.append, start.digest, size, request.data)
                    if size > start.size:
                        raise BadBlob(f"blob {start.digest} has more than the {start.size} bytes announced")
                if size == start.size:
                    await asyncio.to_thread(self._blobs.finish, start.digest)
        except (BadBlob, BrokenBlob, OSError):
            await _drain(requests)
            raise
        return pb.PutBlobResponse(received=size)


async def _drain(requests: AsyncIterator[pb.PutBlobRequest]) -> None:
    """Read on for a while: a client that is told of an error in the middle of a write does not get the reason."""

    async def read() -> None:
        async for _ in requests:
            pass

    with suppress(asyncio.TimeoutError):
        await within(_DRAIN_SECONDS, read())
