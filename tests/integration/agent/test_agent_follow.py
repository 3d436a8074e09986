"""Following a job: every byte once, from wherever the reader stands, whatever the reader does."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from pathlib import Path

import grpc
import pytest

from airflow_provider.runtime.agent.services import follow as follow_service
from airflow_provider.runtime.client import JobStatus, LinkLost, LogBytes, RequestRefused
from airflow_provider.runtime.client import agent as agent_client
from tests.integration.clusters import OWNER, Cluster, Seen, eventually, exited


def memory(pid: int, what: str) -> int:
    """Return a figure of /proc/<pid>/status in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"{what}:\s+(\d+) kB", text)
    assert match is not None
    return int(match.group(1)) // 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_k71_a_thousand_lines_and_a_last_one_without_newline_come_before_the_end_is_told(
    cluster: Cluster,
) -> None:
    seen = await cluster.run("seq 1000; printf 'no-newline-end'")
    assert seen.text == "".join(f"{n}\n" for n in range(1, 1001)) + "no-newline-end"
    position = 0
    for chunk in seen.chunks:
        assert chunk.offset == position
        position += len(chunk.data)
    assert seen.end.log_size == position
    assert [state.status for state in seen.states][-2:] == [JobStatus.RUNNING, JobStatus.SUCCEEDED]


async def test_k71_lines_of_a_job_that_is_quiet_then_are_seen_at_once(cluster: Cluster) -> None:
    job_id = await cluster.submit(
        "echo START; until [ -e mid ]; do sleep 0.01; done; echo MID; until [ -e go ]; do sleep 0.01; done; "
        "printf no-newline-end"
    )
    work = cluster.job_directory(job_id).path / "home" / "sky_workdir"
    await cluster.until_log(job_id, "START\n")
    (work / "mid").touch()
    await cluster.until_log(job_id, "MID\n")
    (work / "go").touch()
    assert (await cluster.follow_to_end(job_id)).text == "START\nMID\nno-newline-end"


async def test_k71_what_was_printed_right_before_a_kill_comes_before_the_end_is_told(
    cluster: Cluster,
) -> None:
    seen = await cluster.run("echo START; printf last; kill -KILL $$")
    assert seen.text == "START\nlast"
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED, (137,))


async def test_the_log_can_be_read_again_from_any_byte(cluster: Cluster) -> None:
    job_id = await cluster.submit("seq 2000; echo €")
    whole = (await cluster.follow_to_end(job_id)).log
    chosen = random.Random(1).sample(range(len(whole)), 15)
    for offset in [0, 1, len(whole) - 1, len(whole), *chosen]:
        seen = await cluster.follow_to_end(job_id, offset=offset)
        assert seen.log == whole[offset:]
        assert seen.end.status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("offset", [-1, 5, 2**62])
async def test_an_offset_outside_of_the_log_is_refused(cluster: Cluster, offset: int) -> None:
    job_id = await cluster.submit("echo abc")
    await cluster.follow_to_end(job_id)
    with pytest.raises(RequestRefused, match=f"offset {offset} of a log of 4 bytes"):
        await cluster.follow_to_end(job_id, offset=offset)


