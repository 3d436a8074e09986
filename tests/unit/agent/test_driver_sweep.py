"""What a job leaves running is ended with it, with control groups and without. Real drivers, no agent."""

from __future__ import annotations

import os
import signal

import pytest

from airflow_provider.runtime.agent.process import cgroup, processes
from airflow_provider.runtime.agent.process.sweep import end_job
from tests.unit.agent.conftest import DriverRun, StartJob, python, wait_for

pytestmark = pytest.mark.usefixtures("way")


def group_of(job: DriverRun) -> cgroup.Group | None:
    return cgroup.find(job.directory.order().marker)


def test_processes_left_in_the_background_are_ended(run_job: StartJob) -> None:
    job = run_job("sleep 100 & (setsid env -i /bin/sleep 100 &); trap '' TERM; exit 3", grace=0.1)
    assert job.report.exit_codes == (3,)
    assert processes.marked(processes.JOB_MARKER, job.directory.order().marker) == set()


def test_a_program_that_copies_the_output_may_finish(run_job: StartJob) -> None:
    job = run_job('exec > >(while read -r line; do sleep 0.02; echo "seen $line"; done); seq 5')
    assert job.log.split("\n")[-2] == "seen 5"


def test_output_written_by_such_a_program_counts(run_job: StartJob) -> None:
    assert run_job('echo 7 > >(sleep 0.1; cat > "$TASK_OUTPUT_FILE")').report.output == "7\n"


CHAINS = {
    "bash": "f() { f & }; f; exit 0",
    "python": python("import os\nwhile True:\n    if os.fork():\n        os._exit(0)"),
}


@pytest.mark.parametrize("program", CHAINS)
def test_a_chain_of_processes_that_fork_and_exit_is_ended(run_job: StartJob, program: str) -> None:
    job = run_job(CHAINS[program], grace=0.05)
    assert job.report.status == "SUCCEEDED"
    assert "could not be killed" not in job.log


def test_a_process_whose_first_thread_is_over_is_ended(run_job: StartJob) -> None:
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(100,)).start();"
        "print('on'); ctypes.CDLL(None).syscall(60, 0)"
    )
    job = run_job(f"mkfifo f; {python(code)} > f & read -r x < f; echo $x; exit 3", grace=0.05)
    assert (job.report.exit_codes, job.log) == ((3,), "on\n")


# ---- cancel


def test_a_cancelled_job_is_gone_with_all_that_it_started(start_job: StartJob) -> None:
    job = start_job("setsid sleep 100 & echo on; sleep 100")
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert processes.marked(processes.JOB_MARKER, job.directory.order().marker) == set()


def test_a_cancelled_job_may_clean_up(start_job: StartJob) -> None:
    job = start_job("trap 'echo saved; exit 0' TERM; echo on; while :; do sleep 0.01; done")
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert "saved\n" in job.log


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(start_job: StartJob) -> None:
    job = start_job("trap '' TERM; echo on; while :; do sleep 100; done", grace=0.2)
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"


def test_nothing_is_written_to_the_log_after_the_last_report(start_job: StartJob) -> None:
    job = start_job("trap '' TERM; (trap '' TERM; while :; do echo x; done) & echo on; wait", grace=0.1)
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    size = job.wait().directory.log_size()
    os.sync()
    assert job.directory.log_size() == size


def test_a_cancel_during_setup_keeps_the_run_from_starting(start_job: StartJob) -> None:
    job = start_job("echo run", setup="echo on; sleep 100")
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert "run" not in job.log


def test_all_of_a_job_is_in_its_group_and_the_driver_is_not(start_job: StartJob, way: str) -> None:
    job = start_job("(setsid env -i /bin/sleep 100 &); echo on; sleep 100")
    job.wait_for_log("on")
    group = group_of(job)
    assert (group is not None) == (way == "groups")
    if group is not None:
        wait_for(lambda: len(group.processes()) == 3, "bash and its two children")
        assert job.pid() not in {process.pid for process in group.processes()}
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert group_of(job) is None


def test_a_kernel_that_starts_nothing_in_a_group_is_no_obstacle(start_job: StartJob, way: str) -> None:
    if way != "groups":
        return  # there is no group to start anything in
    without = "from airflow_provider.runtime.agent.process import children; children._SYS_CLONE3 = 9999; "
    job = start_job(
        "cat /proc/self/cgroup; (setsid env -i /bin/sleep 100 &); echo on; exec sleep 100", before=without
    )
    job.wait_for_log("on")
    group = group_of(job)
    assert group is not None
    assert f"/{group.path.name}\n" in job.log, "the shell began in its group"
    wait_for(lambda: len(group.processes()) == 2, "its child")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert group_of(job) is None


