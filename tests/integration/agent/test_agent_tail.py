"""TailLogs: a job's log as text, from its end or its begin, for readers that are many, slow, or gone."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from pathlib import Path

import grpc.aio
import pytest

from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs
from tests.integration.agent.jobs_wire import (
    CANCELLED,
    REPORT,
    RUNNING,
    SUCCEEDED,
    Tail,
    Wire,
    finished,
    messages,
    read,
    read_until,
)
from tests.integration.clusters import Cluster, eventually


@pytest.fixture
def wire(cluster: Cluster) -> Wire:
    return Wire(cluster)


def memory(pid: int, what: str) -> int:
    """Return a figure of /proc/<pid>/status in MiB."""
    match = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match.group(1)) // 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def watches(pid: int) -> int:
    """Return how many directories the process watches."""
    found = 0
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            found += path.read_text().count("inotify wd:")
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


class Steps:
    """A script that does one step whenever the test says so."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0

    def script(self, *steps: str) -> str:
        waits = [f"until [ -e '{self._directory}/go-{n}' ]; do sleep 0.01; done" for n in range(len(steps))]
        return "\n".join(f"{step}\n{wait}" for step, wait in zip(steps, waits, strict=True)).removesuffix(
            waits[-1]
        )

    def go(self) -> None:
        (self._directory / f"go-{self._made}").touch()
        self._made += 1


# ---- which part


@pytest.mark.parametrize(
    ("tail", "offset", "shown"),
    [
        (0, 0, range(1, 1001)),
        (-3, 0, range(1, 1001)),
        (1, 0, range(1000, 1001)),
        (10, 0, range(991, 1001)),
        (5000, 0, range(1, 1001)),
        (3, 10, range(988, 991)),
        (3, 998, range(1, 3)),
        (3, 1000, range(0)),
        (3, 2**31 - 1, range(0)),
        (2**31 - 1, 0, range(1, 1001)),
        (3, -5, range(998, 1001)),
    ],
)
@pytest.mark.parametrize("follow", [True, False])
async def test_so_many_lines_before_so_many_at_the_end_are_shown(
    wire: Wire, tail: int, offset: int, shown: range, follow: bool
) -> None:
    job_id = await wire.program("for number in range(1, 1001): print(number)")
    assert await wire.ended(job_id) == SUCCEEDED
    text = "".join(f"{number}\n" for number in shown)
    assert await wire.tail(job_id, follow=follow, tail=tail, tail_offset=offset) == Tail(
        finished("SUCCEEDED", text), 0
    )


