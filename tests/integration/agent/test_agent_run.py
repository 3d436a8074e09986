"""How setup, run and queued programs are run, seen through a real agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.trees import remove_tree
from airflow_provider.runtime.client import JobState, JobStatus
from airflow_provider.runtime.client.base import Demand
from airflow_provider.runtime.wire import jobs_pb2, rpcs
from tests.integration.clusters import OWNER, Cluster, eventually

BASHRC = """cat > ~/.bashrc <<'EOF'
echo noise; echo noise >&2
case $- in *i*) ;; *) return;; esac
export PATH=$HOME/tools:$PATH FROM_BASHRC='it is' TOKEN=bashrc
greet() { echo "hello $1"; }
read -r -p 'Continue? ' answer
exit 3
EOF
"""


async def test_what_setup_writes_into_bashrc_is_there_in_run(cluster: Cluster) -> None:
    seen = await cluster.run(
        'greet "$FROM_BASHRC"; echo "${PATH%%/tools*}"; echo "$TOKEN"',
        setup=BASHRC,
        secrets={"TOKEN": "a $HOME `id`\n'ünï"},
    )
    home = cluster.job_directory(seen.end.job_id).path / "home"
    assert seen.text == f"hello it is\n{home}\na $HOME `id`\n'ünï\n"


async def test_a_bashrc_that_starts_another_shell_is_told_and_does_no_harm(cluster: Cluster) -> None:
    seen = await cluster.run("echo run", setup="echo 'exec sh' > ~/.bashrc; echo setup")
    assert seen.end.status is JobStatus.SUCCEEDED
    assert seen.text.startswith("setup\n[managed job] what ~/.bashrc sets is not there: ")
    assert seen.text.endswith("\nrun\n")


async def test_the_logs_are_where_people_look_for_them(cluster: Cluster) -> None:
    seen = await cluster.run("echo run", setup="echo setup", name="my job")
    (logs,) = (cluster.directory / "sky_logs").glob(f"{seen.end.job_id}-*")
    assert (logs / "run.log").read_text() == seen.text == "setup\nrun\n"
    assert (logs / "tasks" / "setup.log").read_text() == "setup\n"
    assert (logs / "tasks" / "run.log").read_text() == seen.text


async def test_k98_the_output_of_a_failed_setup_is_in_the_log(cluster: Cluster) -> None:
    seen = await cluster.run("echo run", setup="echo no such wheel >&2; exit 5")
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED_SETUP, (5,))
    assert seen.text == "no such wheel\n"


async def test_i1_25_a_setup_that_was_killed_for_want_of_memory_has_failed(cluster: Cluster) -> None:
    seen = await cluster.run("echo run", setup="kill -9 $$")
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED_SETUP, (137,))
    assert "run" not in seen.text


async def test_i1_26_a_run_that_was_killed_is_told_with_its_reason(cluster: Cluster) -> None:
    seen = await cluster.run("printf 'last words'; kill -9 $$")
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED, (137,))
    assert seen.end.reason == "run was killed by SIGKILL (exit code 137)"
    assert seen.text == "last words"


async def test_i1_28_nothing_with_a_secret_is_on_disk_while_the_job_runs(cluster: Cluster) -> None:
    job_id = await cluster.start("echo ready; sleep 100", setup="true", secrets={"TOKEN": "s3cret-i28"})
    found = await asyncio.create_subprocess_exec(
        "grep", "-rl", "s3cret-i28", str(cluster.directory), stdout=asyncio.subprocess.PIPE
    )
    assert await found.communicate() == (b"", None)
    await cluster.client.cancel(job_id, OWNER, limit=30)


FAKE_RCLONE = """
log=$HOME/.sky/rclone_log/data.log
mkdir -p ${log%/*}; touch $log
cat > rclone.sh <<'EOF'
echo $$ > rclone.pid
while :; do
  if [ -e uploaded ]; then left=0; else left=1; fi
  echo "INFO : vfs cache: cleaned: objects 1 (was 1) in use 0, to upload $left, uploading 0, total size 1" >> $4
  sleep 0.1
done
EOF
setsid bash -c 'exec -a rclone bash rclone.sh mount remote:data --log-file '$log >/dev/null 2>&1 &
until [ -e rclone.pid ]; do sleep 0.01; done
"""


async def test_i1_27_a_job_lasts_until_its_uploads_are_done(cluster: Cluster) -> None:
    job_id = await cluster.submit("exec true", setup=FAKE_RCLONE)
    await cluster.until_log(job_id, "waiting for uploads of ")
    assert (await cluster.client.status(job_id)).status is JobStatus.RUNNING
    (cluster.job_directory(job_id).path / "home" / "sky_workdir" / "uploaded").touch()
    seen = await cluster.follow_to_end(job_id)
    assert seen.end.status is JobStatus.SUCCEEDED
    assert seen.text.endswith("all uploads are done\n")


async def test_i1_27_an_upload_that_is_lost_fails_the_job(cluster: Cluster) -> None:
    job_id = await cluster.submit("true", setup=FAKE_RCLONE)
    await cluster.until_log(job_id, "waiting for uploads of ")
    workdir = cluster.job_directory(job_id).path / "home" / "sky_workdir"
    os.kill(int((workdir / "rclone.pid").read_text()), signal.SIGKILL)
    end = (await cluster.follow_to_end(job_id)).end
    assert end.status is JobStatus.FAILED
    assert "a cached mount ended before its uploads: " in end.reason
    assert "/.sky/rclone_log/data.log (" in end.reason


# ---- queued programs


async def queue(cluster: Cluster, program: str) -> int:
    channel = cluster.client._channel
    added = await rpcs.ADD_JOB.unary(channel)(
        jobs_pb2.AddJobRequest(job_name="program", username="somebody", run_timestamp=os.urandom(8).hex()),
        timeout=10,
    )
    request = jobs_pb2.QueueJobRequest(
        job_id=added.job_id,
        codegen=program,
        remote_log_dir=added.log_dir,
        script_path=f"~/.sky/sky_app/sky_job_{added.job_id}",
    )
    await rpcs.QUEUE_JOB.unary(channel)(request, timeout=10)
    return added.job_id


REPORT = """
import json, os, sys
def report(**said):
    path = os.environ["MANAGED_JOBS_REPORT"]
    with open(path + ".part", "w") as file:
        json.dump(said, file)
    os.replace(path + ".part", path)
"""


async def test_a_queued_program_runs_with_the_python_of_the_agent(cluster: Cluster) -> None:
    seen = await cluster.follow_to_end(await queue(cluster, "import sys, grpc; print(sys.executable)"))
    assert (seen.end.status, seen.text) == (JobStatus.SUCCEEDED, f"{sys.executable}\n")


@pytest.mark.parametrize(
    ("end", "status", "codes"),
    [
        ("sys.exit(7)", JobStatus.FAILED, (7,)),
        ("report(status='FAILED_SETUP', exit_codes=[137])", JobStatus.FAILED_SETUP, (137,)),
        ("report(status='SUCCEEDED', exit_codes=[0, 0])", JobStatus.SUCCEEDED, (0, 0)),
        ("report(status='SUCCEEDED'); sys.exit(2)", JobStatus.FAILED, (2,)),
        ("report(status='SUCCEEDED', exit_codes=[5, -5])", JobStatus.FAILED, (5, -5)),
        ("report(status='NONSENSE'); sys.exit(3)", JobStatus.FAILED, (3,)),
    ],
)
async def test_a_queued_program_says_how_it_ended(
    cluster: Cluster, end: str, status: JobStatus, codes: tuple[int, ...]
) -> None:
    state = (await cluster.follow_to_end(await queue(cluster, REPORT + end))).end
    assert (state.status, state.exit_codes) == (status, codes)


async def test_what_a_queued_program_says_while_it_runs_is_told_at_once(cluster: Cluster) -> None:
    job_id = await queue(cluster, REPORT + "report(status='SETTING_UP'); import time; time.sleep(100)")
    await cluster.until_status(job_id, JobStatus.SETTING_UP)
    await cluster.client.cancel(job_id, OWNER, limit=30)


async def test_a_program_that_is_cancelled_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    program = f"""
import subprocess, time
child = subprocess.Popen(["setsid", "sleep", "100"])
with open({json.dumps(str(tmp_path / "pid"))}, "w") as file:
    file.write(str(child.pid))
print("ready", flush=True)
time.sleep(100)
"""
    job_id = await queue(cluster, program)
    await cluster.until_log(job_id, "ready")
    assert (await cluster.client.cancel(job_id, OWNER, limit=30)).status is JobStatus.CANCELLED
    stray = int((tmp_path / "pid").read_text())
    await eventually(lambda: not Path(f"/proc/{stray}").exists(), "its child to be gone")


# ---- drivers that cannot begin


@pytest.mark.own_cluster
async def test_k36_a_job_whose_driver_cannot_begin_has_failed_and_the_next_one_runs(cluster: Cluster) -> None:
    # All that this agent can run at once, so that the next one waits.
    blocker = await cluster.start("echo ready; sleep 600", demand=Demand(cpus=os.cpu_count()))
    waiting = await cluster.submit("echo never")
    cluster.job_directory(waiting).order_file.write_text("{")
    following = asyncio.create_task(cluster.follow_to_end(waiting))
    after = await cluster.submit("echo on")
    await cluster.client.cancel(blocker, OWNER, limit=30)
    end = (await following).end
    assert end.status is JobStatus.FAILED_DRIVER
    assert "driver" in end.reason
    assert (await cluster.follow_to_end(after)).text == "on\n"


@pytest.mark.own_cluster
async def test_k36_a_job_whose_directory_is_no_more_has_failed(cluster: Cluster) -> None:
    blocker = await cluster.start("echo ready; sleep 600", demand=Demand(cpus=os.cpu_count()))
    waiting = await cluster.submit("echo never")
    remove_tree(cluster.job_directory(waiting).path)
    await cluster.client.cancel(blocker, OWNER, limit=30)
    end = await asyncio.wait_for(_terminal(cluster, waiting), 10)
    assert end.status is JobStatus.FAILED_DRIVER
    assert (await cluster.run("echo on")).text == "on\n"


async def _terminal(cluster: Cluster, job_id: int) -> JobState:
    return (await cluster.follow_to_end(job_id)).end


@pytest.mark.parametrize(
    ("end", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139), ("exec false", 1)]
)
async def test_k13_a_rank_that_fails_fails_the_job_with_its_code_and_leaves_nothing(
    cluster: Cluster, end: str, code: int
) -> None:
    seen = await cluster.run(f"setsid sleep 1000 & {end}", grace_seconds=0.2)
    assert (seen.end.status, seen.end.exit_codes) == (JobStatus.FAILED, (code,))
    assert not [line for _, line in cluster.programs() if "sleep 1000" in line]
