"""What the task's log says of files on their way."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.client.base import FileProgress
from airflow_provider.runtime.control.progress import Transfer

GB = 1_000_000_000
MB = 1_000_000


def test_a_quick_transfer_has_one_line_at_its_end() -> None:
    transfer = Transfer(100.0)
    transfer.heard(FileProgress(read=30 * MB, sent=30 * MB, size=30 * MB))
    assert transfer.line(104.9) is None
    assert transfer.last_line(101.5) == "files: 30 MB there after 1.5 s"


def test_a_long_transfer_is_told_every_five_seconds_with_its_present_speed() -> None:
    transfer = Transfer(0.0)
    told = []
    for second in range(1, 13):
        transfer.heard(
            FileProgress(
                read=second * 85 * MB if second < 6 else 425 * MB, sent=second * 85 * MB, size=5 * GB
            )
        )
        told.append(transfer.line(float(second)))
    assert [line for line in told if line] == ["files: 0.4 of 5.0 GB, 85 MB/s", "files: 0.4 of 5.0 GB, 0 B/s"]
    assert [second for second, line in enumerate(told, 1) if line] == [5, 10]


def test_what_was_there_already_is_told_from_what_was_sent() -> None:
    transfer = Transfer(0.0)
    transfer.heard(FileProgress(read=5 * GB, sent=4_200_000, size=5 * GB))
    assert transfer.last_line(3.0) == "files: 5.0 GB there after 3.0 s, of which 4.2 MB had to be sent"


@pytest.mark.parametrize("heard", [None, FileProgress(read=900_000, sent=900_000, size=900_000)])
def test_small_files_and_files_that_are_there_already_are_not_worth_a_word(
    heard: FileProgress | None,
) -> None:
    transfer = Transfer(0.0)
    if heard is not None:
        transfer.heard(heard)
    assert transfer.last_line(1.0) is None


def test_sizes_are_told_in_units_that_fit() -> None:
    transfer = Transfer(0.0)
    transfer.heard(FileProgress(read=1_500, sent=1_500, size=3_000))
    assert transfer.line(5.0) == "files: 1.5 of 3.0 KB, 300 B/s"
