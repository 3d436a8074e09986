"""Reading a job's log as text: what is there, what comes, until the last byte; nothing stays behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.logs import lines as logs
from airflow_provider.runtime.agent.logs import stream as logstream
from tests.unit.agent.log_readers import Reader, SlowDisk, Writer

MARKER = "Waiting for task resources on 1 node.\n"


@pytest.fixture
def job(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "run.log")


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    await asyncio.to_thread(os.getpid)  # so that the first thread is there
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr(logstream, "_read", disk.read)
    yield disk
    disk.gate.set()


class TestWithoutFollowing:
    async def test_it_ends_at_the_present_end(self, job: Writer) -> None:
        job.write("one\ntwo\nthree")
        assert await job.read() == "one\ntwo\nthree"

    async def test_a_log_that_is_not_there_is_empty(self, job: Writer) -> None:
        assert await job.read() == ""

    @pytest.mark.parametrize(
        ("tail", "offset", "text"),
        [
            (0, 0, "1\n2\n3\n4\nend"),
            (-1, 0, "1\n2\n3\n4\nend"),
            (0, 2, "1\n2\n3\n4\nend"),
            (2, 0, "4\nend"),
            (2, 1, "3\n4\n"),
            (2, -5, "4\nend"),
            (9, 4, "1\n"),
            (9, 9, ""),
            (2**31 - 1, 2**31 - 1, ""),
        ],
    )
    async def test_the_last_lines(self, job: Writer, tail: int, offset: int, text: str) -> None:
        job.write("1\n2\n3\n4\nend")
        assert await job.read(tail=tail, tail_offset=offset) == text

    async def test_what_is_written_while_it_reads_is_left_out(self, job: Writer) -> None:
        job.write("x" * 100_000 + "\n")
        async with aclosing(job.text.pieces(follow=False)) as pieces:
            shown = await anext(pieces)
            job.write("more\n")
            shown += "".join([piece async for piece in pieces])
        assert shown == "x" * 100_000 + "\n"

    async def test_a_log_that_is_truncated_while_it_reads_ends(self, job: Writer) -> None:
        job.write("x" * 1_000_000)
        async with aclosing(job.text.pieces(follow=False)) as pieces:
            await anext(pieces)
            os.truncate(job.path, 0)
            async for _ in pieces:
                pass


class TestFollowing:
    async def test_k71_each_line_is_seen_when_it_is_written_and_the_last_without_newline(
        self, job: Writer
    ) -> None:
        job.write("START\n")
        reader = Reader(job.text.pieces(follow=True))
        await reader.sees("START\n")
        job.write("MID\n")
        await reader.sees("START\nMID\n")
        job.write("no-newline-end")
        job.end()
        await reader.sees_to_the_end("START\nMID\nno-newline-end")

    async def test_i1_61_what_is_written_right_before_the_end_comes_before_it(self, job: Writer) -> None:
        reader = Reader(job.text.pieces(follow=True))
        job.write("first")
        await reader.sees("first")
        lines = "".join(f"{number}\n" for number in range(50_000))
        job.write(lines + "last")
        job.end()
        await reader.sees_to_the_end(f"first{lines}last")

    async def test_the_log_of_a_job_that_has_ended_is_read_to_its_end(self, job: Writer) -> None:
        job.write("one\nend")
        job.end()
        assert await job.read(follow=True) == "one\nend"

    async def test_a_log_that_comes_later_is_waited_for(self, job: Writer) -> None:
        reader = Reader(job.text.pieces(follow=True))
        await asyncio.sleep(0)
        job.changed.notify()
        await asyncio.sleep(0)
        job.write("here\n")
        await reader.sees("here\n")
        job.end()
        await reader.task

    async def test_a_job_that_ends_without_a_log_ends_the_stream(self, job: Writer) -> None:
        reader = Reader(job.text.pieces(follow=True))
        await asyncio.sleep(0)
        job.end()
        await reader.sees_to_the_end("")

    async def test_a_character_that_comes_in_two_parts_stays_one(self, job: Writer) -> None:
        job.write(b"a\xe2\x82")
        reader = Reader(job.text.pieces(follow=True))
        await reader.sees("a")
        job.write(b"\xac\n\xe2")
        await reader.sees("a€\n")
        job.end()
        await reader.sees_to_the_end("a€\n�")

    async def test_a_prompt_without_newline_is_seen_while_the_job_waits(self, job: Writer) -> None:
        reader = Reader(job.text.pieces(follow=True))
        job.write("one\ncontinue? ")
        await reader.sees("one\ncontinue? ")
        job.write("yes\n")
        job.end()
        await reader.sees_to_the_end("one\ncontinue? yes\n")

    async def test_last_lines_and_then_all_that_comes(self, job: Writer) -> None:
        job.write("1\n2\n3\nhal")
        reader = Reader(job.text.pieces(follow=True, tail=2))
        await reader.sees("3\nhal")
        job.write("f\n")
        job.end()
        await reader.sees_to_the_end("3\nhalf\n")

    async def test_lines_skipped_at_the_end_stay_skipped(self, job: Writer) -> None:
        job.write("1\n2\n3\n4\n")
        reader = Reader(job.text.pieces(follow=True, tail=1, tail_offset=2))
        await reader.sees("2\n")
        job.write("5\n")
        job.end()
        await reader.sees_to_the_end("2\n5\n")

    async def test_a_job_that_truncates_its_log_still_ends(self, job: Writer) -> None:
        job.write("one\n" * 1000)
        reader = Reader(job.text.pieces(follow=True))
        await reader.sees("one\n" * 1000)
        os.truncate(job.path, 0)
        job.end()
        await reader.sees_to_the_end("one\n" * 1000)

    async def test_what_comes_within_a_moment_is_one_piece(self, job: Writer) -> None:
        job.write("0\n")
        reader = Reader(job.text.pieces(follow=True))
        await reader.sees("0\n")
        for number in range(1, 200):
            job.write(f"{number}\n")
            await asyncio.sleep(0)
        await reader.sees("".join(f"{number}\n" for number in range(200)))
        assert len(reader.pieces) < 20
        job.end()
        await reader.task

    async def test_while_nothing_is_written_nothing_is_read(self, job: Writer, slow_disk: SlowDisk) -> None:
        slow_disk.gate.set()
        job.write("one\n")
        reader = Reader(job.text.pieces(follow=True))
        await reader.sees("one\n")
        await asyncio.sleep(0.2)
        reads = slow_disk.ended
        await asyncio.sleep(0.3)
        assert slow_disk.ended == reads
        job.end()
        await reader.task


class TestProgressBars:
    async def test_one_that_never_pauses_is_shown_now_and_then(
        self, job: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logstream, "_REDRAW_SECONDS", 0.2)
        reader = Reader(job.text.pieces(follow=True))
        states = 0
        while len(reader.pieces) < 4:
            states += 1
            job.write(f"\r{states:6d}")
            await asyncio.sleep(0.002)
        assert reader.pieces[0][0] != "\r", "nothing was there to be overwritten"
        assert all(piece[0] == "\r" for piece in reader.pieces[1:])
        numbers = [int(piece) for piece in reader.pieces]
        assert numbers == sorted(set(numbers))
        assert states > 4 * len(numbers)
        job.write(f"\r{states + 1}\n")
        job.end()
        await reader.task
        assert reader.text.endswith(f"\r{states + 1}\n")

    async def test_one_that_pauses_between_its_states_is_shown_no_more_often(
        self, job: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logstream, "_REDRAW_SECONDS", 0.4)
        monkeypatch.setattr(logstream, "_SILENCE_SECONDS", 0.005)
        monkeypatch.setattr(logstream, "_GATHER_SECONDS", 0.005)
        seen: list[float] = []

        async def read() -> None:
            async with aclosing(job.text.pieces(follow=True)) as pieces:
                async for _ in pieces:
                    seen.append(time.monotonic())

        reading = asyncio.create_task(read())
        state = 0
        while len(seen) < 4:
            state += 1
            job.write(f"\r{state:6d}")
            await asyncio.sleep(0.03)
        gaps = [after - before for before, after in itertools.pairwise(seen)]
        job.end()
        await reading
        assert min(gaps) > 0.3

    async def test_one_that_is_slow_shows_each_state(self, job: Writer) -> None:
        reader = Reader(job.text.pieces(follow=True))
        shown = ""
        for state in (" 10%\r", " 50%\r", "100%\r"):
            job.write(state)
            shown += "\r" * bool(shown) + state[:-1]
            await reader.sees(shown)
        job.write("\n")
        job.end()
        await reader.sees_to_the_end(shown + "\n")

    async def test_a_line_of_dots_is_seen_as_it_grows(
        self, job: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logstream, "_REDRAW_SECONDS", 0.2)
        monkeypatch.setattr(logstream, "_SILENCE_SECONDS", 60.0)
        reader = Reader(job.text.pieces(follow=True))
        dots = 0
        while len(reader.pieces) < 3:
            job.write(".")
            dots += 1
            await asyncio.sleep(0.005)
        job.end()
        await reader.sees_to_the_end("." * dots)


class TestMarker:
    async def test_what_comes_before_it_is_left_out(self, job: Writer) -> None:
        job.write(f"noise\n{MARKER}one\n")
        assert await job.read(marked=True) == f"{MARKER}one\n"
        assert await job.read() == f"noise\n{MARKER}one\n"

    @pytest.mark.parametrize(
        ("tail", "offset", "text"),
        [(1, 0, "one\n"), (2, 0, f"{MARKER}one\n"), (9, 0, f"{MARKER}one\n"), (9, 2, ""), (1, 3, "")],
    )
    async def test_last_lines_do_not_reach_beyond_it(
        self, job: Writer, tail: int, offset: int, text: str
    ) -> None:
        job.write(f"noise\nnoise\n{MARKER}one\n")
        assert await job.read(marked=True, tail=tail, tail_offset=offset) == text

    async def test_a_follower_waits_for_it(self, job: Writer) -> None:
        job.write("noise\n")
        reader = Reader(job.text.pieces(follow=True, marked=True))
        for line in ("more noise\n", MARKER, "one\n"):
            job.write(line)
            await asyncio.sleep(0.01)
        await reader.sees(f"{MARKER}one\n")
        job.end()
        await reader.task

    async def test_a_program_that_prints_none_is_shown_from_its_begin(self, job: Writer) -> None:
        job.write("hello\n")
        assert await job.read(marked=True) == "hello\n"
        reader = Reader(job.text.pieces(follow=True, marked=True))
        job.end()
        await reader.sees_to_the_end("hello\n")

    async def test_it_is_waited_for_no_longer_than_a_while(
        self, job: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logstream, "_MARKER_SECONDS", 0.05)
        job.write("hello\n")
        reader = Reader(job.text.pieces(follow=True, marked=True))
        await reader.sees("hello\n")
        job.end()
        await reader.task

    async def test_nor_longer_than_the_head_of_the_log(self, job: Writer) -> None:
        head = "hello\n" * logs.HEAD_BYTES
        job.write(head)
        reader = Reader(job.text.pieces(follow=True, marked=True))
        await reader.sees(head)
        job.end()
        await reader.task


class TestReadersThatLeave:
    """Row 3: nothing stays behind (see ``_nothing_is_left``)."""

    async def test_i1_03_between_two_pieces(self, job: Writer) -> None:
        job.write("x\n" * 100_000)
        for follow in (True, False):
            pieces = job.text.pieces(follow=follow)
            await anext(pieces)
            await pieces.aclose()

    async def test_i1_03_in_the_middle_of_what_grows(self, job: Writer) -> None:
        job.write("one\n")
        pieces = job.text.pieces(follow=True)
        assert await anext(pieces) == "one\n"
        job.write("two\n")
        assert await anext(pieces) == "two\n"
        await pieces.aclose()
        await asyncio.sleep(0)  # a generator that nobody closes gets a task that does
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_i1_03_while_nothing_is_written(self, job: Writer) -> None:
        job.write("one\n")
        reader = Reader(job.text.pieces(follow=True))
        await reader.sees("one\n")
        await asyncio.sleep(0.1)
        reader.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader.task

    async def test_i1_03_before_there_is_a_log(self, job: Writer) -> None:
        reader = Reader(job.text.pieces(follow=True))
        await asyncio.sleep(0)
        reader.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader.task

    async def test_i1_03_while_a_thread_reads(self, job: Writer, slow_disk: SlowDisk) -> None:
        job.write("one\n")
        reader = Reader(job.text.pieces(follow=True))
        await asyncio.to_thread(slow_disk.begun.wait)
        reader.task.cancel()
        await asyncio.sleep(0.01)
        reader.task.cancel()
        await asyncio.sleep(0.01)
        assert not reader.task.done(), "the thread still reads from the descriptor"
        slow_disk.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await reader.task
        assert slow_disk.ended == 1

    async def test_i1_03_while_last_lines_are_looked_for(
        self, job: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job.path.touch()
        os.truncate(job.path, 100 << 30)
        blocks = 0
        read_block = logs.LastLines.read_block

        def counting(search: logs.LastLines) -> logs.Span | None:
            nonlocal blocks
            blocks += 1
            return read_block(search)

        monkeypatch.setattr(logs.LastLines, "read_block", counting)
        reader = Reader(job.text.pieces(follow=False, tail=1))
        await asyncio.sleep(0.05)
        reader.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader.task
        assert 0 < blocks < 100_000


async def test_a_slow_reader_is_read_for_one_block_at_a_time(job: Writer, slow_disk: SlowDisk) -> None:
    slow_disk.gate.set()
    job.write("a line of a chatty job\n" * 500_000)
    async with aclosing(job.text.pieces(follow=True)) as pieces:
        for count in range(1, 40):
            await anext(pieces)
            assert sum(slow_disk.sizes) <= (count + 1) * logstream._BLOCK_BYTES
        assert max(slow_disk.sizes) <= logstream._BLOCK_BYTES


async def test_k84_a_line_of_six_megabytes_comes_in_small_pieces(job: Writer) -> None:
    job.write("first\n" + "x" * (6 << 20) + "\nlast\n")
    job.end()
    pieces = [piece async for piece in job.text.pieces(follow=True, tail=2)]
    assert "".join(pieces) == "x" * (6 << 20) + "\nlast\n"
    assert max(map(len, pieces)) <= 16 * 1024


async def test_i1_02_many_quiet_followers_cost_one_descriptor_each_and_no_thread(job: Writer) -> None:
    job.write("one\n")
    readers = [Reader(job.text.pieces(follow=True)) for _ in range(200)]
    for reader in readers:
        await reader.sees("one\n")
    descriptors = len(os.listdir("/proc/self/fd"))
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "answers"), 5) == "answers"
    job.write("end")
    job.end()
    for reader in readers:
        await reader.sees_to_the_end("one\nend")
    assert descriptors - len(os.listdir("/proc/self/fd")) == 200
