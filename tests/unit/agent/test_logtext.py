"""From a log's bytes to pieces of text: nothing lost, nothing cut in two, and bars collapsed."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.agent.logs import text as logtext
from airflow_provider.runtime.agent.logs.text import MAX_PIECE_CHARACTERS, LogText


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[begin : begin + size] for begin in range(0, len(data), size))


def seen(text: str) -> str:
    """Return what a reader has before him in the end: of each line its last state."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


BYTES = st.lists(
    st.one_of(
        st.binary(max_size=9),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"x" * 15, b"y" * 16, b"z" * 17, b"\xe2\x82", b"\0"]),
        st.text(max_size=9).map(lambda text: text.encode("utf-8", "surrogatepass")),
    ),
    max_size=12,
).map(b"".join)

CUTS = st.lists(st.tuples(st.integers(0, 100), st.booleans()))
"""Places in the data, and whether there is a silence."""


def pieces_of(data: bytes, cuts: list[tuple[int, bool]]) -> list[str]:
    silences = dict(cuts)
    places = sorted({0, len(data), *(place for place in silences if place < len(data))})
    text = LogText()
    pieces: list[str] = []
    for begin, end in itertools.pairwise(places):
        pieces += text.feed(data[begin:end])
        if silences.get(end):
            pieces += text.flush()
            assert not text.waiting
    return pieces + text.finish()


@pytest.fixture(scope="class")
def _tiny_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logtext, "MAX_PIECE_CHARACTERS", 16)
        yield


@pytest.mark.usefixtures("_tiny_pieces")
class TestWhateverTheBytes:
    @given(data=BYTES.map(lambda data: data.replace(b"\r", b"")), cuts=CUTS)
    def test_without_carriage_returns_the_pieces_are_the_log(
        self, data: bytes, cuts: list[tuple[int, bool]]
    ) -> None:
        assert "".join(pieces_of(data, cuts)) == data.decode("utf-8", "replace")

    @given(data=BYTES, cuts=CUTS)
    def test_what_is_seen_in_the_end_does_not_depend_on_cuts_and_silences(
        self, data: bytes, cuts: list[tuple[int, bool]]
    ) -> None:
        assert seen("".join(pieces_of(data, cuts))) == seen(data.decode("utf-8", "replace"))

    @given(data=BYTES, cuts=CUTS)
    def test_every_piece_is_short_valid_and_not_empty(
        self, data: bytes, cuts: list[tuple[int, bool]]
    ) -> None:
        for piece in pieces_of(data, cuts):
            assert 0 < len(piece) <= 16
            piece.encode()

    @given(data=BYTES, size=st.integers(1, 20))
    def test_all_that_is_a_whole_line_comes_at_once(self, data: bytes, size: int) -> None:
        text, told, given_out = LogText(), b"", ""
        for part in cut(data, size):
            told += part
            given_out += "".join(text.feed(part))
            assert given_out.count("\n") == told.count(b"\n")


@pytest.mark.parametrize("size", [1, 2, 3, 4096])
def test_no_character_is_cut_between_two_pieces(size: int) -> None:
    euros = ("€" * 20_000 + "🦉").encode()
    assert (
        "".join(pieces_of(euros, [(place, True) for place in range(0, len(euros), size)])) == euros.decode()
    )


def test_half_a_character_waits_for_its_rest_and_is_shown_as_broken_at_the_end() -> None:
    text = LogText()
    assert text.feed(b"a\xe2\x82") == []
    assert text.flush() == ["a"]
    assert text.feed(b"\xacb\xe2") == []
    assert text.finish() == ["€b�"]


def test_a_prompt_comes_after_a_silence_and_the_rest_of_its_line_after_it() -> None:
    text = LogText()
    assert text.feed(b"one\ncontinue? ") == ["one\n"]
    assert text.waiting
    assert text.flush() == ["continue? "]
    assert not text.waiting
    assert text.flush() == []
    assert text.feed(b"yes\n") == ["yes\n"]
    assert text.finish() == []


def test_of_a_progress_bar_that_comes_at_once_the_last_state_is_left() -> None:
    text = LogText()
    assert text.feed(b"begin\n 10%\r 50%\r100%\nend\n") == ["begin\n100%\nend\n"]


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        # as tqdm draws
        (
            [b"\r 10%\r 11%", b"\r 50%", b"\r 60%\r 70%", b"\r100%\n"],
            [" 11%", "\r 50%", "\r 70%", "\r100%\n"],
        ),
        # as pip and wget do
        (
            [b" 10%\r 11%\r", b" 50%\r", b" 60%\r 70%\r", b"100%\r\n"],
            [" 11%", "\r 50%", "\r 70%", "\r100%\n"],
        ),
        # its end
        ([b" 99%\r100%", b"\n", b"next\n"], ["100%", "\n", "next\n"]),
        ([b" 99%\r100%", b"\r\n", b"next\n"], ["100%", "\n", "next\n"]),
        ([b" 99%\r100%\r", b"\n", b"next\n"], ["100%", "\n", "next\n"]),
        ([b"100%", b"\r", b""], ["100%"]),
    ],
)
def test_a_bar_that_was_shown_is_overwritten(states: list[bytes], shown: list[str]) -> None:
    text = LogText()
    pieces: list[str] = []
    for state in states:
        pieces += text.feed(state) + text.flush()
    assert pieces + text.finish() == shown


def test_a_line_that_overwrites_itself_is_known_as_one() -> None:
    text = LogText()
    text.feed(b"plain")
    assert not text.rewritten
    text.feed(b"\r50%\r")
    assert text.rewritten
    text.flush()
    text.feed(b"60%")
    assert text.rewritten
    text.feed(b"\nplain")
    assert not text.rewritten


def test_lines_of_windows_are_lines() -> None:
    text = LogText()
    assert text.feed(b"one\r\ntwo\r") == ["one\n"]
    assert text.feed(b"\nthree\r\n") == ["two\nthree\n"]


def test_pieces_end_at_lines_where_lines_are_short_enough() -> None:
    data = b"".join(b"%07d\n" % number for number in range(5000))
    pieces = LogText().feed(data)
    assert "".join(pieces) == data.decode()
    assert all(piece.endswith("\n") and len(piece) <= MAX_PIECE_CHARACTERS for piece in pieces)
    assert len(pieces) == 3


def test_k84_a_line_of_six_megabytes_comes_in_pieces_as_it_grows() -> None:
    text = LogText()
    line = "€x" * (3 << 20)
    shown = 0
    for block in cut(line.encode(), 65_536):
        for piece in text.feed(block):
            assert len(piece) <= MAX_PIECE_CHARACTERS
            shown += len(piece)
    shown += sum(map(len, text.feed(b"\n")))
    assert shown == len(line) + 1


@pytest.mark.parametrize(
    "block", [b"x" * 65_536, b"\r 42% |####   |" * 4096, b"\r" * 65_536], ids=["a line", "a bar", "returns"]
)
def test_memory_does_not_grow_with_the_line(block: bytes) -> None:
    text = LogText()
    tracemalloc.start()
    try:
        for _ in range(100):
            text.feed(block)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 256 * 1024
    assert peak < 4 << 20
