"""Sending archives: in chunks, only those that are missing, checked, and stored nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import os
import random
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from airflow_provider.runtime.agent.blobs import Blobs
from airflow_provider.runtime.client import AgentFailed, FileTree, JobStatus, LinkLost, RequestRefused
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.client.base import FileProgress
from airflow_provider.runtime.files.chunks import cut
from airflow_provider.runtime.transport.channel import TUNNELLED, UnixChannel
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.clusters import Cluster, eventually

pytestmark = pytest.mark.own_cluster

KIB = 1 << 10
MIB = 1 << 20


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def archive(**files: bytes) -> bytes:
    """Return a tar file with these files, large enough to have chunks of their own or not."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Sent:
    """What was told while an archive was sent."""

    steps: list[FileProgress] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return self.steps[-1].sent


async def send(
    cluster: Cluster, data: bytes, *, digest: str = "", read: Callable[[], io.BytesIO] | None = None
) -> Sent:
    sent = Sent()
    await cluster.client.send_files(
        digest or digest_of(data), len(data), read or (lambda: io.BytesIO(data)), sent.steps.append
    )
    return sent


def blobs(cluster: Cluster) -> Blobs:
    return Blobs(cluster.directory / "blobs", cluster.directory / "chunks")


def stored(cluster: Cluster, data: bytes) -> bool:
    """Return whether the archive can be read from the node's disk."""
    with blobs(cluster).open(digest_of(data)) as file:
        return file.read() == data


def chunk_files(cluster: Cluster) -> list[Path]:
    return sorted(path for path in cluster.directory.glob("chunks/??/*") if len(path.name) == 64)


async def put_chunks(cluster: Cluster, chunks: Sequence[bytes]) -> int:
    requests = [pb.PutChunksRequest(data=chunk) for chunk in chunks]
    return (await rpcs.PUT_CHUNKS.upload(cluster.client._channel)(iter(requests), timeout=10)).received


async def put_blob(cluster: Cluster, digest: str, size: int, chunks: Sequence[bytes]) -> None:
    request = pb.PutBlobRequest(digest=digest, size=size, chunks=chunks)
    await rpcs.PUT_BLOB.unary(cluster.client._channel)(request, timeout=10)