@pytest.mark.own_cluster
async def test_what_was_acknowledged_is_not_sent_again(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; until [ -e go ]; do sleep 0.01; done; echo rest")
    stream = await cluster.follow(job_id)
    await stream.acknowledge(6)
    await stream.acknowledge(2)
    await stream.acknowledge(-1)
    await stream.acknowledge(0)

    async def begins_with() -> int:
        again = await cluster.follow(job_id, offset=None)
        async for message in again:
            if isinstance(message, LogBytes):
                await again.close()
                return message.offset
        raise AssertionError("no log")

    (cluster.job_directory(job_id).path / "home" / "sky_workdir" / "go").touch()
    async for message in stream:
        if isinstance(message, LogBytes) and b"rest" in message.data:
            break
    assert await begins_with() == 6
    await stream.close()
    await cluster.kill_agent()
    await cluster.restart_agent()
    assert await begins_with() == 6


async def test_more_than_there_is_cannot_be_acknowledged(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; until [ -e go ]; do sleep 0.01; done; echo rest")
    stream = await cluster.follow(job_id)
    await stream.acknowledge(10**9)
    (cluster.job_directory(job_id).path / "home" / "sky_workdir" / "go").touch()
    async for _ in stream:
        pass
    seen = await cluster.follow_to_end(job_id, offset=None)
    assert len(seen.log) <= len("rest\n")
    assert seen.end.status is JobStatus.SUCCEEDED


async def test_two_followers_see_the_same(cluster: Cluster) -> None:
    job_id = await cluster.submit("for i in $(seq 300); do echo $i; done; sleep 0.1; echo end")
    one, two = await asyncio.gather(cluster.follow_to_end(job_id), cluster.follow_to_end(job_id))
    assert one.log == two.log
    assert one.text.endswith("end\n")


async def test_a_job_that_truncates_its_log_still_ends(cluster: Cluster) -> None:
    seen = await cluster.run("seq 1000; sleep 0.1; : > /proc/self/fd/1; echo after")
    assert seen.end.status is JobStatus.SUCCEEDED
    job_id = seen.end.job_id
    assert (await cluster.follow_to_end(job_id, offset=None)).end.status is JobStatus.SUCCEEDED


async def test_a_job_that_removes_its_whole_directory_still_ends(cluster: Cluster) -> None:
    seen = await cluster.run('echo one; rm -rf "${HOME%/home}"; exit 3')
    assert seen.end.status is JobStatus.FAILED_DRIVER
    state = await cluster.client.status(seen.end.job_id)
    assert (state.status, state.log_size) == (JobStatus.FAILED_DRIVER, len("one\n"))
    assert (await cluster.follow_to_end(seen.end.job_id)).end.status is JobStatus.FAILED_DRIVER


async def test_a_quiet_job_gives_signs_of_life(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    stream = await cluster.follow(job_id)
    seen = Seen()
    async for message in stream:
        seen.take(message)
        if seen.heartbeats:
            break
    await stream.close()
    assert 2 * follow_service._HEARTBEAT_SECONDS < agent_client._SILENCE_SECONDS


async def test_raw_bytes_and_split_characters_arrive_as_they_are(cluster: Cluster) -> None:
    code = "import sys; w=sys.stdout.buffer.write; [w('€'.encode()*999+b'\\n') for _ in range(3000)]; w(b'\\x80\\xff\\x00 raw\\n')"
    seen = await cluster.run(f'python3 -c "{code}"', envs={"LANG": "C"})
    assert seen.log == ("€".encode() * 999 + b"\n") * 3000 + b"\x80\xff\x00 raw\n"
    assert seen.end.status is JobStatus.SUCCEEDED


async def test_k39_each_line_comes_once_over_streams_that_keep_breaking(cluster: Cluster) -> None:
    job_id = await cluster.submit("for i in $(seq 1 20000); do echo L$i; done")
    log = bytearray()
    chance = random.Random(2)
    done = False
    while not done:
        stream = await cluster.follow(job_id, offset=len(log))
        left = chance.randint(1, 6)
        async for message in stream:
            if isinstance(message, LogBytes):
                log += message.data
                left -= 1
                if not left:
                    break
        else:
            done = True
        await stream.close()
    assert log.decode().split() == [f"L{n}" for n in range(1, 20001)]


@pytest.mark.own_cluster
async def test_k20_a_slow_reader_of_200_megabytes_costs_the_agent_no_memory(cluster: Cluster) -> None:
    job_id = await cluster.submit("yes 0123456789abcde | head -c 200000000")
    stream = await cluster.follow(job_id)
    pid = cluster.agent_pid
    before = memory(pid, "VmRSS")
    await eventually(lambda: cluster.job_directory(job_id).log_size() == 200_000_000, "all output", 30)
    assert memory(pid, "VmHWM") - before < 15, "with a reader that reads nothing"
    size = 0
    async for message in stream:
        if isinstance(message, LogBytes):
            assert message.offset == size
            size += len(message.data)
    assert size == 200_000_000
    assert memory(pid, "VmHWM") - before < 25, "with a reader that reads all"


@pytest.mark.own_cluster
async def test_followers_that_leave_leave_nothing_in_the_agent(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    await cluster.until_log(job_id, "ready")
    pid = cluster.agent_pid
    # The first ones fill pools of threads, which stay.
    for stream in [await cluster.follow(job_id) for _ in range(30)]:
        await anext(aiter(stream))
        await stream.close()
    before = descriptors(pid)
    threads = memory(pid, "VmRSS"), len(os.listdir(f"/proc/{pid}/task"))
    for _ in range(5):
        streams = [await cluster.follow(job_id) for _ in range(40)]
        for number, stream in enumerate(streams):
            if number % 2:  # the others leave without a word read
                await anext(aiter(stream))
            await stream.close()
    await eventually(lambda: descriptors(pid) <= before, "all descriptors to be closed")
    # The pool for blocking calls may still grow by its few threads; a leak would be one for each of 200 followers.
    assert len(os.listdir(f"/proc/{pid}/task")) <= threads[1] + 10
    assert memory(pid, "VmRSS") - threads[0] < 10


FOLLOWER = """
import asyncio, sys
from pathlib import Path
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.client import Owner
from airflow_provider.runtime.transport.channel import UnixChannel

async def main():
    client = AgentClient(UnixChannel(Path(sys.argv[1]), "agent.sock"))
    async for message in await client.follow(int(sys.argv[2]), Owner("task-instance", 1), offset=0):
        print("got", flush=True)

asyncio.run(main())
"""


@pytest.mark.own_cluster
async def test_a_client_that_is_killed_leaves_nothing_in_the_agent(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; while :; do echo x; sleep 0.01; done")
    pid = cluster.agent_pid
    before = descriptors(pid)
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FOLLOWER,
        str(cluster.directory / "agent"),
        str(job_id),
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"got\n"
    assert descriptors(pid) > before
    client.kill()
    await client.wait()
    await eventually(lambda: descriptors(pid) <= before, "the agent to notice")


@pytest.mark.own_cluster
async def test_an_agent_that_dies_is_a_lost_link(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    stream = await cluster.follow(job_id)
    await cluster.kill_agent()
    with pytest.raises(LinkLost):
        async for _ in stream:
            pass
    with pytest.raises(LinkLost):
        await stream.acknowledge(3)
    with pytest.raises(LinkLost):
        await cluster.client.status(job_id)
    with pytest.raises(LinkLost):
        await cluster.follow_to_end(job_id)


async def test_calls_after_close_are_lost_links_too(cluster: Cluster) -> None:
    job_id = await cluster.submit("sleep 100")
    stream = await cluster.follow(job_id)
    await cluster.client.close()
    await cluster.client.close()
    with pytest.raises(LinkLost):
        await cluster.client.status(job_id)
    with pytest.raises(LinkLost):
        await stream.acknowledge(1)
    with pytest.raises(LinkLost):
        await cluster.follow_to_end(job_id)
    with pytest.raises(LinkLost):
        await cluster.client.cancel(job_id, OWNER, limit=1)


async def test_a_stream_that_is_closed_while_somebody_reads_it_is_a_lost_link(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100")
    stream = await cluster.follow(job_id)
    seen = Seen()

    async def read() -> None:
        async for message in stream:
            seen.take(message)

    reading = asyncio.create_task(read())
    await eventually(lambda: seen.log, "the first line")
    await stream.close()
    await stream.close()
    with pytest.raises(LinkLost):
        await asyncio.wait_for(reading, 5)


@pytest.mark.own_cluster
async def test_an_agent_that_was_stopped_for_a_while_goes_on(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; until [ -e go ]; do sleep 0.01; done; echo end")
    pid = cluster.agent_pid
    os.kill(pid, signal.SIGSTOP)
    following = asyncio.create_task(cluster.follow_to_end(job_id))
    (cluster.job_directory(job_id).path / "home" / "sky_workdir" / "go").touch()
    await exited(cluster.driver_pid(job_id))
    os.kill(pid, signal.SIGCONT)
    seen = await following
    assert (seen.text, seen.end.status) == ("ready\nend\n", JobStatus.SUCCEEDED)


def test_grpc_is_as_new_as_we_ask_for() -> None:
    assert tuple(int(part) for part in grpc.__version__.split(".")[:2]) >= (1, 67)


async def test_whoever_follows_a_busy_log_can_be_cancelled_at_any_moment(cluster: Cluster) -> None:
    job_id = await cluster.submit('while head -c 100000 /dev/zero | tr "\\0" x; do :; done')

    async def read() -> None:
        async for _ in await cluster.follow(job_id):
            pass

    for number in range(40):
        reader = asyncio.create_task(read())
        await asyncio.sleep(0.001 * number)
        reader.cancel()
        done, _ = await asyncio.wait([reader], timeout=5)
        assert done, "the cancellation was lost"
    await cluster.client.cancel(job_id, OWNER, limit=30)
