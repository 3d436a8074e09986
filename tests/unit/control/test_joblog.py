"""From bytes to lines: the same text however the bytes arrive, each line once."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.control import joblog
from airflow_provider.runtime.control.joblog import MAX_RECORD_BYTES, JobLog

EUROS = ("€" * 999 + "\n").encode() * 100 + b"\x80\xff\x00 raw\n"
"""Case K19."""


def text_of(pieces: Iterable[bytes], log: JobLog | None = None, at: int = 0) -> list[str]:
    """Return the lines that come out when the bytes come in like this."""
    log = log or JobLog()
    records: list[str] = []
    for piece in pieces:
        records += log.feed(at, piece)
        at += len(piece)
    records += log.finish()
    assert (log.position or 0) == at
    assert (log.written or 0) == at
    return [line for record in records for line in record.split("\n")]


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[begin : begin + size] for begin in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 3, 4096])
def test_no_character_is_lost_at_any_chunk_size(size: int) -> None:
    lines = text_of(cut(EUROS, size))
    assert lines[:-1] == ["€" * 999] * 100
    assert lines[-1] == "��\\x00 raw"


@pytest.fixture(scope="class")
def _tiny_records() -> Iterator[None]:
    """Records of 16 bytes, so that short examples reach the limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joblog, "MAX_RECORD_BYTES", 16)
        yield


BYTES = st.lists(
    st.one_of(
        st.binary(max_size=9),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"x" * 15, b"y" * 16, b"z" * 17, b"\xe2\x82", b"\0"]),
        st.text(max_size=9).map(lambda text: text.encode("utf-8", "surrogatepass")),
    ),
    max_size=12,
).map(b"".join)


@pytest.mark.usefixtures("_tiny_records")
class TestWhateverTheBytes:
    @given(data=BYTES, cuts=st.lists(st.integers(0, 200)))
    def test_the_text_does_not_depend_on_how_they_are_cut(self, data: bytes, cuts: list[int]) -> None:
        places = sorted({0, len(data), *(place for place in cuts if place < len(data))})
        pieces = [data[begin:end] for begin, end in itertools.pairwise(places)]
        whole = text_of([data])
        assert text_of(pieces) == whole
        assert text_of(cut(data, 1)) == whole

    @given(text=st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="�"), max_size=80))
    def test_valid_text_of_any_length_comes_out_unchanged(self, text: str) -> None:
        for size in (1, 2, 3, 4096):
            assert "".join(text_of(cut(text.encode(), size))) == text

    @given(data=BYTES, size=st.integers(1, 20), chance=st.randoms(use_true_random=False))
    def test_chunks_that_repeat_or_overlap_are_written_once(
        self, data: bytes, size: int, chance: random.Random
    ) -> None:
        records: list[str] = []
        log, position = JobLog(), 0
        while position < len(data):
            begin = chance.randint(0, position)
            end = min(len(data), position + size)
            records += log.feed(begin, data[begin:end])
            records += log.feed(begin, data[begin : begin + 3] if begin + 3 <= end else b"")
            position = end
        records += log.finish()
        assert [line for record in records for line in record.split("\n")] == text_of([data])

    @given(data=BYTES, stop=st.integers(0, 60))
    def test_a_later_reader_that_begins_at_written_gives_exactly_the_rest(
        self, data: bytes, stop: int
    ) -> None:
        first = JobLog()
        before = list(first.feed(0, data[:stop]))
        begin = first.written or 0
        again = JobLog()
        after = [*again.feed(begin, data[begin:]), *again.finish()]
        lines = [line for record in [*before, *after] for line in record.split("\n")]
        whole = text_of([data])
        if first._inside_line and lines != whole:
            # It begins inside a long line, of which but the newline is left; a new reader cannot know.
            assert lines.pop(sum(record.count("\n") + 1 for record in before)) == ""
        assert lines == whole

    @given(data=BYTES)
    def test_nothing_that_would_break_a_log_record_comes_out(self, data: bytes) -> None:
        for line in text_of([data]):
            assert not joblog._UNPRINTABLE.search(line)
            line.encode()  # no lone surrogates


def test_a_record_that_could_not_be_written_comes_again() -> None:
    log = JobLog()
    assert next(log.feed(0, b"one\ntwo\n")) == "one\ntwo"
    assert log.written == 0
    assert list(log.feed(8, b"three\n")) == ["one\ntwo\nthree"]
    assert list(log.last_lines) == ["one", "two", "three"]


def test_lines_count_as_written_when_the_next_record_is_asked_for() -> None:
    log = JobLog()
    records = log.feed(0, (b"x" * 40_000 + b"\n") * 2)
    next(records)
    assert log.written == 0
    next(records)
    assert log.written == 40_001


def test_missing_bytes_are_an_error_and_no_silent_gap() -> None:
    log = JobLog()
    list(log.feed(10, b"abc\n"))
    with pytest.raises(ValueError, match="goes on at byte 20, but byte 14"):
        log.feed(20, b"def\n")


