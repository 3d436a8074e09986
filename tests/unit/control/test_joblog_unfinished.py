"""Lines that stay unfinished for long: prompts and slow lines in pieces, of progress bars the newest state."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.control.joblog import PATIENCE_SECONDS, JobLog

LONG = PATIENCE_SECONDS


class Clocked:
    """A job's log that is listened to, with what was written of it."""

    def __init__(self, at: int = 0) -> None:
        self.log = JobLog()
        self.at = at
        self.now = 1000.0
        self.records: list[str] = []

    def comes(self, data: bytes, *, after: float = 0.0) -> list[str]:
        """Return what is written when the bytes come."""
        before = self.passes(after)
        return [*before, *self._written(self.log.feed(self.at, data), data)]

    def passes(self, seconds: float) -> list[str]:
        """Return what is written while time passes."""
        self.now += seconds
        return self._written(self.log.overdue(self.now))

    def ends(self) -> list[str]:
        return self._written(self.log.finish())

    def _written(self, records: Iterable[str], data: bytes = b"") -> list[str]:
        self.at += len(data)
        written = [*records, *self.log.overdue(self.now)]
        self.records += written
        return written


@pytest.fixture
def job() -> Clocked:
    return Clocked()


class TestSlowLines:
    def test_k71_what_there_is_of_one_is_seen_within_five_seconds_and_its_rest_later(
        self, job: Clocked
    ) -> None:
        assert LONG < 5
        assert job.comes(b"before\nSTART... ") == ["before"]
        assert job.passes(LONG - 0.1) == []
        assert job.log.written == 7
        assert job.passes(0.1) == ["START... "]
        assert job.log.written == job.at
        assert job.passes(1000) == []
        assert job.comes(b"done\nnext\n") == ["done\nnext"]
        assert list(job.log.last_lines) == ["before", "START... ", "done", "next"]

    def test_its_end_makes_no_line_of_its_own(self, job: Clocked) -> None:
        job.comes(b"START")
        assert job.passes(LONG) == ["START"]
        assert job.comes(b"\n") == []
        assert job.log.written == 6
        assert job.comes(b"\nnext\n") == ["\nnext"]

    def test_a_line_that_is_finished_in_time_stays_whole(self, job: Clocked) -> None:
        for _ in range(10):
            assert job.comes(b"on", after=LONG / 3) == []
            assert job.comes(b"e\n", after=LONG / 3) == ["one"]

    def test_the_time_runs_from_the_lines_first_byte_on(self, job: Clocked) -> None:
        written = []
        for _ in range(60):
            written += job.comes(b".", after=LONG / 10)
        assert written == ["." * 11] * 5
        assert job.ends() == ["." * 5]

    def test_equal_pieces_are_all_written(self, job: Clocked) -> None:
        job.comes(b"ab")
        assert job.passes(LONG) == ["ab"]
        job.comes(b"ab")
        assert job.passes(LONG) == ["ab"]
        assert job.comes(b"ab\n") == ["ab"]

    def test_a_character_is_not_cut(self, job: Clocked) -> None:
        job.comes(b"a\xe2\x82")
        assert job.passes(LONG) == ["a"]
        assert job.log.written == 1
        assert job.passes(LONG * 2) == []
        job.comes(b"\xacb")
        assert job.passes(LONG) == ["€b"]

    def test_a_reader_that_comes_later_gives_the_rest(self, job: Clocked) -> None:
        job.comes(b"START... ")
        job.passes(LONG)
        later = Clocked(at=job.log.written or 0)
        assert later.comes(b"done\n") == ["done"]

    def test_a_piece_that_could_not_be_written_comes_again(self, job: Clocked) -> None:
        job.comes(b"one\nSTART")
        job.now += LONG
        assert next(job.log.overdue(job.now)) == "START"
        assert job.log.written == 4
        assert job.passes(0.5) == ["START"]
        assert job.log.written == 9

    def test_lines_that_could_not_be_written_are_not_cut(self) -> None:
        log = JobLog()
        assert next(log.feed(0, b"one\ntwo\nthr")) == "one\ntwo"
        assert list(log.overdue(0)) == []
        assert list(log.overdue(LONG)) == ["one\ntwo"]
        assert list(log.feed(11, b"ee\n")) == ["three"]