@asynccontextmanager
async def slow_link(far: Path, near: Path, *, rate: float) -> AsyncIterator[None]:
    """Carry what is written to a socket to another one, ``rate`` bytes in a second, with 4 MiB on the way at most."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float) -> None:
        try:
            while piece := await reader.read(16 * KIB):
                await asyncio.sleep(len(piece) / rate)
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass  # one end closed it
        finally:
            writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(far)
        await asyncio.gather(carry(reader, there[1], rate), carry(there[0], writer, math.inf))

    async with await asyncio.start_unix_server(join, near, limit=2 * MIB):
        yield


async def refused(call: object) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]  # any awaitable
    code = caught.value.code()
    assert isinstance(code, grpc.StatusCode)
    return code


async def test_an_archive_arrives_and_is_sent_only_once(cluster: Cluster) -> None:
    data = archive(small=b"x", large=noise(1, 9 * MIB), other=noise(2, 900 * KIB))
    first, second = await send(cluster, data), await send(cluster, data)
    assert stored(cluster, data)
    size = len(data)
    assert first.steps[-1] == FileProgress(size, size, size)
    assert second.steps == [FileProgress(size, 0, size)]


async def test_progress_grows_with_each_chunk(cluster: Cluster) -> None:
    data = archive(large=noise(1, 30 * MIB))
    steps = (await send(cluster, data)).steps
    assert [step.read for step in steps] == [*sorted({step.read for step in steps[:-1]}), len(data)]
    assert [step.read for step in steps[:3]] == [4 * MIB, 8 * MIB, 12 * MIB]


async def test_only_what_changed_is_sent(cluster: Cluster) -> None:
    files = {f"file{n}": noise(n, 700 * KIB) for n in range(10)}
    await send(cluster, archive(**files))
    changed = archive(**{**files, "file5": b"shorter", "file77": b"new"})
    assert (await send(cluster, changed)).bytes < 10 * KIB
    assert stored(cluster, changed)


async def test_what_occurs_many_times_in_an_archive_is_sent_once(cluster: Cluster) -> None:
    data = archive(zeros=bytes(40 * MIB))
    assert (await send(cluster, data)).bytes < 10 * MIB
    assert stored(cluster, data)


async def test_a_broken_transfer_goes_on_where_it_broke(cluster: Cluster) -> None:
    data = archive(large=noise(3, 40 * MIB))
    arrived = list(cut(io.BytesIO(data)))[:5]
    assert await put_chunks(cluster, arrived) == 20 * MIB
    await cluster.kill_agent()
    await cluster.restart_agent()
    assert (await send(cluster, data)).bytes == len(data) - 20 * MIB
    assert stored(cluster, data)


async def test_an_archive_that_cannot_be_read_to_its_end_says_why(cluster: Cluster) -> None:
    data = archive(large=noise(3, 40 * MIB))

    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 30 * MIB:
                raise OSError("the blob store went away")
            return super().read(size)

    with pytest.raises(OSError, match="went away"):
        await send(cluster, data, read=lambda: Breaking(data))
    await send(cluster, data)
    assert stored(cluster, data)


async def test_an_agent_that_is_killed_meanwhile_is_a_lost_link(cluster: Cluster) -> None:
    data = archive(large=noise(4, 60 * MIB))
    killing: list[asyncio.Task[None]] = []

    def kill(done: FileProgress) -> None:
        if not killing and chunk_files(cluster):
            killing.append(asyncio.create_task(cluster.kill_agent()))

    with pytest.raises((LinkLost, AgentFailed)):
        await cluster.client.send_files(digest_of(data), len(data), lambda: io.BytesIO(data), kill)
    await killing[0]
    assert all(digest_of(file.read_bytes()) == file.name for file in chunk_files(cluster))
    await cluster.restart_agent()
    assert (await send(cluster, data)).bytes < len(data)
    assert stored(cluster, data)


async def test_a_cancelled_transfer_leaves_nothing_running(cluster: Cluster) -> None:
    data = archive(large=noise(5, 60 * MIB))
    opened: list[io.BytesIO] = []

    def read() -> io.BytesIO:
        opened.append(io.BytesIO(data))
        return opened[-1]

    sending = asyncio.create_task(send(cluster, data, read=read))
    await eventually(lambda: chunk_files(cluster), "the first chunk")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert [file.closed for file in opened] == [True]
    assert len(asyncio.all_tasks()) == 1


async def test_chunks_that_vanish_before_the_end_are_sent_again(cluster: Cluster) -> None:
    data = archive(large=noise(6, 30 * MIB))
    opened = 0

    class Vanishing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if opened == 1 and self.tell() > 28 * MIB:
                for file in chunk_files(cluster)[:2]:
                    file.unlink()
            return super().read(size)

    def read() -> io.BytesIO:
        nonlocal opened
        opened += 1
        return Vanishing(data)

    sent = await send(cluster, data, read=read)
    assert opened == 2
    assert sent.bytes > len(data)
    assert sent.steps[-1].read == len(data)
    assert stored(cluster, data)


async def test_chunks_that_always_vanish_are_an_error_in_the_end(cluster: Cluster) -> None:
    data = archive(large=noise(7, 30 * MIB))
    opened = 0

    class Vanishing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 28 * MIB:
                for file in chunk_files(cluster)[:1]:
                    file.unlink()
            return super().read(size)

    def read() -> io.BytesIO:
        nonlocal opened
        opened += 1
        return Vanishing(data)

    with pytest.raises(AgentFailed, match="vanish"):
        await send(cluster, data, read=read)
    assert opened == 3


async def test_a_chunk_that_a_power_cut_left_without_its_bytes_is_sent_again(cluster: Cluster) -> None:
    data = archive(large=noise(8, 9 * MIB))
    await send(cluster, data)
    empty, short, *_ = chunk_files(cluster)
    os.truncate(empty, 0)
    os.truncate(short, 1000)
    assert (await send(cluster, data)).bytes > MIB
    assert stored(cluster, data)


async def test_wrong_bytes_are_refused_and_never_taken_for_the_archive(cluster: Cluster) -> None:
    digest = digest_of(b"right")
    with pytest.raises(RequestRefused, match=r"SHA-256.*blob store"):
        await send(cluster, b"wrong", digest=digest)
    assert not (cluster.directory / "blobs").exists()
    await send(cluster, b"right")


@pytest.mark.parametrize("read", [b"rig", b"righty"])
async def test_an_archive_of_another_size_than_announced_is_refused(cluster: Cluster, read: bytes) -> None:
    with pytest.raises(RequestRefused, match=f"{len(read)} bytes, 5 were announced"):
        await cluster.client.send_files(digest_of(read), 5, lambda: io.BytesIO(read))


async def test_a_list_whose_sizes_do_not_fit_is_refused(cluster: Cluster) -> None:
    await put_chunks(cluster, [b"abc"])
    chunk = hashlib.sha256(b"abc").digest()
    assert await refused(put_blob(cluster, "a" * 64, 4, [chunk])) is grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(put_blob(cluster, "a" * 64, 3, [b"abc"])) is grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(put_blob(cluster, "a" * 64, 3, [chunk[::-1]])) is grpc.StatusCode.NOT_FOUND
    assert not (cluster.directory / "blobs").exists()


async def test_bad_chunks_are_refused_and_the_good_ones_before_them_kept(cluster: Cluster) -> None:
    for bad in (b"", bytes(17 * MIB)):
        assert await refused(put_chunks(cluster, [b"good", bad])) is grpc.StatusCode.INVALID_ARGUMENT
    assert [file.read_bytes() for file in chunk_files(cluster)] == [b"good"]


@pytest.mark.parametrize(
    "digest", ["", "../../x", "a" * 63, "A" * 64, "a" * 64 + "/x", "/etc/passwd", "a" * 64 + "\n"]
)
async def test_names_that_are_no_digests_are_refused(cluster: Cluster, digest: str) -> None:
    with pytest.raises(RequestRefused, match="SHA-256"):
        await cluster.client.send_files(digest, 1, lambda: io.BytesIO(b"x"))
    assert await refused(put_blob(cluster, digest, 0, [])) is grpc.StatusCode.INVALID_ARGUMENT
    assert not (cluster.directory / "blobs").exists()


async def test_several_senders_of_the_same_archive_do_not_disturb_each_other(cluster: Cluster) -> None:
    data = archive(large=noise(9, 20 * MIB))
    clients = [await cluster.infra.connect(cluster.handle) for _ in range(5)]
    await asyncio.gather(
        *(client.send_files(digest_of(data), len(data), lambda: io.BytesIO(data)) for client in clients)
    )
    for client in clients:
        await client.close()
    assert stored(cluster, data)
    assert len(chunk_files(cluster)) == len({digest_of(chunk) for chunk in cut(io.BytesIO(data))})


async def test_only_this_user_can_read_what_arrived(cluster: Cluster) -> None:
    await send(cluster, archive(a=b"x"))
    for path in (cluster.directory / "chunks").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


async def test_a_full_disk_is_named_and_the_transfer_goes_on_once_there_is_room(cluster: Cluster) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    store = cluster.directory / "chunks"
    store.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=10m", "none", str(store)]
    done = await asyncio.to_thread(subprocess.run, mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr}")
    try:
        data = archive(large=noise(13, 30 * MIB))
        with pytest.raises(AgentFailed, match=f"No space left.*mounted at {store}"):
            await send(cluster, data)
        kept = sum(path.stat().st_size for path in chunk_files(cluster))
        assert kept == 8 * MIB
        grow = ["mount", "-o", "remount,size=60m", str(store)]
        await asyncio.to_thread(subprocess.run, grow, check=True)
        assert (await send(cluster, data)).bytes == len(data) - kept
        assert stored(cluster, data)
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(store)], check=True)


async def test_a_slow_link_with_much_on_its_way_is_not_taken_for_a_dead_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    data = archive(large=noise(14, 16 * MIB))
    # As a tunnel of a tenth of the speed with ten times the patience.
    impatient = {**dict(TUNNELLED), "grpc.keepalive_time_ms": 5_000, "grpc.http2.ping_timeout_ms": 1_000}
    async with slow_link(cluster.directory / "agent" / "agent.sock", tmp_path / "near", rate=3 * MIB):
        client = AgentClient(UnixChannel(tmp_path, "near", options=tuple(impatient.items())))
        await client.send_files(digest_of(data), len(data), lambda: io.BytesIO(data))
        await client.close()
    assert stored(cluster, data)


async def test_files_of_an_archive_are_there_when_the_job_begins(cluster: Cluster) -> None:
    data = archive(**{"it's a file": b"text\n", "large": noise(10, 6 * MIB)})
    await send(cluster, data)
    seen = await cluster.run(
        "cat 'it'\\''s a file'; sha256sum < large",
        files=(FileTree(digest_of(data), "directory", "~/sky_workdir"),),
    )
    assert seen.text == f"text\n{digest_of(noise(10, 6 * MIB))}  -\n"
    assert seen.end.status is JobStatus.SUCCEEDED


async def test_a_chunk_that_was_spoilt_fails_the_job_and_is_sent_again_for_the_next(cluster: Cluster) -> None:
    data = archive(large=noise(11, 9 * MIB), other=noise(12, MIB))
    await send(cluster, data)
    spoilt = chunk_files(cluster)[1]
    with spoilt.open("r+b") as file:
        file.write(b"spoilt")
    files = (FileTree(digest_of(data), "directory", "~/sky_workdir"),)
    seen = await cluster.run("ls", files=files)
    assert seen.end.status is JobStatus.FAILED_SETUP
    assert spoilt.name in seen.end.reason
    assert 0 < (await send(cluster, data)).bytes <= 5 * MIB
    assert (await cluster.run("ls", files=files)).end.status is JobStatus.SUCCEEDED


async def test_a_job_is_not_accepted_before_its_files_are_here(cluster: Cluster) -> None:
    data = archive(a=b"x")
    files = (FileTree(digest_of(data), "directory", "~/sky_workdir"),)
    with pytest.raises(AgentFailed, match="FAILED_PRECONDITION"):
        await cluster.submit("ls", files=files)
    await send(cluster, data)
    chunk_files(cluster)[0].unlink()
    with pytest.raises(AgentFailed, match="not all of it"):
        await cluster.submit("ls", files=files)
    await send(cluster, data)
    assert (await cluster.run("ls", files=files)).text == "a\n"
