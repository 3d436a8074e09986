"""Following a job over streams that break: every line once, acknowledged when it is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from airflow_provider.runtime.client.base import Heartbeat, JobState, LinkLost, LogBytes, Owner
from airflow_provider.runtime.control import follower as module
from airflow_provider.runtime.control import joblog
from airflow_provider.runtime.control.follower import Follower
from airflow_provider.runtime.errors import Superseded
from tests.unit.control.scripted import (
    BREAK,
    RUNNING,
    SUCCEEDED,
    Lines,
    ScriptedClient,
    ScriptedStream,
    until,
)

OWNER = Owner("try-1", 1)


@pytest.fixture
async def sink() -> Lines:
    return Lines()


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def _read(follower: Follower, client: ScriptedClient) -> list[JobState | Heartbeat]:
    return [message async for message in follower.events(client, OWNER)]


def _log(offset: int, data: bytes) -> LogBytes:
    return LogBytes(offset, data)


async def test_the_log_is_written_and_the_states_come_out(sink: Lines) -> None:
    client = ScriptedClient([RUNNING, _log(0, b"one\ntw"), Heartbeat(), _log(6, b"o\nend"), SUCCEEDED])
    messages = await _read(Follower(1, sink), client)
    assert sink.lines == ["one", "two", "end"]
    assert [message for message in messages if isinstance(message, JobState)] == [RUNNING, SUCCEEDED]
    assert client.offsets == [None]
    assert client.streams[0].closed


async def test_it_goes_on_after_a_break_where_it_was(sink: Lines) -> None:
    client = ScriptedClient(
        [RUNNING, _log(100, b"one\ntwo\nhal"), BREAK],
        [RUNNING, BREAK],
        [_log(111, b"f\nsame\n"), _log(118, b"same\n"), BREAK],
        [_log(118, b"same\nlast\n"), SUCCEEDED],
    )
    follower = Follower(1, sink)
    for _ in range(3):
        with pytest.raises(LinkLost):
            await _read(follower, client)
    await _read(follower, client)
    assert client.offsets == [None, 111, 111, 123]
    assert sink.lines == ["one", "two", "half", "same", "same", "last"]
    assert all(stream.closed for stream in client.streams)


async def test_a_stream_that_ends_before_the_job_is_a_broken_one(sink: Lines) -> None:
    with pytest.raises(LinkLost, match="ended before the job"):
        await _read(Follower(1, sink), ScriptedClient([RUNNING]))


async def test_nothing_is_read_while_the_sink_is_busy(sink: Lines) -> None:
    sink.gate.clear()
    client = ScriptedClient([_log(0, b"one\n"), _log(4, b"two\n"), SUCCEEDED])
    reading = asyncio.create_task(_read(Follower(1, sink), client))
    await sink.writing.wait()
    await asyncio.sleep(0.02)
    assert client.streams[0].taken == 1
    sink.gate.set()
    await reading
    assert sink.lines == ["one", "two"]


async def test_what_is_written_is_acknowledged_after_it_settled_and_within_a_second(
    sink: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.05)
    hold, last = asyncio.Event(), asyncio.Event()
    client = ScriptedClient([_log(0, b"one\nha"), hold, _log(6, b"lf\n"), last, SUCCEEDED])
    reading = asyncio.create_task(_read(Follower(1, sink), client))
    await sink.writing.wait()
    (stream,) = client.streams
    assert 4 not in stream.acknowledged, "not before it had time to reach the log"
    await until(lambda: stream.acknowledged[-1:] == [4])
    hold.set()
    await until(lambda: stream.acknowledged[-1] == 9)
    last.set()
    await reading


async def test_nothing_is_acknowledged_that_the_sink_has_not_taken(
    sink: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.01)
    sink.gate.clear()
    client = ScriptedClient([_log(50, b"one\n"), SUCCEEDED])
    reading = asyncio.create_task(_read(Follower(1, sink), client))
    await sink.writing.wait()
    await asyncio.sleep(0.06)
    assert client.streams[0].acknowledged in ([], [50])
    sink.gate.set()
    await reading


@pytest.mark.parametrize("error", [LinkLost("reset"), Superseded("somebody else")])
async def test_an_acknowledgement_that_fails_is_left_to_who_reads(
    sink: Lines, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.01)
    hold = asyncio.Event()
    client = ScriptedClient([_log(0, b"one\n"), hold, SUCCEEDED])
    reading = asyncio.create_task(_read(Follower(1, sink), client))
    await sink.writing.wait()
    client.streams[0].acknowledging = [error]
    await until(lambda: not client.streams[0].acknowledging)
    hold.set()
    await reading


async def test_a_line_that_the_sink_refused_is_written_on_the_next_call(sink: Lines) -> None:
    sink.errors = [OSError("disk full")]
    client = ScriptedClient([_log(0, b"one\n"), SUCCEEDED], [_log(4, b"two\n"), SUCCEEDED])
    follower = Follower(1, sink)
    with pytest.raises(OSError, match="disk full"):
        await _read(follower, client)
    await _read(follower, client)
    assert client.offsets == [None, 4]
    assert sink.lines == ["one", "two"]


async def test_a_reader_that_is_cancelled_finishes_the_line_in_hand(sink: Lines) -> None:
    sink.gate.clear()
    client = ScriptedClient([_log(0, b"one\n"), SUCCEEDED], [_log(4, b"two\n"), SUCCEEDED])
    follower = Follower(1, sink)
    reading = asyncio.create_task(_read(follower, client))
    await sink.writing.wait()
    reading.cancel()
    await asyncio.sleep(0.01)
    reading.cancel()
    await asyncio.sleep(0.01)
    assert not reading.done()
    sink.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert follower.log.written == 4
    await _read(follower, client)
    assert sink.lines == ["one", "two"]


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblog, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(module, "_LISTEN_SECONDS", 0.01)
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.01)


@pytest.mark.usefixtures("_impatient")
async def test_k71_a_line_that_stays_unfinished_is_seen_and_acknowledged_and_its_rest_comes_later(
    sink: Lines,
) -> None:
    hold = asyncio.Event()
    client = ScriptedClient([_log(0, b"START... "), hold, _log(9, b"done\nnext\n"), SUCCEEDED])
    reading = asyncio.create_task(_read(Follower(1, sink), client))
    await until(lambda: sink.lines == ["START... "])
    await until(lambda: client.streams[0].acknowledged[-1:] == [9])
    hold.set()
    await reading
    assert sink.lines == ["START... ", "done", "next"]


@pytest.mark.usefixtures("_impatient")
async def test_a_progress_bar_that_never_pauses_is_seen_now_and_then(sink: Lines) -> None:
    class Bar(ScriptedClient):
        async def follow(self, job_id: int, owner: Owner, *, offset: int | None) -> ScriptedStream:
            return BarStream([])

    class BarStream(ScriptedStream):
        async def __aiter__(self) -> AsyncIterator[LogBytes | JobState | Heartbeat]:
            while len(sink.lines) < 4:
                yield _log(7 * self.taken, b"\r%06d" % self.taken)
                self.taken += 1
                await asyncio.sleep(0.002)
            yield _log(7 * self.taken, b"\rready!\n")
            yield SUCCEEDED

    await asyncio.wait_for(_read(Follower(1, sink), Bar()), 20)
    *states, last = sink.lines
    assert last == "ready!"
    numbers = [int(state) for state in states]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > 4 * len(numbers)


@pytest.fixture
def _half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblog, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(module, "_LISTEN_SECONDS", 0.02)


@pytest.mark.usefixtures("_half_a_second")
async def test_while_the_link_is_broken_no_line_is_overdue(sink: Lines) -> None:
    hold = asyncio.Event()
    client = ScriptedClient(
        [_log(0, b"one\nhal"), BREAK], [RUNNING, hold, Heartbeat(), _log(7, b"f\n"), SUCCEEDED]
    )
    follower = Follower(1, sink)
    with pytest.raises(LinkLost):
        await _read(follower, client)
    await asyncio.sleep(0.6)
    reading = asyncio.create_task(_read(follower, client))
    await asyncio.sleep(0.1)
    hold.set()
    await reading
    assert sink.lines == ["one", "half"]


@pytest.mark.usefixtures("_half_a_second")
async def test_while_the_task_log_is_slow_no_line_is_overdue(sink: Lines) -> None:
    sink.gate.clear()
    client = ScriptedClient([_log(0, b"one\nh"), _log(5, b"al"), _log(7, b"f\n"), SUCCEEDED])
    reading = asyncio.create_task(_read(Follower(1, sink), client))
    await sink.writing.wait()
    await asyncio.sleep(0.6)
    sink.gate.set()
    await reading
    assert sink.lines == ["one", "half"]


@pytest.mark.usefixtures("_half_a_second")
async def test_a_pause_of_the_whole_process_makes_no_line_overdue(sink: Lines) -> None:
    hold = asyncio.Event()
    client = ScriptedClient([_log(0, b"one\nhal"), hold, _log(7, b"f\n"), SUCCEEDED])
    reading = asyncio.create_task(_read(Follower(1, sink), client))
    await until(lambda: sink.lines == ["one"])
    time.sleep(0.6)  # noqa: ASYNC251 - the event loop stands still
    for _ in range(5):
        await asyncio.sleep(0)  # what was due meanwhile is done before the network is read
    hold.set()
    await reading
    assert sink.lines == ["one", "half"]


@pytest.mark.usefixtures("_impatient")
async def test_a_piece_of_a_line_in_hand_is_finished_when_the_reader_is_cancelled(sink: Lines) -> None:
    hold = asyncio.Event()
    client = ScriptedClient([_log(0, b"START"), hold], [_log(5, b" end\n"), SUCCEEDED])
    sink.gate.clear()
    follower = Follower(1, sink)
    reading = asyncio.create_task(_read(follower, client))
    await sink.writing.wait()
    reading.cancel()
    await asyncio.sleep(0.01)
    assert not reading.done()
    sink.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert follower.log.written == 5
    await _read(follower, client)
    assert client.offsets == [None, 5]
    assert sink.lines == ["START", " end"]


async def test_closing_half_way_closes_the_stream(sink: Lines) -> None:
    client = ScriptedClient([RUNNING, _log(0, b"one\n"), SUCCEEDED])
    messages = Follower(1, sink).events(client, OWNER)
    await anext(messages)
    await messages.aclose()
    assert client.streams[0].closed