def test_a_log_may_begin_anywhere() -> None:
    assert text_of([b"rest\n", b"more\n"], at=1000) == ["rest", "more"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"no newline at the end", ["no newline at the end"]),
        (b"a\n\n\nb\n", ["a", "", "", "b"]),
        (b"same\nsame\n", ["same", "same"]),
        (b"windows\r\nlines\r\n", ["windows", "lines"]),
        (b" 10%\r 50%\r100%\n", ["100%"]),
        (b" 10%\r 50%\r100%\r\n", ["100%"]),
        (b" 10%\r 50%\r", [" 50%"]),
        (b"\r\r\r\n", [""]),
        (b"tab\tand \x1b[31mred\x1b[0m\n", ["tab\tand \x1b[31mred\x1b[0m"]),
        (b"bell\x07 nul\x00 del\x7f\n", ["bell\\x07 nul\\x00 del\\x7f"]),
        ("Zeile\u2028 und \x85 bleiben\n".encode(), ["Zeile\u2028 und \x85 bleiben"]),
        (b"\xed\xa0\x80 surrogate\n", ["��� surrogate"]),
    ],
)
def test_lines_of_all_kinds(data: bytes, lines: list[str]) -> None:
    assert text_of([data]) == lines


@pytest.mark.parametrize("character", ["x", "ü", "€", "🦉"])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_long_line_is_cut_between_characters(character: str, extra: int) -> None:
    line = "a" * 5 + character * (2 * MAX_RECORD_BYTES // len(character.encode()) + extra)
    pieces = text_of([line.encode() + b"\nnext\n"])
    assert "".join(pieces[:-1]) == line
    assert pieces[-1] == "next"
    assert all(0 < len(piece.encode()) <= MAX_RECORD_BYTES for piece in pieces)


@pytest.mark.parametrize("begin", ["", "\r"])
@pytest.mark.parametrize("end", ["", "\r", "\n", "\r\n"])
def test_of_a_progress_bar_of_any_length_the_last_state_is_shown(begin: str, end: str) -> None:
    states = [f"{number:6d}/20000 |{'#' * 20}|" for number in range(20_000)]
    data = (begin + "\r".join(states) + end).encode()
    for size in (7, MAX_RECORD_BYTES, len(data)):
        log = JobLog()
        assert text_of(cut(data, size), log) == states[-1:]
        assert list(log.last_lines) == states[-1:]


def test_what_was_overwritten_counts_as_written() -> None:
    log = JobLog()
    assert list(log.feed(0, b"\r 10%" * 20_000)) == []
    assert 0 <= 100_000 - (log.written or 0) < MAX_RECORD_BYTES
    again = JobLog()
    assert [*again.feed(log.written or 0, b" 10%"), *again.finish()] == [" 10%"]


def test_a_failure_shows_the_last_twenty_lines_none_too_long() -> None:
    log = JobLog()
    text_of([b"".join(f"{number} {'x' * 600}\n".encode() for number in range(50))], log)
    assert [line.split()[0] for line in log.last_lines] == [str(number) for number in range(30, 50)]
    assert {len(line) for line in log.last_lines} == {500}


class Counting(bytearray):
    """What waits to be written; counts the bytes that are copied out of it."""

    copied = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        if not isinstance(place, slice):
            return found
        self.copied += len(found)
        return Counting(found)


def _pass_through(pieces: Iterable[bytes], log: JobLog) -> tuple[int, int]:
    """Return how many bytes went in and how many records came out."""
    at = records = 0
    for piece in pieces:
        for _ in log.feed(at, piece):
            records += 1
        at += len(piece)
    for _ in log.finish():
        records += 1
    assert (log.written or 0) == at
    return at, records


MIB = b"x" * (1 << 20)


@pytest.mark.parametrize(
    "pieces",
    [
        [MIB] * 50,
        [MIB * 50],
        [b"x" * 100] * 50_000,
        [b"\n" * (1 << 18)] * 8,
        [(b"y" * 65_535 + b"\r") * 16] * 20,
    ],
    ids=[
        "a line that comes by the MiB",
        "at once",
        "by the 100 bytes",
        "millions of tiny lines",
        "a wide bar",
    ],
)
def test_the_work_grows_with_the_size_of_the_log_and_no_faster(pieces: list[bytes]) -> None:
    log = JobLog()
    log._rest = rest = Counting()
    size, records = _pass_through(pieces, log)
    assert log._rest is rest
    assert rest.copied <= 2 * size, "each byte once for its record, once to look for a character's end"
    assert records == -(-size // MAX_RECORD_BYTES)


def test_memory_is_bounded_by_the_chunk_not_by_the_log() -> None:
    chunk = b"".join(b"%09d a line of the job\n" % number for number in range(8_000))
    tracemalloc.start()
    try:
        _pass_through((chunk for _ in range(20)), JobLog())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(chunk)
