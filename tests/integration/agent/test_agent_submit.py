"""Submitting jobs: once per key, by the owner, and never with an answer that explains nothing."""

from __future__ import annotations

import asyncio
import io
import math
import os
from pathlib import Path

import grpc
import pytest

from airflow_provider.runtime.client import FileTree, JobStatus, NoSuchJob, Owner, RequestRefused
from airflow_provider.runtime.client.base import AgentFailed
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.clusters import OWNER, Cluster, eventually, job


async def refusal(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value


@pytest.fixture
def key() -> str:
    return os.urandom(8).hex()


async def test_the_same_key_is_the_same_job(cluster: Cluster, tmp_path: Path, key: str) -> None:
    script = f"echo once >> {tmp_path}/ran"
    first = await cluster.submit(script, key=key)
    assert await cluster.submit(script, key=key) == first
    await cluster.follow_to_end(first)
    assert await cluster.submit(script, key=key) == first
    assert (tmp_path / "ran").read_text() == "once\n"


async def test_many_at_once_with_one_key_are_one_job(cluster: Cluster, tmp_path: Path, key: str) -> None:
    script = f"echo once >> {tmp_path}/ran"
    ids = await asyncio.gather(*(cluster.submit(script, key=key) for _ in range(20)))
    assert len(set(ids)) == 1
    await cluster.follow_to_end(ids[0])
    assert (tmp_path / "ran").read_text() == "once\n"


async def test_different_keys_run_beside_each_other(cluster: Cluster, tmp_path: Path) -> None:
    script = f"touch {tmp_path}/$SELF; until [ -e {tmp_path}/$OTHER ]; do sleep 0.01; done"
    both = [
        cluster.run(script, envs={"SELF": "a", "OTHER": "b"}),
        cluster.run(script, envs={"SELF": "b", "OTHER": "a"}),
    ]
    assert [seen.end.status for seen in await asyncio.gather(*both)] == [JobStatus.SUCCEEDED] * 2


async def test_a_submit_whose_caller_gave_up_is_no_half_a_job(cluster: Cluster, tmp_path: Path) -> None:
    for number in range(10):
        call = asyncio.create_task(cluster.submit(f"echo {number} >> {tmp_path}/ran", key=f"k{number}"))
        await asyncio.sleep(number * 0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        job_id = await cluster.submit(f"echo {number} >> {tmp_path}/ran", key=f"k{number}")
        assert (await cluster.follow_to_end(job_id)).end.status is JobStatus.SUCCEEDED
    assert sorted((tmp_path / "ran").read_text().split(), key=int) == [str(n) for n in range(10)]


async def test_an_older_owner_may_do_nothing_any_more(cluster: Cluster, key: str) -> None:
    job_id = await cluster.start("echo ready; sleep 100", key=key)
    new = Owner("next try", 2)
    assert await cluster.submit(key=key, owner=new) == job_id
    with pytest.raises(Superseded, match="next try"):
        await cluster.submit(key=key)
    with pytest.raises(Superseded):
        await cluster.client.cancel(job_id, OWNER, limit=10)
    with pytest.raises(Superseded):
        await cluster.follow_to_end(job_id)
    assert (await cluster.client.status(job_id)).status is JobStatus.RUNNING
    await cluster.client.cancel(job_id, new, limit=10)


async def test_an_owner_that_is_superseded_hears_of_it_in_its_stream(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; yes; sleep 100")
    old = asyncio.create_task(cluster.follow_to_end(job_id))
    await eventually(lambda: cluster.job_directory(job_id).log_size() > 10_000_000, "some output")
    assert (await cluster.client.cancel(job_id, Owner("next try", 2), limit=20)).status is JobStatus.CANCELLED
    with pytest.raises(Superseded):
        await asyncio.wait_for(old, 10)


@pytest.mark.own_cluster
async def test_ownership_outlives_the_agent(cluster: Cluster) -> None:
    job_id = await cluster.submit("sleep 100", owner=Owner("new", 7))
    await cluster.kill_agent()
    await cluster.restart_agent()
    with pytest.raises(Superseded):
        await cluster.client.cancel(job_id, Owner("old", 6), limit=10)


BAD = [
    ("key is empty", {"key": ""}),
    ("owner.id", {"owner": pb.Owner(generation=1)}),
    ("envs['']", {"job": pb.JobSpec(envs={"": "x"})}),
    ("envs['a=b']", {"job": pb.JobSpec(envs={"a=b": "x"})}),
    ("secrets['a\\x00']", {"job": pb.JobSpec(secrets={"a\0": "x"})}),
    ("secrets['TOKEN']", {"job": pb.JobSpec(secrets={"TOKEN": "s3cret\0"})}),
    ("grace_seconds", {"job": pb.JobSpec(grace_seconds=-1)}),
    ("grace_seconds", {"job": pb.JobSpec(grace_seconds=math.nan)}),
    ("grace_seconds", {"job": pb.JobSpec(grace_seconds=math.inf)}),
    ("SHA-256", {"job": pb.JobSpec(files=[pb.Files(digest="../../etc", kind=1, destination="~/x")])}),
    ("SHA-256", {"job": pb.JobSpec(files=[pb.Files(digest="", kind=1, destination="~/x")])}),
    ("kind", {"job": pb.JobSpec(files=[pb.Files(digest="a" * 64, destination="~/x")])}),
    ("kind", {"job": pb.JobSpec(files=[pb.Files(digest="a" * 64, kind=77, destination="~/x")])}),
    ("destination ''", {"job": pb.JobSpec(files=[pb.Files(digest="a" * 64, kind=1)])}),
    ("destination 'x'", {"job": pb.JobSpec(files=[pb.Files(digest="a" * 64, kind=1, destination="x")])}),
    ("destination", {"job": pb.JobSpec(files=[pb.Files(digest="a" * 64, kind=1, destination="/x\0")])}),
]


@pytest.mark.own_cluster
async def test_bad_requests_are_refused_with_the_field_and_without_the_value(cluster: Cluster) -> None:
    for words, fields in BAD:
        request = pb.SubmitRequest(**{"key": "key", "owner": pb.Owner(id="o", generation=1), **fields})
        error = await refusal(rpcs.SUBMIT.unary(cluster.client._channel)(request, timeout=10))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, fields
        assert words in (error.details() or ""), fields
        assert "s3cret" not in (error.details() or "")
    assert list((cluster.directory / "jobs").iterdir()) == []


async def test_an_archive_that_the_cluster_does_not_have_can_be_sent_and_tried_again(
    cluster: Cluster,
) -> None:
    with pytest.raises(AgentFailed, match="FAILED_PRECONDITION"):
        await cluster.submit(files=(FileTree("a" * 64, "directory", "~/x"),))


async def test_text_that_no_message_can_carry_is_refused_before_it_is_sent(cluster: Cluster) -> None:
    with pytest.raises(RequestRefused) as caught:
        await cluster.submit(secrets={"TOKEN": "s3cret\udc80"})
    assert "s3cret" not in str(caught.value)
    with pytest.raises(RequestRefused):
        await cluster.submit(files=(FileTree("a" * 64, "socket", "~/x"),))


async def test_calls_about_a_job_that_does_not_exist_say_so(cluster: Cluster) -> None:
    with pytest.raises(NoSuchJob, match="no job 77"):
        await cluster.client.status(77)
    with pytest.raises(NoSuchJob):
        await cluster.client.cancel(77, OWNER, limit=10)
    with pytest.raises(NoSuchJob):
        await cluster.follow_to_end(77)


async def test_calls_without_an_owner_are_refused(cluster: Cluster) -> None:
    job_id = await cluster.submit()
    with pytest.raises(RequestRefused, match=r"owner\.id"):
        await cluster.client.cancel(job_id, Owner("", 9), limit=10)
    with pytest.raises(RequestRefused, match=r"owner\.id"):
        await cluster.follow_to_end(job_id, owner=Owner("", 9))


async def test_a_bad_lease_or_grace_is_refused(cluster: Cluster) -> None:
    for seconds in (-1.0, math.nan, math.inf):
        with pytest.raises(RequestRefused, match="lease_seconds"):
            await cluster.client.handshake(lease_seconds=seconds)
        request = pb.CancelRequest(job_id=1, owner=pb.Owner(id="o"), grace_seconds=seconds)
        error = await refusal(rpcs.CANCEL.unary(cluster.client._channel)(request, timeout=10))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_that_do_not_begin_with_start_are_refused(cluster: Cluster) -> None:
    follow = rpcs.FOLLOW.duplex(cluster.client._channel)(iter([pb.FollowRequest(acknowledged=1)]))
    error = await refusal(follow.read())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.own_cluster
async def test_an_error_that_nobody_foresaw_is_told_and_logged(cluster: Cluster) -> None:
    (cluster.directory / "blobs").write_text("in the way of the directory")
    with pytest.raises(AgentFailed, match=r"RESOURCE_EXHAUSTED.*blobs"):
        await cluster.client.send_files("a" * 64, 1, lambda: io.BytesIO(b"x"))
    assert "stat_blob" in (cluster.directory / "agent" / "agent.log").read_text()
    assert (await cluster.run("echo on")).text == "on\n"


async def test_a_script_of_many_megabytes_runs(cluster: Cluster) -> None:
    script = "# " + "x" * 8_000_000 + "\necho end\n"
    seen = await cluster.run(script)
    assert seen.text == "end\n"


async def test_many_variables_of_some_size_arrive(cluster: Cluster) -> None:
    envs = {f"V{n}": "x" * 100_000 for n in range(10)}
    assert (await cluster.run("echo ${#V0} ${#V9}", envs=envs)).text == "100000 100000\n"


async def test_scripts_arrive_byte_for_byte(cluster: Cluster) -> None:
    value = "a b'c\"d`e$f\\g\nline2 ünï"
    script = (
        "cat <<'EOF' > \"dir with 'quote\"\n'single' \"double\" `tick` $HOME \\n %s {{braces}} !bang\nEOF\n"
        "cat \"dir with 'quote\"; printf '%s' \"$V\"; awk '{print $1}' <<< 'x y'"
    )
    seen = await cluster.run(script, envs={"V": value})
    assert seen.text == f"'single' \"double\" `tick` $HOME \\n %s {{{{braces}}}} !bang\n{value}x\n"


async def test_secrets_win_over_variables_and_leave_no_trace(cluster: Cluster) -> None:
    request = job("echo $TOKEN | rev", envs={"TOKEN": "no"}, secrets={"TOKEN": "s3cret"})
    assert "s3cret" not in repr(request)
    job_id = await cluster.client.submit("secrets", OWNER, request)
    assert (await cluster.follow_to_end(job_id)).text == "terc3s\n"
    for path in cluster.directory.rglob("*"):
        if path.is_file():
            assert b"s3cret" not in path.read_bytes(), path
