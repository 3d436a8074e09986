"""What of a skylet's words is the log, and where each byte of it is."""

from __future__ import annotations

import re
import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.client.skylet_text import SkyletText

WAITING = "INFO: Waiting 1s for the logs to be written...\n"
MARKER = "\x1b[2mWaiting for task resources on 1 node.\x1b[0m\n"
FINISHED = "\x1b[0m\x1b[32m✓ Job finished (status: SUCCEEDED).\x1b[0m\n"
IDLE = "\x16\r"


def read(pieces: list[str], *, skip: int = 0, size: int | None = None) -> bytes:
    text = SkyletText(skip)
    data = b"".join(text.feed(piece) for piece in pieces)
    return data + text.finish(size)


def test_what_the_skylet_says_around_the_log_is_no_part_of_it() -> None:
    assert read([WAITING + WAITING, MARKER + "a\n", "b\n" + FINISHED]) == b"a\nb\n"
    assert read([WAITING, "ERROR: Logs for job 1 (status: PENDING) does not exist.\n"]) == b""


def test_a_job_that_prints_what_the_skylet_says_keeps_it() -> None:
    log = MARKER + "a\n" + FINISHED + "b\n" + FINISHED
    expected = (MARKER + "a\n" + FINISHED + "b\n").encode()
    assert read([MARKER + log + FINISHED], size=len(log.encode())) == log.encode()
    assert read([MARKER + log]) == expected, "without a size the last line is the skylet's"


def test_the_skylets_word_never_fills_up_a_log_that_is_not_all_there() -> None:
    assert read([MARKER + "a\n" + FINISHED], size=9) == b"a\n"
    assert (
        read([MARKER + "a\nJob finished (status: FAILED).\n"], size=33)
        == b"a\nJob finished (status: FAILED).\n"
    )


def test_a_last_line_without_its_end_is_told_from_the_skylets_words() -> None:
    assert read([MARKER + "half" + FINISHED]) == b"half"
    assert read([MARKER + "half" + FINISHED], size=4) == b"half"


def test_idle_marks_go_however_the_skylet_reads_them() -> None:
    assert read([MARKER, IDLE, IDLE + "a\n", IDLE, "b"]) == b"a\nb"
    assert read([MARKER + "\x16\n\x16\na\n\x16\nb"]) == b"a\nb"
    assert read([MARKER + "a\x16\rb"]) == b"a\x16\rb", "in the midst of a line it is the job's own"


def test_a_line_of_a_million_colours_takes_a_moment() -> None:
    begun = time.process_time()
    colours = "\x1b[0m" * 250_000
    assert read([MARKER + colours + "\n" + FINISHED]) == colours.encode() + b"\n"
    # Also when the skylet's words are in it, at its end or not.
    assert read([MARKER + "half" + colours + FINISHED]) == b"half"
    line = f"{colours}Job finished (status: FAILED).{colours}x"
    assert read([MARKER + line + "\n" + FINISHED]) == line.encode() + b"\n"
    assert time.process_time() - begun < 5


pieces_of_logs = st.lists(
    st.sampled_from(
        ["a", "\n", "\r\n", "\r", "☃", "Job finished (status: FAILED).", "Waiting for task ", "\x16", " "]
    )
).map("".join)


@given(log=pieces_of_logs, cuts=st.lists(st.integers(0, 60)), skip=st.integers(0, 40), known=st.booleans())
def test_how_the_text_arrives_and_where_reading_begins_make_no_difference(
    log: str, cuts: list[int], skip: int, known: bool
) -> None:
    log += "end\n"
    whole = read([MARKER + log + FINISHED])
    told = MARKER + log
    places = sorted({0, len(told), *(cut for cut in cuts if cut < len(told))})
    pieces = [told[a:b] for a, b in pairwise(places)]
    pieces[-1] += FINISHED  # lines of the skylet's own come whole
    assert read(pieces, skip=skip, size=len(whole) if known else None) == whole[skip:]


@given(log=pieces_of_logs)
def test_offsets_are_the_same_whether_the_skylet_changes_line_ends_or_not(log: str) -> None:
    log = re.sub("\r+", "\r", log).replace("\r\n", "\n") + "end\n"  # as the driver program writes it
    following = read([MARKER + log + FINISHED])
    ended = read([(MARKER + log).replace("\r", "\n") + FINISHED])
    assert following.replace(b"\r", b"\n") == ended


def test_the_position_is_that_of_the_next_byte() -> None:
    text = SkyletText(3)
    assert (text.feed(MARKER + "ab"), text.position) == (b"", 2)
    assert (text.feed("cd\n"), text.position) == (b"d\n", 5)
    assert (text.feed(FINISHED), text.position) == (b"", 5)
    assert (text.finish(5), text.position) == (b"", 5)
