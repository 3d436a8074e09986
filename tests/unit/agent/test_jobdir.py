"""The files between the agent and a driver: whole or not there, private, and taken with care."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.jobdir import (
    FileOrder,
    GitOrder,
    JobDirectory,
    Order,
    Report,
    write_private,
)

ORDER = Order("m", "set 'up", "run\n\udc80", "/home/x", [FileOrder("/a", "file", "~/b")], 1.5)


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    directory = JobDirectory(tmp_path / "1", tmp_path / "1-a job")
    directory.create(ORDER, {"A": "ü\n\udcff"})
    return directory


def test_the_driver_reads_what_the_agent_wrote(directory: JobDirectory) -> None:
    assert directory.order() == ORDER._replace(logs=str(directory.logs))
    assert directory.take_variables() == {"A": "ü\n\udcff"}


def test_a_repository_and_addresses_come_as_they_were_sent(tmp_path: Path) -> None:
    order = ORDER._replace(git=GitOrder("https://h/r", "main"), node_ips=("10.0.0.1", "10.0.0.2"), root="/r")
    directory = JobDirectory(tmp_path / "2")
    directory.create(order, {})
    assert directory.order() == order._replace(logs=str(directory.logs))


def test_variables_are_gone_once_taken(directory: JobDirectory) -> None:
    directory.take_variables()
    with pytest.raises(FileNotFoundError):
        directory.take_variables()


def test_what_may_hold_secrets_is_forgotten_and_nothing_else(directory: JobDirectory) -> None:
    for file in (directory.program_file, directory.git_key_file):
        file.write_text("secret")
    directory.forget_secrets()
    directory.forget_secrets()
    assert sorted(path.name for path in directory.path.iterdir()) == ["order.json"]


def test_nobody_else_can_read_any_of_it(directory: JobDirectory) -> None:
    for folder in (directory.path, directory.logs, directory.tasks):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in (*directory.path.iterdir(), directory.log):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_an_order_of_an_earlier_version_has_the_defaults_of_what_it_lacks(directory: JobDirectory) -> None:
    order = json.loads(directory.order_file.read_text())
    for name in ("program", "devices", "flush_seconds", "logs", "git", "node_ips", "root"):
        del order[name]
    directory.order_file.write_text(json.dumps(order))
    assert directory.order() == ORDER


def test_without_a_log_directory_the_log_is_with_the_rest(tmp_path: Path) -> None:
    assert JobDirectory(tmp_path).log == tmp_path / "run.log"


def test_a_reader_sees_the_old_or_the_new_text_and_nothing_between(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = ["a" * 100_000, "b" * 50_000]
    write_private(path, texts[0])
    done = threading.Event()

    def write() -> None:
        for number in range(200):
            write_private(path, texts[number % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert path.read_text() in texts
    writer.join()
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_that_fails_leaves_the_old_text_and_no_debris(tmp_path: Path) -> None:
    target = tmp_path / "directory"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_private(target, "x")
    assert os.listdir(tmp_path) == ["directory"]


def test_there_is_no_report_before_the_first(directory: JobDirectory) -> None:
    assert directory.report() is None


def test_a_report_comes_back_as_it_was_written(directory: JobDirectory) -> None:
    report = Report("FAILED", (3,), "reason", None, 1.0, 2.0)
    directory.write_report(report)
    assert directory.report() == report


WHOLE = Report("FAILED", (3,), "reason", None, 1.0, 2.0)._asdict()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        json.dumps(WHOLE)[:-5],
        "[]",
        "null",
        "{}",
        "\x00\x01",
        json.dumps({**WHOLE, "more": 1}),
        json.dumps({**WHOLE, "status": "WELL"}),
        json.dumps({**WHOLE, "status": ["FAILED"]}),
        json.dumps({**WHOLE, "exit_codes": ["3"]}),
        json.dumps({**WHOLE, "exit_codes": 3}),
        json.dumps({**WHOLE, "reason": None}),
        json.dumps({**WHOLE, "output": {}}),
        json.dumps({**WHOLE, "ended_at": "now"}),
    ],
)
def test_what_is_no_report_counts_as_none(directory: JobDirectory, text: str) -> None:
    directory.report_file.write_text(text)
    assert directory.report() is None


def test_a_directory_in_the_place_of_the_report_counts_as_none(directory: JobDirectory) -> None:
    directory.report_file.mkdir()
    assert directory.report() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "{}"])
def test_a_spoilt_driver_file_means_that_no_driver_may_start(directory: JobDirectory, text: str) -> None:
    directory.driver_file.write_text(text)
    assert directory.driver_pid() == 0


def test_a_second_taker_of_the_lock_gets_none(directory: JobDirectory) -> None:
    first = directory.lock()
    assert first is not None
    assert directory.lock() is None
    os.close(first)
    second = directory.lock()
    assert second is not None
    os.close(second)


def test_a_log_that_is_gone_has_no_bytes(directory: JobDirectory) -> None:
    directory.log.write_text("four")
    assert directory.log_size() == 4
    directory.log.unlink()
    assert directory.log_size() == 0
