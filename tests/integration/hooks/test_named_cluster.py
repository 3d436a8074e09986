"""Clusters by name: what a DAG author does with them, on this machine's own infra (K47)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.cluster_job import JobFailed
from airflow_provider.hooks.cluster_link import ClusterGone
from airflow_provider.hooks.connection import local_settings
from airflow_provider.hooks.named_cluster import NamedCluster
from airflow_provider.runtime.client.base import JobStatus, NoSuchJob
from airflow_provider.runtime.infra.base import NotFeasible
from airflow_provider.runtime.infra.local import LocalInfra
from airflow_provider.runtime.task import TaskValidationError

LINES = "for i in 1 2 3; do echo line $i; done"


@pytest.fixture(autouse=True)
def infra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalInfra]:
    """This machine's clusters in a home of their own; none may be left."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    infra = LocalInfra(local_settings().root)
    yield infra
    left = infra.clusters()
    for name in left:
        infra.preempt(name)
    assert left == []


@pytest.fixture
def cluster(infra: LocalInfra) -> Iterator[NamedCluster]:
    """A cluster that is removed at the end."""
    with ClusterHook().cluster("digits") as cluster:
        yield cluster


def waiting(flag: Path) -> str:
    """A job that says "ready" and goes on when ``flag`` exists."""
    return f"echo ready; while [ ! -e {flag} ]; do sleep 0.05; done; echo done"


def test_a_command_runs_and_its_output_comes_back(cluster: NamedCluster) -> None:
    lines: list[str] = []
    result = cluster.run(f"{LINES}; echo '[1, 2]' > $TASK_OUTPUT_FILE", log=lines.append)
    assert lines == ["line 1", "line 2", "line 3"]
    assert (result.succeeded, result.output, result.exit_codes) == (True, [1, 2], (0,))
    assert result.last_lines == ("line 1", "line 2", "line 3")


def test_a_task_brings_files_variables_and_setup(
    cluster: NamedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "s3cret")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "data").write_text("from the file\n")
    lines: list[str] = []
    cluster.run(
        {
            "workdir": str(tmp_path / "src"),
            "envs": {"WHO": "ada"},
            "secrets": {"TOKEN": "variable:TOKEN"},
            "setup": "echo set up",
            "run": "cat data; echo $WHO ${#TOKEN} $SKYPILOT_CLUSTER_INFO",
        },
        log=lines.append,
    )
    assert lines[:2] == ["set up", "from the file"]
    assert lines[2].startswith('ada 6 {"cluster_name": "digits", "cloud": "local"')


def test_a_failure_is_raised_with_its_last_lines_or_returned(cluster: NamedCluster) -> None:
    with pytest.raises(JobFailed, match=r"FAILED.*\[exit codes: 3\]\n  hello") as caught:
        cluster.run("echo hello; exit 3")
    assert caught.value.result.exit_codes == (3,)
    assert cluster.run("exit 4", check=False).exit_codes == (4,)


