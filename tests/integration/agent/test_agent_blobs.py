"""Sending archives: resumed where they broke, checked, and stored nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
from pathlib import Path

import grpc
import pytest

from airflow_provider.runtime.client import FileTree, JobStatus, RequestRefused
from airflow_provider.runtime.client.base import AgentFailed
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.clusters import Cluster, eventually

pytestmark = pytest.mark.own_cluster

MIB = 1 << 20


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stored(cluster: Cluster, digest: str) -> Path:
    return cluster.directory / "blobs" / digest


async def put(cluster: Cluster, digest: str, size: int, offset: int, *pieces: bytes) -> pb.PutBlobResponse:
    requests = [pb.PutBlobRequest(start=pb.PutBlobStart(digest=digest, size=size, offset=offset))]
    requests += [pb.PutBlobRequest(data=piece) for piece in pieces]
    return await rpcs.PUT_BLOB.upload(cluster.client._channel)(iter(requests), timeout=10)


async def test_an_archive_arrives_and_is_sent_only_once(cluster: Cluster) -> None:
    data = os.urandom(5 * MIB + 7)
    sent: list[int] = []
    for _ in range(2):
        await cluster.client.send_files(digest_of(data), len(data), lambda: io.BytesIO(data), sent.append)
    assert stored(cluster, digest_of(data)).read_bytes() == data
    assert sent == [MIB * n for n in range(1, 6)] + [len(data)]


async def test_a_broken_transfer_goes_on_where_it_broke(cluster: Cluster) -> None:
    data = os.urandom(4 * MIB)
    digest = digest_of(data)
    assert (await put(cluster, digest, len(data), 0, data[:MIB])).received == MIB
    await cluster.kill_agent()
    await cluster.restart_agent()
    sent: list[int] = []
    await cluster.client.send_files(digest, len(data), lambda: io.BytesIO(data), sent.append)
    assert sent == [2 * MIB, 3 * MIB, 4 * MIB]
    assert stored(cluster, digest).read_bytes() == data


async def test_a_transfer_that_only_lacked_its_last_word_is_finished(cluster: Cluster) -> None:
    data = b"whole"
    digest = digest_of(data)
    (cluster.directory / "blobs").mkdir()
    stored(cluster, digest).with_suffix(".part").write_bytes(data)
    await cluster.client.send_files(digest, len(data), lambda: io.BytesIO(data))
    assert stored(cluster, digest).read_bytes() == data


async def test_wrong_bytes_are_refused_and_thrown_away(cluster: Cluster) -> None:
    digest = digest_of(b"right")
    with pytest.raises(AgentFailed, match="SHA-256"):
        await cluster.client.send_files(digest, 5, lambda: io.BytesIO(b"wrong"))
    assert list((cluster.directory / "blobs").iterdir()) == []
    await cluster.client.send_files(digest, 5, lambda: io.BytesIO(b"right"))


async def test_a_begin_that_is_not_ours_is_replaced_at_the_second_attempt(cluster: Cluster) -> None:
    data = os.urandom(1000)
    await put(cluster, digest_of(data), len(data), 0, b"spoilt")
    with pytest.raises(AgentFailed, match="SHA-256"):
        await cluster.client.send_files(digest_of(data), len(data), lambda: io.BytesIO(data))
    await cluster.client.send_files(digest_of(data), len(data), lambda: io.BytesIO(data))


async def test_an_archive_that_is_shorter_than_announced_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(AgentFailed, match="3 bytes, 5 were announced"):
        await cluster.client.send_files(digest_of(b"right"), 5, lambda: io.BytesIO(b"rig"))


async def test_an_archive_that_is_longer_than_announced_is_refused(cluster: Cluster) -> None:
    with pytest.raises(RequestRefused, match="more than the 5 bytes"):
        await cluster.client.send_files(digest_of(b"righty"), 5, lambda: io.BytesIO(b"righty"))


@pytest.mark.parametrize("offset", [1, -1, 2**60])
async def test_an_offset_beyond_what_is_there_is_an_error(cluster: Cluster, offset: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await put(cluster, "a" * 64, 5, offset, b"x")
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS


@pytest.mark.parametrize(
    "digest", ["", "../../x", "a" * 63, "A" * 64, "a" * 64 + "/x", "/etc/passwd", "a" * 64 + "\n"]
)
async def test_names_that_are_no_digests_are_refused(cluster: Cluster, digest: str) -> None:
    with pytest.raises(RequestRefused, match="SHA-256"):
        await cluster.client.send_files(digest, 1, lambda: io.BytesIO(b"x"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await put(cluster, digest, 1, 0, b"x")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not (cluster.directory / "blobs").exists()


async def test_several_senders_of_the_same_archive_do_not_disturb_each_other(cluster: Cluster) -> None:
    data = os.urandom(8 * MIB)
    digest = digest_of(data)
    clients = [await cluster.infra.connect(cluster.handle) for _ in range(5)]
    await asyncio.gather(
        *(client.send_files(digest, len(data), lambda: io.BytesIO(data)) for client in clients)
    )
    for client in clients:
        await client.close()
    assert stored(cluster, digest).read_bytes() == data


async def test_a_sender_that_vanishes_makes_room_for_the_next(cluster: Cluster) -> None:
    data = os.urandom(2 * MIB)
    digest = digest_of(data)
    first = await cluster.infra.connect(cluster.handle)
    call = rpcs.PUT_BLOB.upload(first._channel)(None)
    await call.write(pb.PutBlobRequest(start=pb.PutBlobStart(digest=digest, size=len(data), offset=0)))
    await call.write(pb.PutBlobRequest(data=data[:1000]))
    part = stored(cluster, digest).with_suffix(".part")
    await eventually(lambda: part.exists() and part.stat().st_size == 1000, "the first bytes")
    second = asyncio.create_task(cluster.client.send_files(digest, len(data), lambda: io.BytesIO(data)))
    await first.close()
    await asyncio.wait_for(second, 10)
    assert stored(cluster, digest).read_bytes() == data


async def test_files_of_an_archive_are_there_when_the_job_begins(cluster: Cluster) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("it's a file")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"text\n"))
    data = buffer.getvalue()
    await cluster.client.send_files(digest_of(data), len(data), lambda: io.BytesIO(data))
    seen = await cluster.run(
        "cat 'it'\\''s a file'", files=(FileTree(digest_of(data), "directory", "~/sky_workdir"),)
    )
    assert (seen.text, seen.end.status) == ("text\n", JobStatus.SUCCEEDED)