async def test_who_follows_from_the_last_lines_on_gets_all_that_comes(wire: Wire, tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    job_id = await wire.cluster.submit(steps.script("printf 'a\\nb\\nc\\n'", "echo d"))
    await wire.cluster.until_log(job_id, "c\n")
    stream = wire.tailing(job_id, tail=1)
    assert await read_until(stream, "c\n") == "c\n"
    steps.go()
    assert await read(stream) == Tail(finished("SUCCEEDED", "d\n"), 0)


async def test_a_reader_that_comes_again_sees_the_same_from_the_begin(wire: Wire, tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    job_id = await wire.cluster.submit(steps.script("echo a", "echo b", "echo c"))
    first = wire.tailing(job_id)
    assert await read_until(first, "a\n") == "a\n"
    first.cancel()
    steps.go()
    assert await read_until(wire.tailing(job_id), "b\n") == "a\nb\n"
    steps.go()
    assert await wire.tail(job_id) == Tail(finished("SUCCEEDED", "a\nb\nc\n"), 0)


async def test_k71_a_quiet_job_is_followed_to_its_last_byte(wire: Wire, tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    job_id = await wire.cluster.submit(steps.script("echo START", "echo MID", "printf no-newline-end"))
    stream = wire.tailing(job_id)
    await read_until(stream, "START\n", seconds=10)
    waiting = asyncio.ensure_future(stream.read())
    for words in ("MID\n", "no-newline-end"):
        done, _ = await asyncio.wait({waiting}, timeout=0.7)
        assert not done, "the job is quiet"
        steps.go()
        assert (await waiting).log_line == words
        waiting = asyncio.ensure_future(stream.read())
    assert (await waiting).log_line == "\n" + finished("SUCCEEDED")
    assert (await stream.read()).exit_code == 0


async def test_a_prompt_is_shown_before_its_line_ends(wire: Wire, tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    job_id = await wire.cluster.submit(steps.script("printf 'Password: '", "echo none"))
    stream = wire.tailing(job_id)
    assert await read_until(stream, "Password: ") == "Password: "
    steps.go()
    assert await read(stream) == Tail(finished("SUCCEEDED", "none\n"), 0)


async def test_the_log_of_a_job_that_is_not_queued_yet_is_waited_for(wire: Wire) -> None:
    added = await wire.add()
    stream = wire.tailing(added.job_id)
    waiting = asyncio.ensure_future(read(stream))
    assert await wire.tail(added.job_id, follow=False) == Tail("", 0)
    await wire.queue(added, "print('now')")
    assert await waiting == Tail(finished("SUCCEEDED", "now\n"), 0)


async def test_of_a_progress_bar_the_last_state_is_shown(wire: Wire) -> None:
    program = "import sys\nfor n in range(101): sys.stdout.write(f'\\r{n}%')\nprint()\nprint('done')"
    job_id = await wire.program(program)
    assert await wire.ended(job_id) == SUCCEEDED
    assert await wire.tail(job_id) == Tail(finished("SUCCEEDED", "100%\ndone\n"), 0)


async def test_a_progress_bar_that_moves_is_shown_now_and_then(wire: Wire) -> None:
    job_id = await wire.cluster.submit('for n in {0..150}; do printf "$n%%\\r"; sleep 0.01; done; echo')
    pieces = [message.log_line for message in await messages(wire.tailing(job_id))]
    text = "".join(pieces)
    assert 1 <= len(pieces) < 20
    assert text.endswith("\r150%\n" + finished("SUCCEEDED")) or text == "150%\n" + finished("SUCCEEDED")


async def test_k84_a_line_of_6_megabytes_comes_in_pieces(wire: Wire) -> None:
    size = 6 << 20
    job_id = await wire.program(f"print('ü' * {size // 2}, end='')")
    pieces = [message.log_line for message in await messages(wire.tailing(job_id))]
    assert max(map(len, pieces)) <= 16 * 1024
    assert "".join(pieces) == "ü" * (size // 2) + "\n" + finished("SUCCEEDED")
    assert (await wire.tail(job_id, follow=False, tail=1)).text == "".join(pieces)


async def test_what_a_program_of_skypilots_prints_before_its_marker_is_not_shown(wire: Wire) -> None:
    marker = "Waiting for task resources on 1 node."
    job_id = await wire.program(
        f"import time\nprint('noise', flush=True); time.sleep(0.3)\nprint({marker!r})\nprint('x')"
    )
    for follow in (True, False):
        shown = finished("SUCCEEDED", f"{marker}\nx\n")
        assert await wire.tail(job_id, follow=follow) == Tail(shown, 0)


async def test_bytes_that_are_no_text_do_not_stop_the_log(wire: Wire) -> None:
    job_id = await wire.program(
        "import sys; sys.stdout.buffer.write(b'a\\xff\\xfe\\0b\\xe2\\x82\\xac\\n\\xe2')"
    )
    text = "a\ufffd\ufffd\0b€\n\ufffd\n"
    assert await wire.tail(job_id) == Tail(finished("SUCCEEDED", text), 0)


# ---- exit codes


async def test_e4_the_exit_code_tells_how_the_job_stands(wire: Wire) -> None:
    runs = await wire.running()
    assert await wire.tail(runs, follow=False) == Tail("", 0)
    assert await wire.cancel(runs) == [runs]
    assert await wire.status(runs) == CANCELLED
    assert await wire.tail(runs) == Tail(finished("CANCELLED"), 103)
    for program, status, code in (
        ("", "SUCCEEDED", 0),
        ("import sys; sys.exit(1)", "FAILED", 100),
        (REPORT + "report(status='FAILED_SETUP')", "FAILED_SETUP", 100),
    ):
        job_id = await wire.program(program)
        for follow in (True, False):
            assert await wire.tail(job_id, follow=True) == Tail(finished(status), code)
            assert await wire.tail(job_id, follow=follow, tail=5) == Tail(finished(status), code)
        assert await wire.tail() == Tail(finished(status), code)  # the newest


@pytest.mark.parametrize("job_id", [987_654, -1, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("follow", [True, False])
async def test_e4_an_unknown_job_is_told_in_words_and_with_102(wire: Wire, job_id: int, follow: bool) -> None:
    assert await wire.tail(job_id, follow=follow) == Tail(
        f"Job not found: no job {job_id} on this cluster\n", 102
    )


async def test_e4_a_driver_that_dies_is_a_failure(wire: Wire) -> None:
    job_id = await wire.cluster.submit("echo ready; sleep 600")
    stream = wire.tailing(job_id)
    await read_until(stream, "ready\n")
    os.kill(wire.cluster.driver_pid(job_id), 9)
    assert await read(stream) == Tail(finished("FAILED_DRIVER"), 100)


async def test_a_job_that_removes_its_log_still_ends(wire: Wire) -> None:
    added = await wire.add()
    await wire.queue(added, f"import shutil; print('x', flush=True); shutil.rmtree({added.log_dir!r})")
    assert (await wire.tail(added.job_id)).exit_code == 0
    assert await wire.tail(added.job_id, tail=1) == Tail(finished("SUCCEEDED"), 0)


# ---- many, slow and vanished readers


@pytest.mark.own_cluster
async def test_i1_02_200_followers_of_a_quiet_job_slow_nobody_down(wire: Wire, tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    job_id = await wire.cluster.submit(steps.script("echo ready", "echo last"))
    streams = [wire.tailing(job_id) for _ in range(200)]
    await asyncio.gather(*(read_until(stream, "ready\n") for stream in streams))
    pid = wire.cluster.agent_pid
    took = []
    for _ in range(100):
        begin = time.monotonic()
        assert await wire.status(job_id) == RUNNING
        took.append(time.monotonic() - begin)
    # What they are meant to be is for the benchmark; a starving agent needs seconds.
    assert statistics.median(took) < 0.05, took
    assert max(took) < 1, took
    working = _cpu_seconds(pid)
    await asyncio.sleep(1)
    assert _cpu_seconds(pid) - working < 0.2, "an idle follower costs something"
    steps.go()
    ends = await asyncio.gather(*(read(stream) for stream in streams))
    assert set(ends) == {Tail(finished("SUCCEEDED", "last\n"), 0)}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.own_cluster
async def test_i1_03_followers_that_leave_leave_nothing_in_the_agent(wire: Wire) -> None:
    job_id = await wire.cluster.start("echo ready; sleep 600")
    pid = wire.cluster.agent_pid

    async def come_and_go(count: int) -> None:
        streams = [wire.tailing(job_id) for _ in range(count)]
        for number, stream in enumerate(streams):
            if number % 2:  # the others leave without a word read
                await read_until(stream, "ready\n")
            stream.cancel()

    await come_and_go(30)  # the first ones fill pools of threads, which stay
    await eventually(lambda: watches(pid) == 1, "the agent to notice")
    before = descriptors(pid), threads(pid), memory(pid, "VmRSS")
    for _ in range(5):
        await come_and_go(40)
    # The directory of the log is watched for followers alone: none is left that the agent knows of.
    await eventually(lambda: watches(pid) == 1, "the agent to notice")
    await eventually(lambda: descriptors(pid) <= before[0], "all descriptors to be closed")
    assert threads(pid) <= before[1] + 10  # the pool may still grow; a leak would be one for each of 200
    assert memory(pid, "VmRSS") - before[2] < 10


TAILER = """
import asyncio, sys
from pathlib import Path
from airflow_provider.runtime.transport.channel import UnixChannel
from airflow_provider.runtime.wire import jobs_pb2, rpcs

async def main():
    unix = UnixChannel(Path(sys.argv[1]), "agent.sock")
    request = jobs_pb2.TailLogsRequest(job_id=int(sys.argv[2]), follow=True)
    streams = [rpcs.TAIL_LOGS.download(unix.channel)(request) for _ in range(20)]
    for stream in streams:
        await stream.read()
    print("got", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.own_cluster
@pytest.mark.parametrize("speaks", [True, False], ids=["while it prints", "while it is quiet"])
async def test_a_client_that_is_killed_leaves_nothing_in_the_agent(wire: Wire, speaks: bool) -> None:
    job_id = await wire.cluster.start(
        f"echo ready; while {str(speaks).lower()}; do echo x; sleep 0.01; done; sleep 600"
    )
    pid = wire.cluster.agent_pid
    await eventually(lambda: watches(pid) == 1, "followers to be gone")
    before = descriptors(pid)
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TAILER,
        str(wire.cluster.directory / "agent"),
        str(job_id),
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"got\n"
    assert watches(pid) == 2
    assert descriptors(pid) > before + 19
    client.kill()
    await client.wait()
    await eventually(lambda: descriptors(pid) <= before and watches(pid) == 1, "the agent to notice")


@pytest.mark.own_cluster
async def test_k20_a_reader_that_stalls_costs_the_agent_no_memory(wire: Wire) -> None:
    size = 300_000_000
    pid = wire.cluster.agent_pid
    job_id = await wire.cluster.submit(f"yes 0123456789abcde | head -c {size}")
    stream = wire.tailing(job_id)
    line = "0123456789abcde\n"
    first = await stream.read()
    assert isinstance(first, pb.TailLogsResponse)
    before = memory(pid, "VmRSS")
    assert await wire.ended(job_id) == SUCCEEDED
    assert wire.cluster.job_directory(job_id).log_size() == size
    assert memory(pid, "VmHWM") - before < 30, "with a reader that stalls"
    text = first.log_line
    while len(text) < 10_000_000:
        message = await stream.read()
        assert isinstance(message, pb.TailLogsResponse)
        text += message.log_line
    assert text == (line * (len(text) // len(line) + 1))[: len(text)]
    assert memory(pid, "VmHWM") - before < 30, "with a reader that goes on"
    stream.cancel()


@pytest.mark.own_cluster
async def test_k82_i3_65_frequent_pings_do_not_cut_quiet_streams(wire: Wire) -> None:
    job_id = await wire.cluster.start("echo ready; sleep 600")
    directory = os.open(wire.cluster.directory / "agent", os.O_RDONLY | os.O_DIRECTORY)
    channel = grpc.aio.insecure_channel(
        f"unix:/proc/self/fd/{directory}/agent.sock",  # short enough
        # SkyPilot's clients ping every 30 s; a server with default options gives up at the third ping.
        options=[
            ("grpc.keepalive_time_ms", 1_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ],
    )
    request = pb.TailLogsRequest(job_id=job_id, follow=True)
    streams = [rpcs.TAIL_LOGS.download(channel)(request) for _ in range(20)]
    await asyncio.gather(*(read_until(stream, "ready\n") for stream in streams))
    ends = [asyncio.ensure_future(read(stream)) for stream in streams]
    done, _ = await asyncio.wait(ends, timeout=8)
    assert done == set(), "a stream was cut"
    assert await wire.cancel(job_id) == [job_id]
    assert {await end for end in ends} == {Tail(finished("CANCELLED"), 103)}
    await channel.close()
    os.close(directory)