def test_without_a_sink_the_log_goes_to_the_hook_s_logger(
    cluster: NamedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("echo to the task log")
    assert "to the task log" in capsys.readouterr().out


def test_a_second_hook_finds_the_same_cluster_and_its_jobs(cluster: NamedCluster, tmp_path: Path) -> None:
    job_id = cluster.submit(waiting(tmp_path / "flag"))
    other = ClusterHook().cluster("digits")
    assert [job.job_id for job in other.jobs()] == [job_id]
    assert other.status(job_id).status in (JobStatus.PENDING, JobStatus.SETTING_UP, JobStatus.RUNNING)
    assert other.cancel(job_id).status is JobStatus.CANCELLED
    assert cluster.status(job_id).status is JobStatus.CANCELLED
    assert cluster.jobs() == []
    assert [job.job_id for job in cluster.jobs(all=True)] == [job_id]


def test_a_job_of_another_process_can_be_followed_and_cancelled(
    cluster: NamedCluster, tmp_path: Path
) -> None:
    program = (
        "import sys\n"
        "from airflow_provider import ClusterHook\n"
        "print(ClusterHook().cluster('digits').submit(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", program, waiting(tmp_path / "flag")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    job_id = int(done.stdout.splitlines()[-1])
    assert "Error" not in done.stderr, "a process that ends without closing anything ends in peace"
    lines = cluster.logs(job_id)
    assert next(lines) == "ready"
    assert cluster.cancel(job_id).status is JobStatus.CANCELLED
    assert "done" not in list(lines)


def test_the_same_key_is_the_same_job(cluster: NamedCluster) -> None:
    first = cluster.submit("true", key="once")
    assert ClusterHook().cluster("digits").submit("true", key="once") == first
    assert cluster.submit("true") != first


def test_a_log_is_read_from_its_begin_each_time_and_up_to_now_if_wanted(
    cluster: NamedCluster, tmp_path: Path
) -> None:
    job_id = cluster.submit(f"{LINES}; {waiting(tmp_path / 'flag')}")
    following = cluster.logs(job_id)
    assert [next(following) for _ in range(4)] == ["line 1", "line 2", "line 3", "ready"]
    assert list(cluster.logs(job_id, follow=False)) == ["line 1", "line 2", "line 3", "ready"]
    (tmp_path / "flag").touch()
    assert list(following) == ["done"]
    assert list(cluster.logs(job_id))[-1] == "done"


def test_a_log_outlives_the_agent(cluster: NamedCluster, infra: LocalInfra, tmp_path: Path) -> None:
    job_id = cluster.submit(f"{LINES}; {waiting(tmp_path / 'flag')}")
    following = cluster.logs(job_id)
    first = [next(following) for _ in range(4)]
    lock = local_settings().root / "hook.digits" / "agent" / "agent.lock"
    os.kill(int(lock.read_text()), signal.SIGKILL)
    (tmp_path / "flag").touch()
    assert [*first, *following] == ["line 1", "line 2", "line 3", "ready", "done"]
    assert cluster.status(job_id).status is JobStatus.SUCCEEDED


def test_a_cluster_that_vanished_is_told_and_made_anew_for_the_next_job(
    cluster: NamedCluster, infra: LocalInfra, tmp_path: Path
) -> None:
    job_id = cluster.submit(waiting(tmp_path / "flag"))
    following = cluster.logs(job_id)
    assert next(following) == "ready"
    infra.preempt("hook.digits")
    with pytest.raises(ClusterGone, match=r"cluster hook\.digits is gone"):
        list(following)
    with pytest.raises(ClusterGone, match="there is no cluster"):
        cluster.status(job_id)
    assert cluster.run("true").succeeded


def test_what_cannot_be_is_said_before_anything_runs(cluster: NamedCluster) -> None:
    with pytest.raises(NotFeasible, match="100000"):
        cluster.run({"run": "true", "resources": {"cpus": 100000}})
    with pytest.raises(TaskValidationError, match="runn"):
        cluster.run({"runn": "true"})
    with pytest.raises(ValueError, match="cannot be a cluster's name"):
        ClusterHook().cluster("../x")
    cluster.up()
    with pytest.raises(NoSuchJob):
        cluster.status(77)


def test_a_cluster_that_was_never_made_has_no_jobs_and_can_be_removed() -> None:
    absent = ClusterHook().cluster("absent")
    with pytest.raises(ClusterGone, match=r"there is no cluster hook\.absent"):
        absent.jobs()
    absent.down()


def test_an_interrupted_run_cancels_its_job(cluster: NamedCluster, tmp_path: Path) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(line: str) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        cluster.run(waiting(tmp_path / "flag"), log=interrupt)
    (job,) = cluster.jobs(all=True)
    assert job.status is JobStatus.CANCELLED


def test_a_signal_that_breaks_into_a_wait_for_the_log_cancels_the_job(
    cluster: NamedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise TimeoutError("out of time")

    before = signal.signal(signal.SIGUSR1, stop)

    def ready(line: str) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()

    try:
        with pytest.raises(TimeoutError, match="out of time"):
            cluster.run(waiting(tmp_path / "flag"), log=ready)
    finally:
        signal.signal(signal.SIGUSR1, before)
    (job,) = cluster.jobs(all=True)
    assert job.status is JobStatus.CANCELLED


def test_k47_one_object_serves_any_number_of_event_loops(cluster: NamedCluster) -> None:
    """Made where no loop runs, used in two loops one after the other, in a thread, and without a loop between."""

    async def use() -> list[str]:
        job_id = await cluster.asubmit(LINES)
        lines = [line async for line in cluster.alogs(job_id)]
        assert (await cluster.astatus(job_id)).status is JobStatus.SUCCEEDED
        return lines

    assert asyncio.run(use()) == ["line 1", "line 2", "line 3"]
    assert cluster.run("true").succeeded
    assert asyncio.run(use()) == ["line 1", "line 2", "line 3"]
    in_thread: list[list[str]] = []
    thread = threading.Thread(target=lambda: in_thread.append(asyncio.run(use())))
    thread.start()
    thread.join(60)
    assert in_thread == [["line 1", "line 2", "line 3"]]


async def test_k47_calls_without_await_work_where_a_loop_runs(cluster: NamedCluster) -> None:
    assert cluster.run("true").succeeded


async def test_k47_the_caller_s_loop_is_not_held_up(cluster: NamedCluster, tmp_path: Path) -> None:
    running = asyncio.create_task(cluster.arun(waiting(tmp_path / "flag"), log=lambda line: None))
    longest, begin = 0.0, time.monotonic()
    while time.monotonic() - begin < 1.0:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    (tmp_path / "flag").touch()
    assert (await running).succeeded
    assert longest < 0.5


async def test_a_cancelled_coroutine_cancels_its_job(cluster: NamedCluster, tmp_path: Path) -> None:
    seen = asyncio.Event()
    running = asyncio.create_task(cluster.arun(waiting(tmp_path / "flag"), log=lambda line: seen.set()))
    await seen.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (job,) = await cluster.ajobs(all=True)
    assert job.status is JobStatus.CANCELLED


async def test_the_twins_do_the_same(infra: LocalInfra, tmp_path: Path) -> None:
    async with ClusterHook().cluster("twins") as cluster:
        await cluster.aup()
        assert infra.clusters() == ["hook.twins"]
        job_id = await cluster.asubmit(waiting(tmp_path / "flag"))
        assert [job.job_id for job in await cluster.ajobs()] == [job_id]
        assert (await cluster.acancel(job_id)).status is JobStatus.CANCELLED
        await cluster.aclose()
        assert (await cluster.astatus(job_id)).status is JobStatus.CANCELLED
    assert infra.clusters() == []


def test_a_fork_of_a_process_that_used_a_cluster_is_told_that_it_cannot(cluster: NamedCluster) -> None:
    cluster.up()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cluster.run("true")
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    answer = os.read(reading, 1000).decode()
    os.close(reading)
    assert answer.startswith("this process was forked from one that has used a cluster")


def test_nothing_is_left_open_after_close(cluster: NamedCluster) -> None:
    for _ in range(3):
        cluster.run("true")
        cluster.close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        cluster.run("true")
        cluster.close()
    # Two descriptors are of gRPC's own poller, which comes and goes when it pleases.
    assert len(os.listdir("/proc/self/fd")) <= before + 2
