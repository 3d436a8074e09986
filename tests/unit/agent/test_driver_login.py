"""What ~/.bashrc sets reaches setup and run, and nothing that it does can harm them. Real drivers, real bash."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.driver import login
from airflow_provider.runtime.agent.process import processes
from tests.unit.agent.conftest import DriverRun, StartJob, wait_for

NOT_INTERACTIVE = "case $- in *i*) ;; *) return;; esac\n"

RunWith = Callable[..., DriverRun]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "a home"
    home.mkdir()
    return home


@pytest.fixture
def run_with(run_job: StartJob, home: Path) -> RunWith:
    """Run a job with a ~/.bashrc."""

    def run(bashrc: str, *args: object, **kwargs: object) -> DriverRun:
        (home / ".bashrc").write_text(bashrc)
        return run_job(*args, home=home, **kwargs)

    return run


def test_variables_set_for_interactive_shells_are_there(run_with: RunWith) -> None:
    job = run_with(
        NOT_INTERACTIVE
        + "export PATH=$HOME/tools:$PATH\nexport A='it''s' B=$'two\\nlines ünï \\xff' C=\nd=not_exported",
        'echo "$PATH"; printf "<%s>" "$A" "$B" "$C" "${d-unset}"; env | grep -c "^C=$"',
    )
    path, rest = job.directory.log.read_bytes().split(b"\n", 1)
    assert path == os.fsencode(f"{job.directory.order().home}/tools:{os.environ['PATH']}")
    assert rest == "<its><two\nlines ünï ".encode() + b"\xff><><unset>1\n"


def test_functions_set_for_interactive_shells_are_there(run_with: RunWith) -> None:
    job = run_with(
        NOT_INTERACTIVE
        + 'shopt -s extglob\nhello() { case $1 in +(a)b) echo "hello $1";; esac; }\n'
        + "child() { echo exported; }; export -f child\n",
        "hello aaab; bash -c child",
        setup="hello ab",
    )
    assert job.log == "hello ab\nhello aaab\nexported\n"


def test_a_shell_option_is_on_only_if_it_was(run_with: RunWith) -> None:
    text = "shopt -q extglob && echo on || echo off"
    assert run_with("shopt -s extglob; f() { :; }", text).log == "on\n"
    assert run_with("shopt -u extglob; f() { :; }", text).log == "off\n"


def test_what_setup_adds_to_it_is_there_in_run(run_with: RunWith) -> None:
    job = run_with("", "echo $ADDED", setup="echo 'export ADDED=yes' >> ~/.bashrc; echo ${ADDED-not yet}")
    assert job.log == "not yet\nyes\n"


def test_the_variables_of_the_job_win_as_they_are(run_with: RunWith) -> None:
    value = "a $HOME `id`\n\"'\\ ünï"
    job = run_with("export V=bashrc SKYPILOT_NODE_RANK=9 HOME=/elsewhere PWD=/ CUDA_VISIBLE_DEVICES=9",
                   'printf "%s|" "$V" "$SKYPILOT_NODE_RANK" "$HOME" "$PWD" "$CUDA_VISIBLE_DEVICES"',
                   variables={"V": value}, devices="0")  # fmt: skip
    home = job.directory.order().home
    assert job.log == f"{value}|0|{home}|{home}/sky_workdir|0|"


def test_a_variable_that_it_removes_is_removed(run_with: RunWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_THE_AGENT", "x")
    assert run_with("unset FROM_THE_AGENT", "echo ${FROM_THE_AGENT-removed}").log == "removed\n"


def test_it_does_not_see_the_secrets_of_the_job(run_with: RunWith, home: Path) -> None:
    run_with("env > ~/seen", "true", variables={"TOKEN": "s3cret"})
    assert "s3cret" not in (home / "seen").read_text()


def test_it_has_no_descriptor_of_ours(run_with: RunWith, home: Path) -> None:
    run_with("ls -l /proc/self/fd > ~/seen", "true")
    opened = [line.split(" -> ")[1] for line in (home / "seen").read_text().splitlines() if " -> " in line]
    assert [path for path in opened if not path.startswith(("/dev/null", "/proc/", str(home)))] == []


@pytest.mark.parametrize(
    "bashrc",
    [
        "echo noise; echo noise >&2; printf 'no newline'",
        "read -p 'Continue? ' answer; cat",
        "false; nonsense-program; unset nothing; return 3",
        'set -eux; : "$undefined_of_all"',
        "set -e; false",
        "exit 7",
        "trap 'echo bye; export V=wrong' EXIT; trap 'echo debug' DEBUG; set -T",
        "alias printf=false declare=false trap=false for=false; printf() { :; }; declare() { :; }; exit() { :; }",
        "IFS=abc; set -f; set -o noclobber; set -o posix",
        "PROMPT_COMMAND='echo prompt'; PS1='$(echo x)'; stty -echo; bind '\"x\": y'",
        "if then fi (",
        "sleep 100 &",
        "exec >/dev/full 2>&1 3>&1; echo x",
        "readonly V",
        "PATH=/nowhere",
    ],
)
def test_whatever_it_does_what_it_set_is_there(run_with: RunWith, bashrc: str) -> None:
    job = run_with(f"export V=kept\n{bashrc}\n", "echo $V")
    assert (job.report.status, job.log) == ("SUCCEEDED", "kept\n")


@pytest.mark.parametrize("bashrc", ["exec true", "exec /bin/sh", "kill -9 $$", "exec bash --norc -i"])
def test_one_that_gives_the_shell_away_costs_only_what_it_sets(run_with: RunWith, bashrc: str) -> None:
    job = run_with(f"export V=set\n{bashrc}", "echo ${V-unset}", setup="echo setup")
    assert job.report.status == "SUCCEEDED"
    first, *rest = job.log.splitlines()
    assert first.startswith("[managed job] what ~/.bashrc sets is not there:")
    assert rest == ["setup", "unset"], "said once"


def test_one_that_hangs_costs_only_its_time(
    run_with: RunWith, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("MANAGED_JOBS_BASHRC_SECONDS", "0.3")
    job = run_with(
        "export V=set; echo $$ > ~/pid; sleep 1000; sleep 1000", "echo ${V-unset}", setup="echo setup"
    )
    assert job.report.status == "SUCCEEDED"
    first, *rest = job.log.splitlines()
    assert "not there: it did not come to its end within 0.3 s" in first
    assert rest == ["setup", "unset"], "it is not waited for again"
    assert int((home / "pid").read_text()) not in processes.process_table()


def test_a_cancel_need_not_wait_for_one_that_hangs(start_job: StartJob, home: Path) -> None:
    (home / ".bashrc").write_text("trap '' TERM; touch ~/on; sleep 1000")
    job = start_job("echo run", home=home, grace=0.1)
    wait_for((home / "on").exists, "the file to be read")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert job.log == ""


def test_what_it_starts_in_the_background_lives_as_long_as_the_job(run_with: RunWith, home: Path) -> None:
    job = run_with("sleep 1000 & export AGENT=$!", "kill -0 $AGENT && echo alive")
    assert job.log == "alive\n"
    assert processes.marked(processes.JOB_MARKER, job.directory.order().marker) == set()


def test_a_home_without_one_is_no_obstacle(run_job: StartJob, home: Path) -> None:
    assert run_job("declare -F | grep -c keep; echo on", home=home).log.startswith("0\non\n")


# ---- conda

CONDA_SH = 'conda() { echo "conda $*"; }\nexport CONDA_EXE=x PATH=$PATH:/condabin\necho noise\n'


@pytest.fixture
def conda(home: Path) -> Path:
    script = home / "miniconda3" / "etc" / "profile.d" / "conda.sh"
    script.parent.mkdir(parents=True)
    script.write_text(CONDA_SH)
    return script


def test_a_conda_installation_that_nobody_set_up_can_be_used(
    run_job: StartJob, home: Path, conda: Path
) -> None:
    job = run_job("conda activate x; echo ${PATH##*:}", home=home, setup="conda create")
    assert job.log == "conda create\nconda activate x\n/condabin\n"


def test_a_conda_on_the_path_is_the_one(run_with: RunWith, home: Path, conda: Path, tmp_path: Path) -> None:
    own = tmp_path / "own" / "etc" / "profile.d" / "conda.sh"
    own.parent.mkdir(parents=True)
    own.write_text(CONDA_SH.replace("conda $*", "own $*"))
    program = tmp_path / "own" / "bin" / "conda"
    program.parent.mkdir()
    program.touch(mode=0o755)
    job = run_with(f"export PATH=$PATH:{shlex.quote(str(program.parent))}", "conda activate x")
    assert job.log == "own activate x\n"


def test_a_conda_function_of_the_users_is_left_alone(run_with: RunWith, conda: Path) -> None:
    assert run_with("conda() { echo mine; }", "conda").log == "mine\n"


def test_a_path_that_comes_with_the_job_stays_as_it_is(run_job: StartJob, home: Path, conda: Path) -> None:
    assert run_job("echo $PATH", home=home, variables={"PATH": "/usr/bin:/bin"}).log == "/usr/bin:/bin\n"


# ---- what was written


@pytest.mark.parametrize("data", [b"", b"A=1", b"A=1\0", b"A=1\0\0", b"A=1\0\0f () { :; }"])
def test_half_of_what_was_to_be_written_counts_as_nothing(data: bytes) -> None:
    assert login.parse(data, {}) is None


def test_what_belongs_to_the_shell_is_not_taken_over() -> None:
    found = login.parse(
        b"A=1\0PS1=x\0SHLVL=2\0PWD=/\0" + processes.JOB_MARKER.encode() + b"=j\0\0\0", {"PWD": "/a"}
    )
    assert found == login.Login({"A": "1", "PWD": "/a"})