class TestProgressBars:
    """A carriage return before each state, as tqdm prints, or after it."""

    @pytest.mark.parametrize("form", ["\r{}", "{}\r"])
    def test_the_newest_state_is_seen_now_and_then(self, job: Clocked, form: str) -> None:
        written = []
        for state in range(100):
            written += job.comes(form.format(f"{state:3d}%").encode(), after=LONG / 10)
        seen = [int(record[:-1]) for record in written]
        assert 8 <= len(seen) <= 10
        assert seen == sorted(set(seen))
        assert 0 < seen[0] <= 11
        assert job.comes(form.format("100%").encode() + b"\nnext\n") == ["100%\nnext"]

    @pytest.mark.parametrize("form", ["\r{}", "{}\r"])
    def test_a_slow_one_shows_each_state_once(self, job: Clocked, form: str) -> None:
        for state in (" 10%", " 50%", "100%"):
            assert job.comes(form.format(state).encode()) == []
            assert job.passes(LONG) == [state]
            assert job.passes(LONG) == []
        assert job.comes(b"\nnext\n") == ["next"]
        assert list(job.log.last_lines) == ["100%", "next"], "a state takes the place of the one before it"

    @pytest.mark.parametrize("form", ["\r{}", "{}\r"])
    def test_a_state_that_did_not_change_is_not_written_again(self, job: Clocked, form: str) -> None:
        for _ in range(5):
            job.comes(form.format(" 50%").encode())
            job.passes(LONG)
        assert job.records == [" 50%"]
        assert job.log.written == job.at
        assert job.comes(form.format(" 50%").encode() + b"\n") == []
        assert job.comes(b" 50%\n") == [" 50%"], "another line"

    def test_the_last_state_is_written_once_when_it_comes_with_the_end(self, job: Clocked) -> None:
        job.comes(b"\r 50%")
        assert job.passes(LONG) == [" 50%"]
        assert job.comes(b"\r100%\n") == ["100%"]

    def test_the_last_state_is_written_once_when_the_job_ends(self, job: Clocked) -> None:
        job.comes(b"\r 50%")
        job.passes(LONG)
        job.comes(b"\r100%")
        assert job.ends() == ["100%"]
        assert job.ends() == []

    def test_a_fast_one_shows_states_that_are_complete(self, job: Clocked) -> None:
        job.comes(b"\r 10%\r 11%\r 1")
        assert job.passes(LONG) == [" 11%"]
        assert job.comes(b"2%") == []
        assert job.passes(LONG) == [" 12%"]

    def test_one_that_fills_records_is_not_written_more_often(self, job: Clocked) -> None:
        for step in range(13):
            states = b"".join(b"\r%06d" % number for number in range(step * 50_000, (step + 1) * 50_000))
            job.comes(states, after=LONG / 4)
            assert len(job.records) == step // 4
        assert job.records == ["199998", "399998", "599998"]

    def test_one_that_was_wiped_away_leaves_no_empty_line(self, job: Clocked) -> None:
        job.comes(b"\r 50%\r     \r")
        assert job.passes(LONG) == []
        assert job.comes(b"ne") == []
        assert job.comes(b"xt\n") == ["next"]

    def test_a_line_written_in_pieces_that_is_overwritten_by_its_own_end_is_no_state(
        self, job: Clocked
    ) -> None:
        job.comes(b"ab")
        job.passes(LONG)
        job.comes(b"c")
        assert job.passes(LONG) == ["c"]
        assert job.comes(b"\rc\n") == ["c"]

    def test_a_reader_that_comes_later_repeats_no_byte(self, job: Clocked) -> None:
        job.comes(b"\r 10%\r 11%\r 12%")
        job.passes(LONG)
        data = b"\r 10%\r 11%\r 12%\r100%\nnext\n"
        written = job.log.written or 0
        assert written == 11
        assert Clocked(at=written).comes(data[written:]) == ["100%\nnext"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\r 10%", b" 10%\r", b"\xe2\x82", b"\xac"]),
        st.sampled_from([0.0, 0.1, LONG, 10 * LONG]),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_without_carriage_returns_no_text_is_lost_or_doubled(steps: list[tuple[bytes, float]]) -> None:
    job = Clocked()
    data = b""
    for piece, seconds in steps:
        piece = piece.replace(b"\r", b"")
        data += piece
        job.comes(piece, after=seconds)
    job.ends()
    assert "".join(job.records).replace("\n", "") == data.decode("utf-8", "replace").replace("\n", "")
    assert job.log.written in (None, len(data))


@given(steps=STEPS)
def test_the_last_state_of_every_line_is_written(steps: list[tuple[bytes, float]]) -> None:
    """At least as the end of a record's line: a part of it may have been written before."""
    job = Clocked()
    data = b""
    for piece, seconds in steps:
        data += piece
        job.comes(piece, after=seconds)
    job.ends()
    assert job.log.written in (None, len(data))
    text = "".join(job.records).replace("\n", "")
    for line in data.decode("utf-8", "replace").split("\n"):
        state = line.rstrip("\r").rpartition("\r")[2]
        place = text.find(state)
        assert place != -1 or not state.strip()
        text = text[place + len(state) :] if state.strip() else text


@given(steps=STEPS, stop=st.integers(0, 30))
def test_a_later_reader_leaves_nothing_out(steps: list[tuple[bytes, float]], stop: int) -> None:
    steps = [(piece.replace(b"\r", b""), seconds) for piece, seconds in steps]
    first = Clocked()
    for piece, seconds in steps[:stop]:
        first.comes(piece, after=seconds)
    data = b"".join(piece for piece, _ in steps)
    later = Clocked(at=first.log.written or 0)
    later.comes(data[later.at :])
    later.ends()
    text = "".join([*first.records, *later.records]).replace("\n", "")
    assert text == data.decode("utf-8", "replace").replace("\n", "")