def test_a_group_that_somebody_removed_is_no_obstacle(run_job: StartJob, way: str) -> None:
    if way != "groups":
        return  # there is none to remove
    removed = (
        "from airflow_provider.runtime.agent.process import cgroup; create = cgroup.create; "
        "cgroup.create = lambda marker: [group := create(marker), group.remove()][0]; "
    )
    job = run_job("sleep 100 & echo on; exit 3", before=removed, grace=0.0)
    assert (job.report.exit_codes, job.log) == ((3,), "on\n")


def test_the_group_is_gone_after_a_job_that_just_ends(run_job: StartJob, way: str) -> None:
    job = run_job("cat /proc/self/cgroup", setup="true")
    assert job.report.status == "SUCCEEDED"
    assert ("/managed-jobs-test-" in job.log) == (way == "groups"), "the script began in the group"
    assert group_of(job) is None


def test_groups_that_the_job_made_in_its_own_are_emptied_and_removed(run_job: StartJob, way: str) -> None:
    if way != "groups":
        return  # there is no own group to make others in
    mount = cgroup.find_hierarchy()
    assert mount is not None
    job = run_job(
        f"own={mount.mount}$(sed -n 's/^0:://p' /proc/self/cgroup)\n"
        "mkdir -p $own/a/b; (echo $BASHPID > $own/a/b/cgroup.procs; exec sleep 100) & sleep 0.1; exit 3",
        grace=0.0,
    )
    assert job.report.exit_codes == (3,)
    assert "could not be killed" not in job.log
    assert group_of(job) is None


def test_what_a_dead_driver_left_is_ended_by_the_agent(start_job: StartJob, way: str) -> None:
    # `env -i` and `setsid` leave only the group to know it by, so without groups it keeps its environment.
    leave = "setsid env -i /bin/sleep 100" if way == "groups" else "setsid /bin/sleep 100"
    job = start_job(f"({leave} & echo $! > pid); echo on; sleep 100")
    job.wait_for_log("on")
    stray = int((job.directory.path / "home" / "sky_workdir" / "pid").read_text())
    job.send(signal.SIGKILL)
    job.wait()
    marker = job.directory.order().marker
    assert end_job(marker, grace=5.0, limit=20) == set()
    assert stray not in processes.process_table()
    assert cgroup.find(marker) is None


def test_the_agent_asks_before_it_kills_what_a_dead_driver_left(start_job: StartJob) -> None:
    job = start_job("trap 'echo asked; exit' TERM; echo on; while :; do sleep 0.01; done")
    job.wait_for_log("on")
    job.send(signal.SIGKILL)
    job.wait()
    assert end_job(job.directory.order().marker, grace=3600, limit=7200) == set()
    assert "asked" in job.log


def test_a_chain_of_forks_that_a_dead_driver_left_is_ended(start_job: StartJob, way: str) -> None:
    if way != "groups":
        return  # nothing but a group catches what is gone before one can look at it
    job = start_job("echo on; " + CHAINS["bash"] + " & " + CHAINS["python"])
    job.wait_for_log("on")
    job.send(signal.SIGKILL)
    job.wait()
    marker = job.directory.order().marker
    assert end_job(marker, grace=0.05, limit=20) == set()
    assert cgroup.find(marker) is None


def test_k38_neighbours_of_a_dead_driver_go_on(start_job: StartJob, tmp_path, marker: str) -> None:
    neighbour = start_job("echo on; until [ -e go ]; do sleep 0.01; done", marker_suffix="-neighbour")
    neighbour.wait_for_log("on")
    job = start_job("echo on; sleep 100")
    job.wait_for_log("on")
    job.send(signal.SIGKILL)
    job.wait()
    assert end_job(job.directory.order().marker, grace=0, limit=20) == set()
    (neighbour.directory.path / "home" / "sky_workdir" / "go").touch()
    assert neighbour.wait().report.status == "SUCCEEDED"


def test_nothing_of_the_programs_of_a_queued_job_is_left(start_job: StartJob, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['setsid', 'sleep', '100'])\n"
        "print('on')\n"
        "time.sleep(100)\n"
    )
    job = start_job(program=str(program), grace=0.1)
    job.wait_for_log("on")
    job.send(signal.SIGTERM)
    assert job.wait().report.status == "CANCELLED"
    assert processes.marked(processes.JOB_MARKER, job.directory.order().marker) == set()
    assert group_of(job) is None
