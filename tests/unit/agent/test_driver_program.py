"""Queued programs: run with the agent's Python, and what decides how they ended. Real drivers, no agent."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.driver import outcome
from airflow_provider.runtime.agent.jobs.jobdir import MAX_OUTPUT_BYTES
from tests.unit.agent.conftest import DriverRun, StartJob, wait_for

REPORT = """
import json, os, sys, time
def report(**said):
    path = os.environ["MANAGED_JOBS_REPORT"]
    with open(path + ".part", "w") as file:
        json.dump(said, file)
    os.replace(path + ".part", path)
"""

Start = Callable[..., DriverRun]


@pytest.fixture
def start(start_job: StartJob, tmp_path: Path) -> Start:
    """Start a job on a program of which this is the text."""

    def start(text: str, **fields: object) -> DriverRun:
        program = tmp_path / "a program.py"
        program.write_text(REPORT + text)
        return start_job(
            "echo the script must not run", setup="echo nor setup", program=str(program), **fields
        )

    return start


@pytest.fixture
def run(start: Start) -> Start:
    """Run it to its end."""
    return lambda text, **fields: start(text, **fields).wait()


def test_a_program_that_ends_with_0_has_succeeded(run: Start) -> None:
    job = run("print('hello')")
    assert (job.report.status, job.report.exit_codes, job.log) == ("SUCCEEDED", (0,), "hello\n")


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("raise ValueError", 1), ("os.kill(os.getpid(), 9)", 137)]
)
def test_a_program_that_ends_otherwise_has_failed(run: Start, end: str, code: int) -> None:
    job = run(f"print('last words', end='')\n{end}")
    assert (job.report.status, job.report.exit_codes) == ("FAILED", (code,))
    assert job.log.startswith("last words")
    assert "the program" in job.report.reason


def test_it_runs_with_the_python_of_the_agent_in_the_working_directory(run: Start) -> None:
    job = run(
        "print(sys.executable); print(os.getcwd()); print(os.environ['V'], sys.stdin.read() == '')",
        variables={"V": "v"},
    )
    assert job.log.splitlines() == [sys.executable, f"{job.directory.order().home}/sky_workdir", "v True"]


def test_what_it_prints_is_there_at_once(start: Start) -> None:
    job = start("sys.stdout.write('on'); time.sleep(100)")
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"


def test_a_program_that_is_not_there_fails(start_job: StartJob, tmp_path: Path) -> None:
    job = start_job(program=str(tmp_path / "none.py")).wait()
    assert (job.report.status, job.report.exit_codes) == ("FAILED", (2,))
    assert "none.py" in job.log


@pytest.mark.parametrize("status", ["SETTING_UP", "RUNNING"])
def test_its_states_are_told_as_they_come(start: Start, status: str) -> None:
    job = start(
        f"report(status='RUNNING'); report(status='SETTING_UP'); report(status={status!r}); time.sleep(100)"
    )
    wait_for(lambda: (report := job.directory.report()) is not None and report.status == status, "the status")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"


@pytest.mark.parametrize("status", ["FAILED", "FAILED_SETUP"])
def test_a_program_may_say_that_it_failed_though_it_ends_with_0(run: Start, status: str) -> None:
    report = run(f"report(status={status!r}, exit_codes=[0, 3, 137], reason='rank 1 gave up')").report
    assert (report.status, report.exit_codes, report.reason) == (status, (0, 3, 137), "rank 1 gave up")


def test_a_program_that_says_success_and_ends_otherwise_has_failed(run: Start) -> None:
    report = run("report(status='SUCCEEDED', exit_codes=[0]); sys.exit(4)").report
    assert (report.status, report.exit_codes) == ("FAILED", (4,))
    assert report.reason == "the program failed with exit code 4"


@pytest.mark.parametrize("codes", [[0, 1], [3, -3], [-9, 9]])
def test_i1_62_codes_that_add_up_to_0_are_no_success(run: Start, codes: list[int]) -> None:
    report = run(f"report(status='SUCCEEDED', exit_codes={codes})").report
    assert (report.status, report.exit_codes) == ("FAILED", tuple(codes))


@pytest.mark.parametrize("status", ["SETTING_UP", "RUNNING"])
@pytest.mark.parametrize("code", [0, 5])
def test_when_it_only_said_that_it_runs_its_exit_code_decides(run: Start, status: str, code: int) -> None:
    report = run(f"report(status={status!r}); sys.exit({code})").report
    assert (report.status, report.exit_codes) == ("FAILED" if code else "SUCCEEDED", (code,))


def test_a_success_keeps_its_codes_and_its_result(run: Start) -> None:
    report = run(
        "report(status='SUCCEEDED', exit_codes=[0, 0]); open(os.environ['TASK_OUTPUT_FILE'], 'w').write('[1]')"
    ).report
    assert (report.status, report.exit_codes, report.output) == ("SUCCEEDED", (0, 0), "[1]")


BAD = {
    "a number": "7",
    "no JSON": "{",
    "too deep": "[" * 60000,
    "no status": "{}",
    "unknown status": '{"status": "WELL"}',
    "status of another job": '{"status": "CANCELLED"}',
    "status of the driver": '{"status": "FAILED_DRIVER"}',
    "status that is no text": '{"status": ["FAILED"]}',
    "codes that are no list": '{"status": "FAILED", "exit_codes": 3}',
    "codes that are no numbers": '{"status": "FAILED", "exit_codes": ["3"]}',
    "codes that are true": '{"status": "FAILED", "exit_codes": [true]}',
    "codes that are too large": '{"status": "FAILED", "exit_codes": [99999999999999999999]}',
    "reason that is no text": '{"status": "FAILED", "reason": 3}',
    "too large": '{"status": "FAILED", "reason": "' + "x" * MAX_OUTPUT_BYTES + '"}',
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_report_is_told_and_the_exit_code_decides(tmp_path: Path, name: str) -> None:
    (tmp_path / "program.json").write_text(BAD[name])
    with pytest.raises(outcome.Unreadable):
        outcome.read_said(tmp_path / "program.json")


@pytest.mark.parametrize("code", [0, 6])
def test_a_program_whose_report_is_none_ends_by_its_exit_code(run: Start, code: int) -> None:
    job = run(f"report(status='WELL'); sys.exit({code})")
    assert (job.report.status, job.report.exit_codes) == ("FAILED" if code else "SUCCEEDED", (code,))
    assert "[managed job] the program's report has a status of 'WELL'" in job.log


def test_a_reason_that_cannot_be_sent_is_made_so(tmp_path: Path) -> None:
    (tmp_path / "program.json").write_text(
        json.dumps({"status": "FAILED", "reason": "\ud800" + "x" * 10_000})
    )
    said = outcome.read_said(tmp_path / "program.json")
    assert said is not None
    assert said.reason == "?" + "x" * 4095


def test_a_program_sees_the_devices_of_its_job(run: Start) -> None:
    assert run("print(os.environ['CUDA_VISIBLE_DEVICES'])", devices="1,3").log == "1,3\n"
