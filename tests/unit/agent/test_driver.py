"""What becomes of a job, as its driver reports it. Real drivers, real bash, no agent."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.jobdir import MAX_OUTPUT_BYTES, FileOrder
from airflow_provider.runtime.agent.process import processes
from tests.unit.agent.conftest import StartJob, python, start_driver, wait_for
from tests.unit.agent.deliveries import as_blob, packed


def test_a_job_that_ends_with_0_has_succeeded(run_job: StartJob) -> None:
    job = run_job("echo hello")
    assert job.report.status == "SUCCEEDED"
    assert job.report.exit_codes == (0,)
    assert 0 < job.report.started_at <= job.report.ended_at
    assert job.log == "hello\n"


def test_a_job_with_nothing_to_run_has_succeeded(run_job: StartJob) -> None:
    assert run_job().report.status == "SUCCEEDED"


@pytest.mark.parametrize("code", [1, 3, 100, 127, 255])
def test_k14_an_exit_code_is_reported_as_it_is(run_job: StartJob, code: int) -> None:
    report = run_job(f"exit {code}").report
    assert (report.status, report.exit_codes) == ("FAILED", (code,))
    assert report.reason == f"run failed with exit code {code}"


def test_k14_an_exit_code_of_python_is_the_code_of_the_job(run_job: StartJob) -> None:
    report = run_job(python("import sys; sys.exit(3)")).report
    assert (report.status, report.exit_codes) == ("FAILED", (3,))
    assert report.reason == "run failed with exit code 3"


@pytest.mark.parametrize(
    ("run", "code"),
    [
        ("set -o pipefail; false | cat; exit 0", 0),
        ("set -o pipefail; exit 5 | cat", 5),
        ("exit 5 | cat", 0),
        ("set -e; false; echo after", 1),
    ],
)
def test_k14_shell_options_mean_what_they_mean_in_bash(run_job: StartJob, run: str, code: int) -> None:
    job = run_job(run)
    assert job.report.status == ("FAILED" if code else "SUCCEEDED")
    assert job.report.exit_codes == (code,)
    assert "after" not in job.log


def test_k14_a_job_killed_by_a_signal_says_which(run_job: StartJob) -> None:
    report = run_job("kill -KILL $$").report
    assert report.exit_codes == (137,)
    assert report.reason == "run was killed by SIGKILL (exit code 137)"


def test_a_signal_without_a_name_is_told_by_number(run_job: StartJob) -> None:
    report = run_job("kill -36 $$").report
    assert (report.status, report.exit_codes) == ("FAILED", (164,))
    assert "signal 36" in report.reason


def test_k14_a_signal_in_the_last_command_is_told(run_job: StartJob) -> None:
    report = run_job("sh -c 'kill -SEGV $$'").report
    assert report.exit_codes == (139,)
    assert "SIGSEGV in the last command" in report.reason


def test_a_failed_setup_keeps_the_run_from_starting(run_job: StartJob) -> None:
    job = run_job("echo run", setup="echo setup; exit 4")
    assert (job.report.status, job.report.exit_codes) == ("FAILED_SETUP", (4,))
    assert job.report.reason == "setup failed with exit code 4"
    assert job.log == "setup\n"


@pytest.mark.parametrize("end", ["exit 137", "kill -9 $$", "exit 255", "kill -TERM $$"])
def test_i1_25_i1_62_a_setup_that_was_killed_has_failed(run_job: StartJob, end: str) -> None:
    job = run_job("echo run", setup=end)
    assert job.report.status == "FAILED_SETUP"
    assert job.report.exit_codes[0] != 0
    assert "run" not in job.log


@pytest.mark.parametrize("end", ["exit 137", "kill -9 $$"])
def test_i1_26_a_run_that_ends_with_137_is_told_in_words(run_job: StartJob, end: str) -> None:
    report = run_job(end).report
    assert (report.status, report.exit_codes) == ("FAILED", (137,))
    assert "SIGKILL" in report.reason


def test_setup_and_run_share_directory_and_variables_but_not_shell_state(run_job: StartJob) -> None:
    job = run_job("cat here; echo $V ${X-unset}", setup="pwd > here; X=1; export X", variables={"V": "v"})
    assert job.log.splitlines() == [str(job.directory.path / "home" / "sky_workdir"), "v unset"]


def test_k14_a_command_that_failed_in_the_middle_of_run_is_told_in_the_log(run_job: StartJob) -> None:
    job = run_job("python3 missing.py\necho after")
    assert (job.report.status, job.report.exit_codes) == ("SUCCEEDED", (0,))
    assert "\nafter\n[managed job] run: warning: 1 command(s) failed" in job.log
    assert "line 1: `python3 missing.py` exited with 2" in job.log


def test_k14_a_command_that_failed_in_the_middle_of_setup_is_told_before_run_starts(
    run_job: StartJob,
) -> None:
    job = run_job("echo running", setup="no-such-program-k14\necho setup done")
    assert job.report.status == "SUCCEEDED"
    assert "\nsetup done\n[managed job] setup: warning: 1 command(s) failed" in job.log
    assert "line 1: `no-such-program-k14` exited with 127" in job.log
    assert job.log.endswith("\nrunning\n")


def test_k14_with_set_e_a_failing_command_ends_setup_and_run_does_not_start(run_job: StartJob) -> None:
    job = run_job("echo running", setup="set -e\n(exit 6)\necho setup done")
    assert (job.report.status, job.report.exit_codes) == ("FAILED_SETUP", (6,))
    assert job.report.reason == "setup failed with exit code 6"
    assert "setup done" not in job.log
    assert "running" not in job.log


def test_a_job_begins_with_default_signals_and_nothing_open(run_job: StartJob) -> None:
    job = run_job("grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd")
    blocked, ignored, *descriptors = job.log.split("\n")
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) & ~(3 << 31) == 0  # but for those that the C library keeps for itself
    assert len([d for d in descriptors if d]) == 4  # 0 to 2, and the directory that ls reads


def test_ignored_signals_of_whoever_started_the_agent_change_nothing(tmp_path: Path, start_job) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGCHLD, signal.SIGTERM)}
    try:
        job = start_job("trap 'echo told; exit 9' TERM; kill $$; sleep 0.01; exit 1")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert job.wait().report.exit_codes == (9,)


def test_k71_a_thousand_lines_and_a_quick_end_are_all_there(run_job: StartJob) -> None:
    assert run_job("seq 1000").log.split() == [str(n) for n in range(1, 1001)]


def test_k71_the_last_line_needs_no_newline(run_job: StartJob) -> None:
    assert run_job("printf 'no-newline-end'").log == "no-newline-end"


def test_k71_what_a_killed_program_printed_last_is_there(run_job: StartJob) -> None:
    job = run_job(python("import os; print('last'); os.kill(os.getpid(), 9)"))
    assert job.log.startswith("last\n")


def test_k71_python_prints_without_delay(start_job: StartJob) -> None:
    job = start_job(python("import sys; print('first'); sys.stdin.read(); import time; time.sleep(100)"))
    job.wait_for_log("first")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"


def test_a_job_may_close_its_output(run_job: StartJob) -> None:
    job = run_job("echo before; exec >&- 2>&-; echo lost; sleep 0.01; exit 5")
    assert (job.report.exit_codes, job.log) == ((5,), "before\n")


def test_a_job_may_remove_its_home(run_job: StartJob) -> None:
    job = run_job('echo before; rm -rf "$HOME"; echo after')
    assert (job.report.status, job.log) == ("SUCCEEDED", "before\nafter\n")


def test_a_setup_that_removes_the_working_directory_is_told(run_job: StartJob) -> None:
    job = run_job("echo run", setup='rm -rf "$PWD"')
    assert job.report.status == "FAILED_SETUP"
    assert "sky_workdir" in job.report.reason


def test_k36_without_bash_the_job_has_failed_and_says_so(start_job: StartJob) -> None:
    without = "from airflow_provider.runtime.agent.driver import stages; stages._BASH = '/no/such/bash'; "
    report = start_job("echo run", before=without).wait().report
    assert report.status == "FAILED_SETUP"
    assert report.reason == "cannot start bash: [Errno 2] No such file or directory: '/no/such/bash'"


def test_raw_bytes_reach_the_log_as_they_are(run_job: StartJob) -> None:
    code = "import sys; w=sys.stdout.buffer.write; [w('€'.encode()*999+b'\\n') for _ in range(300)]; w(b'\\x80\\xff\\x00 raw\\n')"
    job = run_job(f"python3 -c {shlex.quote(code)}", variables={"LANG": "C", "LC_ALL": "C"})
    assert job.directory.log.read_bytes() == ("€".encode() * 999 + b"\n") * 300 + b"\x80\xff\x00 raw\n"


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "de_DE.ISO-8859-1"])
def test_values_and_scripts_are_utf8_whatever_the_locale(start_job, monkeypatch, locale: str) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    job = start_job("printf '%s' \"$V\"; echo '€'", variables={"V": "ünï €"}).wait()
    assert job.directory.log.read_bytes().endswith("ünï €€\n".encode())


# ---- output


def test_json_in_the_output_file_is_the_result(run_job: StartJob) -> None:
    report = run_job("""echo '{"accuracy": 0.97, "ü": null}' > "$TASK_OUTPUT_FILE" """).report
    assert json.loads(report.output or "") == {"accuracy": 0.97, "ü": None}


def test_without_an_output_file_there_is_no_result(run_job: StartJob) -> None:
    assert run_job("true").report.output is None


def test_the_output_of_a_failed_job_does_not_count(run_job: StartJob) -> None:
    report = run_job('echo 1 > "$TASK_OUTPUT_FILE"; exit 3').report
    assert (report.status, report.output) == ("FAILED", None)


def test_output_of_exactly_the_limit_is_accepted(run_job: StartJob) -> None:
    text = f'printf \'"%0{MAX_OUTPUT_BYTES - 2}d"\' 0 > "$TASK_OUTPUT_FILE"'
    report = run_job(text).report
    assert len(report.output or "") == MAX_OUTPUT_BYTES


def test_a_link_to_a_file_is_as_good_as_the_file(run_job: StartJob) -> None:
    assert run_job('echo 1 > x; ln -s "$PWD/x" "$TASK_OUTPUT_FILE"').report.output == "1\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '{' > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        (": > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        ("echo NaN > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        ("echo '[1, -Infinity]' > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        ("echo 1e999 > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        (r"printf '" '"\\ud800"' "' > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        (r"printf '\xff' > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        ("printf '%0*d' 5000 0 | tr 0 1 > $TASK_OUTPUT_FILE", "does not hold valid JSON"),
        ("printf '%060000d' 0 | tr 0 '[' > $TASK_OUTPUT_FILE", "nested too deeply"),
        (
            f"head -c {MAX_OUTPUT_BYTES + 1} /dev/zero > $TASK_OUTPUT_FILE",
            f"holds {MAX_OUTPUT_BYTES + 1} bytes",
        ),
        ("truncate -s 1T $TASK_OUTPUT_FILE", "65536 at most"),
        ("mkdir $TASK_OUTPUT_FILE", "not a regular file"),
        ("mkfifo $TASK_OUTPUT_FILE", "not a regular file"),
        ("ln -s /dev/zero $TASK_OUTPUT_FILE", "not a regular file"),
        ("ln -s $TASK_OUTPUT_FILE $TASK_OUTPUT_FILE", "cannot be read"),
    ],
)
def test_output_that_cannot_be_the_result_fails_the_job(run_job: StartJob, script: str, words: str) -> None:
    report = run_job(script).report
    assert (report.status, report.exit_codes) == ("FAILED", (0,))
    assert "TASK_OUTPUT_FILE" in report.reason
    assert words in report.reason


# ---- environment


@pytest.mark.parametrize("size", [131_072, 4_000_000])
def test_too_large_a_variable_is_named_and_its_value_is_not(run_job: StartJob, size: int) -> None:
    report = run_job("echo", variables={"HUGE": "s3cret" + "x" * size, "SMALL": "y"}).report
    assert report.status == "FAILED_SETUP"
    assert f"HUGE with {size + 6} bytes" in report.reason
    assert "s3cret" not in report.reason


def test_secrets_are_on_no_disk_and_no_command_line(start_job: StartJob) -> None:
    job = start_job("echo started; sleep 100", variables={"TOKEN": "s3cret"})
    job.wait_for_log("started")
    assert subprocess.run(["grep", "-r", "s3cret", job.directory.path], check=False).returncode == 1
    for process in processes.members([job.pid()], "NO_SUCH_MARKER", ""):
        assert b"s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    job.send(signal.SIGTERM)
    job.wait()


# ---- files


def test_files_are_unpacked_before_setup(run_job: StartJob, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data.txt").write_text("data\n")
    job = run_job(
        "cat data.txt; cat ~/one",
        setup="cat data.txt",
        files=[
            packed(tmp_path / "folder", tmp_path, "~/sky_workdir"),
            packed(tmp_path / "folder" / "data.txt", tmp_path, "~/one"),
        ],
    )
    assert job.log == "data\n" * 3


def test_files_that_cannot_be_unpacked_fail_the_setup(run_job: StartJob, tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("no archive")
    for archive in (as_blob(tmp_path / "archive", tmp_path), tmp_path / "archive", tmp_path / "none"):
        job = run_job("echo run", files=[FileOrder(str(archive), "directory", "~/data")])
        assert job.report.status == "FAILED_SETUP"
        assert "cannot unpack ~/data" in job.report.reason
        assert job.log == ""


# ---- nodes


SHOW_NODES = (
    'printf "%s|" "$SKYPILOT_NODE_RANK" "$SKYPILOT_NUM_NODES" "$SKYPILOT_NODE_IPS" '
    '"$SKYPILOT_SETUP_NODE_RANK" "$SKYPILOT_SETUP_NODE_IPS"'
)


@pytest.mark.parametrize(
    ("addresses", "shown"),
    [
        ((), "0|1|127.0.0.1|0|127.0.0.1|"),
        (("10.0.0.7",), "0|1|10.0.0.7|0|10.0.0.7|"),
        (("fd00::7",), "0|1|fd00::7|0|fd00::7|"),
    ],
)
def test_k68_setup_and_run_know_the_node_as_others_reach_it(
    run_job: StartJob, addresses: tuple[str, ...], shown: str
) -> None:
    assert run_job(SHOW_NODES, setup=SHOW_NODES, node_ips=addresses).log == shown * 2


def test_k68_there_is_a_line_for_each_node_and_no_blank_one(run_job: StartJob) -> None:
    job = run_job(
        'echo "$SKYPILOT_NODE_IPS" | wc -l; printf %s "$SKYPILOT_NODE_IPS" | tail -c 1',
        node_ips=("10.0.0.7",),
    )
    assert job.log == "1\n7"


def test_a_variable_of_the_users_goes_before_the_addresses(run_job: StartJob) -> None:
    job = run_job(
        SHOW_NODES, node_ips=("10.0.0.7",), variables={"SKYPILOT_NODE_IPS": "mine", "SKYPILOT_NODE_RANK": "9"}
    )
    assert job.log == "0|1|mine|0|10.0.0.7|"


# ---- the driver itself


def test_a_second_driver_of_a_job_does_nothing(start_job: StartJob, tmp_path: Path) -> None:
    job = start_job("echo once; read -t 100 < /dev/zero; sleep 100")
    job.wait_for_log("once")
    second = start_driver(job.directory, str(tmp_path))
    os.waitid(os.P_PIDFD, second, os.WEXITED)
    os.close(second)
    job.send(signal.SIGTERM)
    assert job.wait().log == "once\n"


def test_a_job_that_ran_is_not_run_again(run_job: StartJob, tmp_path: Path) -> None:
    job = run_job("echo once")
    again = start_driver(job.directory, str(tmp_path))
    os.waitid(os.P_PIDFD, again, os.WEXITED)
    os.close(again)
    assert job.log == "once\n"


def test_the_states_are_told_as_they_come(start_job: StartJob) -> None:
    job = start_job("echo run; sleep 100", setup="until [ -e go ]; do sleep 0.01; done")
    wait_for(job.directory.report, "the first report")
    assert job.report.status == "SETTING_UP"
    (job.directory.path / "home" / "sky_workdir" / "go").touch()
    job.wait_for_log("run")
    assert job.report.status == "RUNNING"
    job.send(signal.SIGTERM)
    job.wait()
