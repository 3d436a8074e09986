"""Finding places in logs: the right ones, however long the log and its lines, without reading it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.agent.logs import lines as logs
from airflow_provider.runtime.agent.logs.lines import HEAD_BYTES, LastLines, Span, last_lines, marked_begin

GIB = 1 << 30


class Log:
    """A file that is open for reading."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.path = path
        self.handle = os.open(path, os.O_RDONLY)

    def write(self, data: bytes) -> None:
        self.path.write_bytes(data)

    def part(self, *, lines: int, skip: int = 0) -> bytes:
        data = self.path.read_bytes()
        begin, end = last_lines(self.handle, len(data), lines=lines, skip=skip)
        return data[begin:end]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    made = Log(tmp_path_factory.mktemp("log") / "run.log")
    yield made
    os.close(made.handle)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads."""
    sizes: list[int] = []
    pread = os.pread

    def counting(handle: int, size: int, offset: int) -> bytes:
        data = pread(handle, size, offset)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(logs.os, "pread", counting)
    return sizes


@pytest.mark.parametrize(
    ("data", "lines", "skip", "part"),
    [
        (b"", 1, 0, b""),
        (b"", 1, 1, b""),
        (b"\n", 1, 0, b"\n"),
        (b"\n", 1, 1, b""),
        (b"\n\n", 1, 0, b"\n"),
        (b"a\nb\nc\n", 1, 0, b"c\n"),
        (b"a\nb\nc", 1, 0, b"c"),
        (b"a\nb\nc", 2, 0, b"b\nc"),
        (b"a\nb\nc", 3, 0, b"a\nb\nc"),
        (b"a\nb\nc", 2**31 - 1, 0, b"a\nb\nc"),
        (b"a\nb\nc", 1, 1, b"b\n"),
        (b"a\nb\nc", 9, 2, b"a\n"),
        (b"a\nb\nc\n", 1, 2, b"a\n"),
        (b"a\nb\nc\n", 1, 3, b""),
        (b"a\nb\nc\n", 1, 2**31 - 1, b""),
        (b"a\r\nb\r 50%\r100%\nc\r\n", 2, 0, b"b\r 50%\r100%\nc\r\n"),
    ],
)
def test_a_line_ends_with_its_newline_and_a_last_one_without_counts_too(
    log: Log, data: bytes, lines: int, skip: int, part: bytes
) -> None:
    log.write(data)
    assert log.part(lines=lines, skip=skip) == part


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
@given(
    data=st.text("a\n\r", max_size=60).map(str.encode),
    lines=st.integers(1, 12),
    skip=st.integers(0, 12),
)
def test_the_place_of_the_blocks_makes_no_difference(
    log: Log, block: int, data: bytes, lines: int, skip: int
) -> None:
    log.write(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_BLOCK_BYTES", block)
        all_lines = [line + b"\n" for line in data.split(b"\n")]
        all_lines[-1] = all_lines[-1][:-1]
        if all_lines[-1] == b"":
            del all_lines[-1]
        kept = all_lines[: max(0, len(all_lines) - skip)]
        assert log.part(lines=lines, skip=skip) == b"".join(kept[-lines:])


@pytest.mark.parametrize(("lines", "skip"), [(0, 0), (-1, 0), (1, -1)])
def test_other_numbers_of_lines_are_a_mistake_of_the_caller(log: Log, lines: int, skip: int) -> None:
    with pytest.raises(ValueError, match="at least 1 and 0"):
        last_lines(log.handle, 0, lines=lines, skip=skip)


def test_what_is_written_meanwhile_does_not_count(log: Log) -> None:
    log.write(b"a\nb\nc\nd\n")
    assert last_lines(log.handle, 4, lines=1) == Span(2, 4)


def test_a_log_that_is_truncated_meanwhile_is_no_error(log: Log) -> None:
    log.write(b"a\nb\n")
    assert last_lines(log.handle, 10 << 20, lines=2) == Span(2, 10 << 20)
    assert last_lines(log.handle, 10 << 20, lines=9) == Span(0, 10 << 20)


def test_of_ten_gigabytes_only_the_end_is_read(log: Log, read: list[int]) -> None:
    log.write(b"")
    with log.path.open("r+b") as file:
        file.seek(10 * GIB)
        file.write(b"\n" + b"".join(b"line %d\n" % number for number in range(1000)))
        size = file.tell()
    span = last_lines(log.handle, size, lines=20, skip=10)
    assert os.pread(log.handle, span.end - span.begin, span.begin) == b"".join(
        b"line %d\n" % number for number in range(970, 990)
    )
    assert sum(read) <= 2 * logs._BLOCK_BYTES
    os.truncate(log.path, 0)


def test_k84_a_line_of_six_megabytes_is_found_block_by_block(log: Log, read: list[int]) -> None:
    log.write(b"first\n" + b"x" * (6 << 20) + b"\nlast\n")
    size = log.path.stat().st_size
    assert last_lines(log.handle, size, lines=2) == Span(6, size)
    assert last_lines(log.handle, size, lines=1, skip=1) == Span(6, size - 5)
    assert max(read) <= logs._BLOCK_BYTES


def test_a_search_can_be_left_after_any_block(log: Log, read: list[int]) -> None:
    log.write(b"x" * (3 * logs._BLOCK_BYTES))
    search = LastLines(log.handle, 3 * logs._BLOCK_BYTES, lines=1)
    assert search.read_block() is None
    assert len(read) == 1


@pytest.mark.parametrize(
    ("head", "begin"),
    [
        (b"", None),
        (b"hello\n", None),
        (b"Waiting for task resources on 1 node.\nhello\n", 0),
        (b"SKYPILOT_JOB_ID <1>\n\x1b[2mWaiting for task resources on 2 nodes.\x1b[0m\nhello\n", 20),
        (b"connecting\r\nWaiting for task resources on 1 node.\n", 12),
        (b"10%\r20%\rWaiting for task resources on 1 node.\n", 8),
        (b"a\nWaiting for task resources on 1 node.\nWaiting for task resources on it\n", 2),
        (b"Waiting for task resources\n", None),
    ],
)
def test_output_begins_at_the_first_line_with_the_marker(log: Log, head: bytes, begin: int | None) -> None:
    log.write(head)
    assert marked_begin(log.handle) == begin


def test_a_marker_is_looked_for_at_the_head_of_a_log_only(log: Log, read: list[int]) -> None:
    log.write(b"x\n" * HEAD_BYTES + b"Waiting for task resources on 1 node.\n")
    assert marked_begin(log.handle) is None
    assert read == [HEAD_BYTES]
