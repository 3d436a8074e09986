"""The driver program by itself: run as a skylet runs it, with a stand-in for SkyPilot's job library."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider.runtime.client.skylet_driver.output import IDLE_MARK, MARKER_LINE, Log
from airflow_provider.runtime.client.skylet_text import SkyletText
from tests.unit.client.driver_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for started in node.started:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
    for process in node.below():
        process.kill()


def test_i1_62_statuses_codes_and_the_last_word_come_in_this_order(node: Node) -> None:
    assert node.run("echo out; exit 3", setup="echo set") == 1
    assert node.log() == f"{MARKER_LINE}set\nout\n"
    end = node.end
    assert [end[name] for name in ("status", "exit_codes", "reason", "log_size")] == [
        "FAILED",
        [3],
        "run failed (exit code 3)",
        8,
    ]
    told = node.row["told"]
    assert isinstance(told, list)
    assert [sorted(word) for word in told] == [
        ["status"],
        ["status"],
        ["metadata"],
        ["exit_codes"],
        ["status"],
    ]
    assert [word["status"] for word in told if "status" in word] == ["SETTING_UP", "RUNNING", "FAILED"]
    assert list((node.home / ".sky" / "managed_jobs").glob("job-*")) == []
    assert not (node.home / "program-0").exists()


@pytest.mark.parametrize(
    ("setup", "run", "status", "codes", "reason"),
    [
        ("", "true", "SUCCEEDED", [0], ""),
        ("", "exec true", "SUCCEEDED", [0], ""),
        ("exit 137", "true", "FAILED_SETUP", [137], "setup failed (exit code 137)"),
        ("kill -9 $$", "true", "FAILED_SETUP", [137], "setup was killed by signal 9 (exit code 137)"),
        ("", "kill -TERM $$; sleep 9", "FAILED", [143], "run was killed by signal 15 (exit code 143)"),
        ("", "exec no-such-program 2>&-", "FAILED", [127], "run failed (exit code 127)"),
        (
            "",
            "echo '{' > $TASK_OUTPUT_FILE",
            "FAILED",
            [0],
            "TASK_OUTPUT_FILE does not hold valid JSON: Expecting property name enclosed in double quotes: "
            "line 2 column 1 (char 2)",
        ),
    ],
)
def test_i1_25_i1_62_only_zero_of_setup_and_run_is_a_success(
    node: Node, setup: str, run: str, status: str, codes: list[int], reason: str
) -> None:
    assert node.run(run, setup=setup) == (status != "SUCCEEDED")
    assert (node.row["status"], node.row["exit_codes"]) == (status, codes)
    assert node.end["status"] == status
    if sys.version_info >= (3, 11) or "JSON" not in reason:
        assert node.end["reason"] == reason


def test_i3_28_variables_are_literal_and_win_over_the_users_shell_files(node: Node) -> None:
    (node.home / ".bashrc").write_text(
        'echo noise; case $- in *i*) ;; *) return;; esac\nexport A=rc B=rc\nf() { echo "f: $1"; }\n'
    )
    node.run(
        'f "$B"; printf "%s|" "$A" "$a_b" "${BASH_ENV-unset}"',
        envs={"A": "$(id) `id` '\"\n", "a_b": "\N{SNOWMAN}"},
    )
    assert node.log() == f"{MARKER_LINE}f: rc\n$(id) `id` '\"\n|\N{SNOWMAN}|unset|\n"


@pytest.mark.parametrize("text", ["exit 1", "exec true"])
def test_shell_files_that_fail_do_not_fail_the_job(node: Node, text: str) -> None:
    (node.home / ".bashrc").write_text(text)
    assert node.run("echo runs") == 0
    assert node.log() == (
        f"{MARKER_LINE}[managed job] ~/.bashrc fails, hangs or starts another shell: the job runs without it\nruns\n"
    )


def test_functions_that_only_an_extended_bash_can_read_are_there_and_say_nothing(node: Node) -> None:
    function = "shopt -s extglob\nf() { case $1 in !(a|b)) echo other;; *) echo same;; esac; }\n"
    (node.home / ".bashrc").write_text(f"{function}set -e\nalias declare=false\n")
    assert node.run("f x; f a; shopt -p extglob; bash -c 'echo nested'") == 0
    assert node.log() == f"{MARKER_LINE}other\nsame\nshopt -s extglob\nnested\n"
    (node.home / ".bashrc").write_text(f"{function}shopt -u extglob\ng() {{ echo g; }}\n")
    node.set_status("PENDING")
    assert node.run("g; shopt -p extglob", key="other", job_id=2) == 1, "what shopt returns"
    assert node.log(2) == f"{MARKER_LINE}g\nshopt -u extglob\n"


@pytest.mark.parametrize(
    ("setup", "run", "status"),
    [("", "true", "SUCCEEDED"), ("", "exit 3", "FAILED"), ("exit 3", "", "FAILED_SETUP")],
)
def test_a_driver_that_lives_takes_back_that_it_was_missed(
    node: Node, setup: str, run: str, status: str
) -> None:
    go = "until [ -e go ]; do sleep 0.01; done; "
    node.start((run and go) + run, setup=(setup and go) + setup)
    at = "SETTING_UP" if setup else "RUNNING"
    node.set_status("FAILED_DRIVER")  # before the driver had its library
    node.until(lambda: node.row["status"] == at, "the driver to say that it lives")
    node.set_status("FAILED_DRIVER")
    (node.home / "sky_workdir" / "go").touch()
    node.started[0].wait(30)
    assert (node.row["status"], node.end["status"]) == (status, status)


def test_a_large_last_word_is_told_whole_although_a_cancel_comes_meanwhile(node: Node) -> None:
    # More than a pipe holds once it is escaped, while the keeper, which would read it, still gets its library.
    text = "printf '\"' > $TASK_OUTPUT_FILE; for i in {1..30}; do printf '\\303\\251%.0s' {1..1000}; done >> $TASK_OUTPUT_FILE; "
    started = node.start(text + "printf '\"' >> $TASK_OUTPUT_FILE; echo done", delay=4)
    node.until(
        lambda: "done\n" in node.log() and _waits_for_its_reader(node, started.pid),
        "the runner to wait for its reader",
    )
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(20) == 0
    assert node.row["status"] == "SUCCEEDED"


def _waits_for_its_reader(node: Node, keeper: int) -> bool:
    """Return whether the runner has its last word ready and cannot give it to the keeper."""
    (claim,) = (node.home / ".sky" / "managed_jobs").glob("*.run")
    (runner,) = psutil.Process(keeper).children()
    return b'"end"' in claim.read_bytes() and runner.status() == psutil.STATUS_SLEEPING


def test_a_job_starts_before_the_library_is_there(node: Node) -> None:
    started = node.start("echo first; sleep 1000", delay=1000)
    node.until(lambda: "first\n" in node.log(), "the first line")
    assert node.row["status"] == "PENDING"
    os.killpg(started.pid, signal.SIGTERM)
    node.until(lambda: not node.below(), "the end of the job")


def test_k12_a_cancel_ends_all_that_the_job_started_before_it_says_so(node: Node) -> None:
    started = node.start(
        "trap '' TERM; env -i setsid -f sh -c \"trap '' TERM; touch escaped; sleep 1000\"; "
        "until [ -e escaped ]; do sleep 0.01; done; echo ready; sleep 1000"
    )
    node.until(lambda: "ready\n" in node.log() and node.row["status"] == "RUNNING", "the job")
    runner = max(psutil.Process(started.pid).children(), key=lambda process: process.pid)
    below = runner.children(recursive=True)
    assert len(below) >= 3
    node.set_status("CANCELLED")
    os.killpg(started.pid, signal.SIGTERM)
    node.until(lambda: "metadata" in node.row, "the last word")
    assert not [process for process in below if process.is_running() and process.status() != "zombie"]
    assert started.wait(20) == 1
    assert node.row["status"] == "CANCELLED"


def test_i1_09_a_late_success_does_not_overwrite_a_cancel(node: Node) -> None:
    node.start("true", delay=0.5)
    node.set_status("CANCELLED")
    node.started[0].wait(30)
    assert node.row["status"] == "CANCELLED"


def test_a_program_that_is_told_to_end_by_no_cancel_is_no_cancelled_job(node: Node) -> None:
    started = node.start("echo ready; sleep 1000")
    node.until(lambda: "ready\n" in node.log() and node.row["status"] == "RUNNING", "the job")
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(20) == 1
    assert node.row["status"] == "FAILED_DRIVER"


@pytest.mark.parametrize("victim", ["runner", "keeper"])
def test_i1_06_whichever_half_dies_the_other_ends_the_job_and_says_so(node: Node, victim: str) -> None:
    started = node.start("trap '' TERM; printf half; sleep 1000")
    node.until(lambda: "half" in node.log() and node.row["status"] == "RUNNING", "the job")
    (runner,) = psutil.Process(started.pid).children()
    (runner if victim == "runner" else psutil.Process(started.pid)).kill()
    node.until(lambda: node.row["status"] == "FAILED_DRIVER", "the verdict")
    assert node.below() == []
    assert node.log() == f"{MARKER_LINE}half\n"
    started.wait(20)


def test_i1_04_a_program_that_was_queued_twice_runs_once_and_both_say_the_same(node: Node) -> None:
    first = node.start("echo one >> count; until [ -e go ]; do sleep 0.01; done")
    node.until(lambda: (node.home / "sky_workdir" / "count").exists(), "the job")
    second = node.start("echo one >> count")
    node.set_status("PENDING")  # as QueueJob does
    (node.home / "sky_workdir" / "go").touch()
    assert (first.wait(20), second.wait(20)) == (0, 0)
    assert node.run("echo one >> count") == 0
    assert (node.home / "sky_workdir" / "count").read_text() == "one\n"
    assert node.row["status"] == "SUCCEEDED"
    assert node.log() == MARKER_LINE


def test_i1_04_a_cancel_of_the_second_program_reaches_the_first(node: Node) -> None:
    first = node.start("echo ready; sleep 1000")
    node.until(lambda: "ready" in node.log(), "the job")
    second = node.start("echo two")
    node.until(lambda: not (node.home / "program-1").exists(), "the second program")
    node.set_status("CANCELLED")
    os.killpg(second.pid, signal.SIGTERM)
    assert (first.wait(20), second.wait(20)) == (1, 1)
    assert node.below() == []


def test_i1_10_a_janitor_has_the_last_word_on_a_job_that_never_began(node: Node) -> None:
    node.set_status("CANCELLED")
    assert node.clean_up().communicate(timeout=30)[0] == b""
    assert not (node.home / "program-0").exists()
    assert (node.end["status"], node.end["reason"]) == ("CANCELLED", "cancelled before it began")
    assert node.row["metadata"]["managed_jobs"]["generation"] == 3, "what else is known of it is gone"  # type: ignore[index, call-overload]
    assert (node.row["status"], node.janitor["status"]) == ("CANCELLED", "SUCCEEDED")
    # A driver that comes late does not run the job.
    assert node.run("echo one >> count") == 1
    assert not (node.home / "sky_workdir" / "count").exists()


def test_i1_10_a_janitor_ends_a_job_whose_driver_the_cancel_has_missed(node: Node) -> None:
    driver = node.start("echo ready; sleep 1000")
    node.until(lambda: "ready" in node.log(), "the job")
    node.set_status("CANCELLED")
    janitor = node.clean_up()
    assert (janitor.wait(30), driver.wait(30)) == (0, 1)
    assert node.below() == []
    assert node.end["reason"] == "told to end (SIGTERM)"
    assert (node.row["status"], node.janitor["status"]) == ("CANCELLED", "SUCCEEDED")


def test_i1_06_a_janitor_ends_what_is_left_of_a_job_whose_driver_died_whole(node: Node) -> None:
    driver = node.start("setsid sleep 1000 & printf half; sleep 1000", key="key")
    node.until(lambda: "half" in node.log() and node.row["status"] == "RUNNING", "the job")
    runner = psutil.Process(driver.pid).children()[0]
    left = [process for process in runner.children(recursive=True) if process.name() == "sleep"]
    for process in (runner, psutil.Process(driver.pid)):
        process.suspend()
    for process in (runner, psutil.Process(driver.pid)):
        process.kill()
    driver.wait(20)
    assert left
    assert all(process.is_running() for process in left)
    node.set_status("FAILED_DRIVER")
    node.clean_up().wait(30)
    assert node.below() == []
    assert node.log() == f"{MARKER_LINE}half\n"
    assert (node.end["status"], node.end["reason"]) == ("FAILED_DRIVER", "the job's driver died")


def test_a_janitor_leaves_the_job_of_the_same_key_alone(node: Node) -> None:
    node.start("echo ready; until [ -e go ]; do sleep 0.01; done")
    node.until(lambda: "ready" in node.log() and node.row["status"] == "RUNNING", "the job")
    assert node.clean_up(job_id=2).wait(30) == 0
    assert node.end["reason"] == "the same was submitted as job 1"
    (node.home / "sky_workdir" / "go").touch()
    assert node.started[0].wait(30) == 0
    assert node.clean_up(job_id=2).wait(30) == 0
    assert node.end["reason"] == "the same was submitted as job 1"


def test_i1_05_the_same_key_under_another_id_does_not_run(node: Node) -> None:
    assert node.run("echo one >> count") == 0
    node.set_status("PENDING")
    assert node.run("echo one >> count", job_id=2) == 1
    assert node.end["reason"] == "the same was submitted as job 1, which has run"
    assert (node.home / "sky_workdir" / "count").read_text() == "one\n"


def test_a_quiet_job_marks_its_log_at_the_begin_of_lines_only(node: Node) -> None:
    started = node.start(
        "echo a; until [ -e go ]; do sleep 0.01; done; printf b; sleep 0.5", idle_seconds=0.1
    )
    node.until(lambda: IDLE_MARK in node.log(), "an idle mark")
    (node.home / "sky_workdir" / "go").touch()
    assert started.wait(20) == 0
    log = node.log()
    assert log.replace(IDLE_MARK + "\r", "") == f"{MARKER_LINE}a\nb\n"
    assert f"b{IDLE_MARK}" not in log
    assert node.end["log_size"] == len("a\nb\n")


@pytest.mark.parametrize("text", ["\n", "\n\n", "\r\n", "\r", "\r10%\n", "a\n"])
def test_an_idle_mark_is_no_part_of_the_line_end_that_follows_it(tmp_path: Path, text: str) -> None:
    log = Log(tmp_path / "run.log")
    log.feed(b"a\n")
    log.idle()
    log.idle()
    log.feed(text.encode())
    log.finish()
    shown = ("a\n" + text).replace("\r\n", "\n")
    shown = shown if shown.endswith("\n") else shown[:-1] + "\n"
    for newline in ("", None):  # as a skylet reads it while the job runs, and afterwards
        with open(tmp_path / "run.log", newline=newline) as file:
            told = SkyletText(0)
            lines = [*file, "Job finished (status: SUCCEEDED).\n"]
            data = b"".join(map(told.feed, lines)) + told.finish(log.size)
        assert data.decode() == (shown if newline == "" else shown.replace("\r", "\n"))
    assert log.size == len(shown)


def test_a_log_is_valid_text_however_its_bytes_arrive(tmp_path: Path) -> None:
    data = "a\r\r\nb\rc \N{SNOWMAN}\n".encode() + b"\xff\xfe\r\n" + "\N{SNOWMAN}".encode()[:2]
    for size in range(1, len(data) + 1):
        log = Log(tmp_path / str(size))
        for begin in range(0, len(data), size):
            log.feed(data[begin : begin + size])
        log.finish()
        text = (tmp_path / str(size)).read_bytes().decode()
        assert (
            text
            == f"{MARKER_LINE}a\nb\rc \N{SNOWMAN}\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\n\N{REPLACEMENT CHARACTER}\n"
        )
        assert log.size == len(text.encode()) - len(MARKER_LINE)


def test_i1_61_a_full_disk_costs_the_log_and_says_so(tmp_path: Path) -> None:
    log = Log(Path("/dev/full"))
    log.feed(b"lost\n")
    log.finish()
    assert log.lost == len(MARKER_LINE) + len("lost\n")
    assert log.size == 0
