"""K36: drivers that cannot begin say so where they can, and end at once where they cannot. Real drivers, no agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.jobdir import JobDirectory, Order
from tests.unit.agent.conftest import DriverRun, start_driver

Begin = Callable[..., DriverRun]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a driver in a directory and wait for its end."""
    runs: list[DriverRun] = []

    def begin(directory: JobDirectory, before: str = "") -> DriverRun:
        runs.append(DriverRun(directory, start_driver(directory, str(tmp_path), before)))
        return runs[-1].wait()

    yield begin
    for run in runs:
        os.close(run.handle)


def create(path: Path, marker: str, **fields: object) -> JobDirectory:
    directory = JobDirectory(path)
    directory.create(Order(marker, "", "echo run", str(path / "home"), [], 1.0, **fields), {"A": "s3cret"})  # type: ignore[arg-type]
    return directory


def code(run: DriverRun) -> int:
    ended = os.waitid(os.P_PIDFD, run.handle, os.WEXITED)
    assert ended is not None
    return ended.si_status


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"marker": 1, "more": 2, "files": []}'])
def test_k36_an_order_that_cannot_be_read_is_told(
    tmp_path: Path, marker: str, begin: Begin, text: str
) -> None:
    directory = create(tmp_path / "job", marker)
    directory.order_file.write_text(text)
    run = begin(directory)
    assert run.report.status == "FAILED_DRIVER"
    assert run.report.reason.startswith("the job's driver failed: ")
    assert run.report.ended_at > 0
    assert "Traceback" in directory.driver_log.read_text()
    assert not directory.variables_file.exists(), "no secret is left"
    assert run.log == ""
    code(run)


@pytest.mark.parametrize("name", ["order_file", "variables_file"])
def test_k36_a_file_that_is_missing_is_told(tmp_path: Path, marker: str, begin: Begin, name: str) -> None:
    directory = create(tmp_path / "job", marker)
    getattr(directory, name).unlink()
    run = begin(directory)
    assert run.report.status == "FAILED_DRIVER"
    assert getattr(directory, name).name in run.report.reason
    code(run)


def test_k36_a_log_that_cannot_be_written_is_told(tmp_path: Path, marker: str, begin: Begin) -> None:
    directory = create(tmp_path / "job", marker)
    directory.log.unlink()
    directory.log.mkdir()
    run = begin(directory)
    assert run.report.status == "FAILED_DRIVER"
    assert "run.log" in run.report.reason
    code(run)


def test_k36_a_home_that_cannot_be_made_is_told(tmp_path: Path, marker: str, begin: Begin) -> None:
    directory = create(tmp_path / "job", marker)
    (directory.path / "home").touch()
    run = begin(directory)
    assert run.report.status == "FAILED_DRIVER"
    assert "home" in run.report.reason
    code(run)


# ---- file systems that take nothing


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> None:
    with (disk / "big").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_k36_in_a_directory_that_is_read_only_the_driver_ends(disk: Path, marker: str, begin: Begin) -> None:
    directory = create(disk / "job", marker)
    directory.driver_log = disk.parent / "driver.log"
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    run = begin(directory)
    assert directory.report() is None
    assert "Read-only file system" in directory.driver_log.read_text()
    assert run.log == ""
    assert code(run) == 1


def test_k36_on_a_full_disk_the_driver_ends(disk: Path, marker: str, begin: Begin) -> None:
    directory = create(disk / "job", marker)
    directory.driver_log = disk.parent / "driver.log"
    fill(disk)
    run = begin(directory)
    assert directory.report() is None
    assert "No space left" in directory.driver_log.read_text()
    assert run.log == ""
    assert code(run) == 1


def test_a_disk_that_is_full_in_the_end_takes_the_last_report_all_the_same(
    disk: Path, marker: str, begin: Begin
) -> None:
    directory = JobDirectory(disk / "job")
    order = Order(
        marker,
        "seq 2000",
        f"cat /dev/zero > {disk}/job/home/big; exit 9",
        str(disk / "job" / "home"),
        [],
        1.0,
    )
    directory.create(order, {})
    run = begin(directory)
    assert (run.report.status, run.report.exit_codes) == ("FAILED", (9,))
    code(run)


def test_k36_an_interpreter_that_is_none_is_told(tmp_path: Path, marker: str, begin: Begin) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('on')")
    directory = create(tmp_path / "job", marker, program=str(program))
    run = begin(directory, "sys.executable = '/no/such/python'; ")
    assert run.report.status == "FAILED_SETUP"
    assert "cannot start the program" in run.report.reason
    assert "/no/such/python" in run.report.reason
    code(run)
