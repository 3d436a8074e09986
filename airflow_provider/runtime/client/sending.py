"""Sending an archive to an agent: in chunks, and only those that its node does not have."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import grpc
import grpc.aio

from airflow_provider.runtime.agent.waiting import within
from airflow_provider.runtime.blocking import outlast, run_slowly
from airflow_provider.runtime.client.base import AgentFailed, FileProgress, LinkLost, RequestRefused
from airflow_provider.runtime.client.calls import LOST_STATUS, translated
from airflow_provider.runtime.files.chunks import cut
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    _Call = grpc.aio.StreamUnaryCall[pb.PutChunksRequest, pb.PutChunksResponse]

_BATCH_BYTES = 12 << 20
_BATCH_CHUNKS = 256
"""What is asked about in one call. Two batches are held at a time: one is cut and hashed while the other is sent."""
_PASSES = 3
"""How often the archive is read at most: chunks that are there may be removed before all the others have arrived."""

_ANSWER_SECONDS = 60.0
"""Deadline of an answer. Not that of other calls: on a slow link, chunks are on their way before it."""
_SLOWEST_BYTES = 64 << 10
"""Bytes in a second that a link must carry."""


class _Chunk(NamedTuple):
    digest: bytes
    data: bytes


class _Batch(NamedTuple):
    """Chunks that follow each other; of those that the node has, only the digest and the size are left."""

    digests: list[bytes]
    size: int
    missing: list[bytes]
    """The data of those to send."""


class Sending:
    """Sends one archive; see `ClusterClient.send_files`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        digest: str,
        size: int,
        read: Callable[[], BinaryIO],
        progress: Callable[[FileProgress], None],
    ) -> None:
        self._channel = channel
        self._digest = digest
        self._size = size
        self._read = read
        self._progress = progress
        self._dealt = 0
        self._sent = 0
        self._asked: set[bytes] = set()
        """Chunks that are on their way: the same one may occur many times in an archive."""

    async def run(self) -> None:
        """Send it.

        Raises:
            RequestRefused: what is read is not the archive of that digest and size.
            ClientError: it failed.
        """
        with translated("send files"):
            if not await self._complete():
                for left in reversed(range(_PASSES)):
                    digests = await self._one_pass()
                    if await self._put_together(digests, last=not left):
                        break
        self._progress(FileProgress(self._size, self._sent, self._size))

    async def _complete(self) -> bool:
        request = pb.StatBlobRequest(digest=self._digest)
        return (await rpcs.STAT_BLOB.unary(self._channel)(request, timeout=_ANSWER_SECONDS)).complete

    async def _put_together(self, digests: list[bytes], *, last: bool) -> bool:
        """Say what the archive consists of; return False when some of it is missing after all."""
        request = pb.PutBlobRequest(digest=self._digest, size=self._size, chunks=digests)
        try:
            await rpcs.PUT_BLOB.unary(self._channel)(request, timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            if last:
                raise AgentFailed(f"send files: chunks vanish on the node: {error.details()}") from error
            return False
        return True

    async def _one_pass(self) -> list[bytes]:
        """Read the archive once and send what the node does not have; return the digests of all its chunks."""
        self._dealt = 0
        self._asked.clear()
        file = await run_slowly(self._read)
        try:
            return await self._upload(_Cutter(file, self._digest, self._size))
        finally:
            await run_slowly(file.close)

    async def _upload(self, cutter: _Cutter) -> list[bytes]:
        call = rpcs.PUT_CHUNKS.upload(self._channel)(None)
        digests: list[bytes] = []
        coming = asyncio.create_task(self._next_batch(cutter))
        try:
            with suppress(asyncio.InvalidStateError):  # the agent said its last word already, read below
                while batch := await coming:
                    coming = asyncio.create_task(self._next_batch(cutter))
                    digests += batch.digests
                    await self._send(call, batch)
                await call.done_writing()
            await within(_ANSWER_SECONDS + _seconds(_BATCH_BYTES), call)
        except grpc.aio.AioRpcError as error:
            if error.details() == LOST_STATUS:
                raise AgentFailed("send files: the agent broke it off; its log says why") from error
            raise
        except asyncio.TimeoutError:
            raise LinkLost("send files: the agent takes nothing any more") from None
        finally:
            call.cancel()
            coming.cancel()
            await outlast(coming)
        return digests

    async def _send(self, call: _Call, batch: _Batch) -> None:
        there = batch.size - sum(map(len, batch.missing))
        if there:
            self._tell(there, 0)
        while batch.missing:
            data = batch.missing.pop(0)
            # Each chunk has a deadline, not the whole: how long that takes depends on its size.
            await within(_seconds(len(data)), call.write(pb.PutChunksRequest(data=data)))
            self._tell(len(data), len(data))

    async def _next_batch(self, cutter: _Cutter) -> _Batch | None:
        """Return the next chunks and which of them are to be sent; None: that was all."""
        chunks = await run_slowly(cutter.batch)
        if not chunks:
            return None
        new = {chunk.digest: chunk.data for chunk in chunks if chunk.digest not in self._asked}
        self._asked |= new.keys()
        request = pb.MissingChunksRequest(digests=list(new))
        answer = await rpcs.MISSING_CHUNKS.unary(self._channel)(request, timeout=_ANSWER_SECONDS)
        return _Batch(
            digests=[chunk.digest for chunk in chunks],
            size=sum(len(chunk.data) for chunk in chunks),
            missing=[new[digest] for digest in answer.digests if digest in new],
        )

    def _tell(self, dealt: int, sent: int) -> None:
        self._dealt += dealt
        self._sent += sent
        self._progress(FileProgress(self._dealt, self._sent, self._size))


class _Cutter:
    """Cuts an archive and checks that it is the right one. Blocking."""

    def __init__(self, file: BinaryIO, digest: str, size: int) -> None:
        self._chunks: Iterator[bytes] = cut(file)
        self._digest = digest
        self._size = size
        self._hash = hashlib.sha256()
        self._seen = 0

    def batch(self) -> list[_Chunk]:
        """Return the next chunks, none when the archive is at its end.

        Raises:
            RequestRefused: it is not the archive of that digest and size.
        """
        batch: list[_Chunk] = []
        size = 0
        while size < _BATCH_BYTES and len(batch) < _BATCH_CHUNKS:
            data = next(self._chunks, None)
            if data is None:
                self._check()
                break
            self._hash.update(data)
            self._seen += len(data)
            size += len(data)
            batch.append(_Chunk(hashlib.sha256(data).digest(), data))
        return batch

    def _check(self) -> None:
        if self._seen != self._size:
            raise self._wrong(f"has {self._seen} bytes, {self._size} were announced")
        if self._hash.hexdigest() != self._digest:
            raise self._wrong(f"has SHA-256 {self._hash.hexdigest()}")

    def _wrong(self, what: str) -> RequestRefused:
        return RequestRefused(
            f"send files: archive {self._digest} {what}, as it is read from the blob store. Remove it there and clear "
            "the task, which packs the files again"
        )


def _seconds(size: int) -> float:
    return _ANSWER_SECONDS + size / _SLOWEST_BYTES
