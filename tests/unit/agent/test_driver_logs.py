"""The log files of a job, its devices, and cached mounts at its end. Real drivers, no agent."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from tests.unit.agent.conftest import StartJob


def test_everything_is_in_one_log_and_setup_has_one_of_its_own(run_job: StartJob) -> None:
    job = run_job("echo run; echo err >&2; printf end", setup="echo setup; (exit 3); printf done")
    assert job.log.startswith("setup\ndone[managed job] setup: warning:")
    assert job.log.endswith("\nrun\nerr\nend")
    setup, run = job.directory.tasks / "setup.log", job.directory.tasks / "run.log"
    assert job.log == setup.read_text() + "run\nerr\nend"
    assert run.readlink() == Path("../run.log")
    assert run.read_text() == job.log


def test_k98_the_log_of_a_failed_setup_is_kept(run_job: StartJob) -> None:
    job = run_job("echo run", setup="echo pip is missing >&2; exit 4")
    assert (job.directory.tasks / "setup.log").read_text() == job.log == "pip is missing\n"
    assert not os.path.lexists(job.directory.tasks / "run.log")


def test_the_log_of_a_cancelled_setup_is_kept(start_job: StartJob) -> None:
    job = start_job("echo run", setup="echo on; sleep 100")
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    job.wait()
    assert (job.directory.tasks / "setup.log").read_text() == "on\n"


def test_a_large_log_of_setup_is_copied_whole(run_job: StartJob) -> None:
    job = run_job("echo run", setup="seq 300000")
    assert (job.directory.tasks / "setup.log").read_text() + "run\n" == job.log


def test_nobody_else_can_read_the_logs(run_job: StartJob) -> None:
    job = run_job("echo run", setup="umask 000; echo setup")
    for path in (job.directory.log, job.directory.tasks / "setup.log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("harm", ["rm -rf {}", "chmod 0 {}; touch {}/x", "rm -rf {}; touch {}"])
def test_a_job_that_harms_its_logs_ends_as_it_would(run_job: StartJob, harm: str, tmp_path: Path) -> None:
    tasks = tmp_path / "logs" / "0-a job" / "tasks"
    job = run_job("echo run", setup=harm.replace("{}", f"'{tasks}'") + "; true")
    assert job.report.status == "SUCCEEDED"
    assert job.log.endswith("run\n")


# ---- devices


def test_run_has_the_devices_of_the_job_and_setup_has_none(
    run_job: StartJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    show = "echo ${CUDA_VISIBLE_DEVICES-unset}"
    assert run_job(show, setup=show, devices="2,3").log == "unset\n2,3\n"
    assert run_job(show, setup=show, devices="").log == "unset\n\n"
    assert run_job(show, setup=show, devices="1", variables={"CUDA_VISIBLE_DEVICES": "9"}).log == "unset\n1\n"


def test_a_node_without_devices_leaves_the_variable_alone(
    run_job: StartJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7")
    show = "echo ${CUDA_VISIBLE_DEVICES-unset}"
    assert run_job(show, setup=show).log == "GPU-7\nGPU-7\n"
    assert run_job(show, variables={"CUDA_VISIBLE_DEVICES": "9"}).log == "9\n"


def test_what_ray_left_in_the_environment_is_not_there(
    run_job: StartJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_RAYLET_PID", "1")
    assert run_job("echo ${RAY_RAYLET_PID-unset}").log == "unset\n"


# ---- cached mounts

# Looks like an rclone that mounts; it uploads once the file `uploaded` is there.
RCLONE = """
log=$HOME/.sky/rclone_log/data.log
mkdir -p ${log%/*}; touch $log
cat > rclone.sh <<'EOF'
line() { echo "INFO : vfs cache: cleaned: objects 1 (was 1) in use 0, to upload $1, uploading 0, total size 1" >> $5; }
echo $$ > rclone.pid
while [ ! -e uploaded ]; do line 1 "$@"; sleep 0.1; done
while :; do line 0 "$@"; sleep 0.1; done
EOF
setsid bash -c 'exec -a rclone bash rclone.sh mount remote:data --log-file '$log >/dev/null 2>&1 &
until [ -e rclone.pid ]; do sleep 0.01; done
"""


@pytest.mark.parametrize("end", ["exit 0", "exec true"])
def test_i1_27_uploads_are_waited_for_whatever_way_the_script_ends(start_job: StartJob, end: str) -> None:
    job = start_job(f"echo run; {end}", setup=RCLONE)
    job.wait_for_log("[managed job] waiting for uploads of ")
    assert job.report.status == "RUNNING"
    (job.directory.path / "home" / "sky_workdir" / "uploaded").touch()
    assert job.wait().report.status == "SUCCEEDED"
    assert job.log.endswith("[managed job] all uploads are done\n")


@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_i1_27_a_job_that_fails_waits_too_and_keeps_its_code(
    start_job: StartJob, end: str, code: int
) -> None:
    job = start_job(f"touch uploaded; {end}", setup=RCLONE).wait()
    assert (job.report.status, job.report.exit_codes) == ("FAILED", (code,))
    assert "[managed job] all uploads are done\n" in job.log
    assert "upload" not in job.report.reason


def test_i1_27_uploads_that_do_not_end_fail_the_job(run_job: StartJob) -> None:
    job = run_job("echo run", setup=RCLONE, flush_seconds=1.5)
    assert (job.report.status, job.report.exit_codes) == ("FAILED", (0,))
    assert "run ended with exit code 0, but uploads did not end within 1.5 s" in job.report.reason
    assert ".sky/rclone_log/data.log (1 file(s) left)" in job.report.reason


def test_i1_27_both_failures_are_told(run_job: StartJob) -> None:
    report = run_job("exit 7", setup=RCLONE, flush_seconds=1.2).report
    assert (report.status, report.exit_codes) == ("FAILED", (7,))
    assert report.reason.startswith("run failed with exit code 7; uploads did not end within 1.2 s")


def test_i1_27_a_mount_that_dies_before_its_uploads_fails_the_job(start_job: StartJob) -> None:
    job = start_job("echo run", setup=RCLONE)
    job.wait_for_log("waiting for uploads")
    os.kill(int((job.directory.path / "home" / "sky_workdir" / "rclone.pid").read_text()), signal.SIGKILL)
    assert job.wait().report.status == "FAILED"
    assert "a cached mount ended before its uploads" in job.report.reason


def test_a_cancelled_job_does_not_wait_for_uploads(start_job: StartJob) -> None:
    job = start_job("echo on; sleep 100", setup=RCLONE)
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert "uploads" not in job.log


def test_a_cancel_ends_the_wait_for_uploads(start_job: StartJob) -> None:
    job = start_job("echo run", setup=RCLONE)
    job.wait_for_log("waiting for uploads")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"


def test_without_cached_mounts_nobody_waits(run_job: StartJob) -> None:
    job = run_job("mkdir -p ~/.sky/rclone_log; echo old > ~/.sky/rclone_log/old.log")
    assert (job.report.status, job.log) == ("SUCCEEDED", "")
