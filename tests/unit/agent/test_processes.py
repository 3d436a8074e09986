"""Ending process trees: everything that belongs to a job, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.agent.process.processes import JOB_MARKER, Process, end, members, process_table
from tests.unit.agent.conftest import Start, wait_for


@pytest.fixture
def find(marker: str) -> partial[set[Process]]:
    return partial(members, [], JOB_MARKER, marker)


def test_members_are_the_marked_processes_and_their_descendants(start: Start, find) -> None:
    job = start("env -i sleep 100 & echo ready; wait")
    wait_for(lambda: len(find()) == 2, "the child")
    assert job.pid in {process.pid for process in find()}
    assert end(find, grace=0, limit=10) == set()


def test_the_asking_process_is_never_a_member(marker: str) -> None:
    assert os.getpid() not in {p.pid for p in members([os.getpid()], JOB_MARKER, marker)}


def test_spared_processes_are_not_members_though_their_children_are(start: Start, find, marker: str) -> None:
    job = start("sleep 100 & echo ready; wait")
    found = {p.pid for p in members([], JOB_MARKER, marker, spare=[job.pid])}
    assert job.pid not in found
    assert len(found) == 1
    assert end(find, grace=0, limit=10) == set()


def test_a_command_name_with_spaces_and_parentheses_is_no_obstacle(start: Start, find, tmp_path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    start(f"'{program}' 100 & echo ready; wait")
    wait_for(lambda: len(find()) == 2, "the child")
    assert end(find, grace=0, limit=10) == set()


def test_a_polite_process_ends_itself_before_the_grace_is_over(start: Start, find, tmp_path) -> None:
    start(f"trap 'echo bye > {tmp_path}/said; exit' TERM; echo ready; while :; do sleep 0.01; done")
    assert end(find, grace=3600, limit=7200) == set()  # a test that waited for that would not end
    assert (tmp_path / "said").read_text() == "bye\n"


class Clock:
    """Stands still but while ``end`` waits for processes."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, _: set[Process], seconds: float) -> None:
        self.now += seconds


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(
    start: Start, find, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, sent = Clock(), []
    send = processes._send

    def recorded(process: Process, number: signal.Signals) -> None:
        sent.append((number, clock.now))
        send(process, number)

    monkeypatch.setattr(processes, "time", clock)
    monkeypatch.setattr(processes, "_await_exit", clock.wait)
    monkeypatch.setattr(processes, "_send", recorded)
    job = start("trap '' TERM; echo ready; while :; do sleep 100; done")
    assert end(find, grace=2.5, limit=3600) == set()
    assert sent[0] == (signal.SIGTERM, 0.0)
    assert min(at for number, at in sent if number != signal.SIGTERM) == pytest.approx(2.5)
    assert max(at for number, at in sent if number == signal.SIGTERM) < 2.5
    assert job.wait(10) == -signal.SIGKILL


def test_a_stopped_process_is_ended(start: Start, find) -> None:
    job = start("echo ready; kill -STOP $$; sleep 100")
    assert end(find, grace=0.1, limit=10) == set()
    assert job.wait(10) < 0


def test_a_process_is_dead_when_its_last_thread_is() -> None:
    code = (
        "import ctypes, os, sys, threading;"
        "threading.Thread(target=sys.stdin.read).start(); ctypes.CDLL(None).syscall(60, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        wait_for(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes(), "the first thread to end")
        now = processes.read_process(process.pid)
        assert now is not None
        processes._send(now, signal.SIGKILL)
        wait_for(lambda: processes.read_process(process.pid) is None, "the others to end")


def test_a_daemon_that_left_its_session_and_its_parent_is_ended(start: Start, find) -> None:
    start("(setsid bash -c 'setsid sleep 100 & exec setsid sleep 100' &) ; echo ready; sleep 100")
    wait_for(lambda: len(find()) >= 3, "the daemons")
    assert end(find, grace=0, limit=10) == set()
    assert find() == set()


def test_processes_that_cleared_their_environment_are_ended_with_their_parents(
    start: Start, find, tmp_path
) -> None:
    start(f"setsid env -i /bin/sh -c 'echo $$ > {tmp_path}/pid; sleep 100' & echo ready; wait")
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the child")
    child = int((tmp_path / "pid").read_text())
    assert child in process_table()
    assert end(find, grace=0, limit=10) == set()
    assert child not in process_table()


def test_neighbours_are_left_alone(start: Start, find) -> None:
    neighbour = start("echo ready; exec sleep 100", marked=False)
    start("echo ready; exec sleep 100")
    assert end(find, grace=0, limit=10) == set()
    assert neighbour.poll() is None


def test_a_process_with_a_marker_that_only_begins_alike_is_a_neighbour(start: Start, marker: str) -> None:
    start("echo ready; exec sleep 100")
    assert members([], JOB_MARKER, marker[:-1]) == set()


def test_a_signal_never_reaches_a_process_that_reuses_the_pid(start: Start) -> None:
    job = start("echo ready; exec sleep 100")
    (now,) = (p for p in process_table().values() if p.pid == job.pid)
    processes._send(now._replace(started=now.started - 1), signal.SIGKILL)
    assert job.poll() is None


def test_a_loop_that_keeps_forking_is_ended(start: Start, find) -> None:
    start("trap '' TERM; echo ready; while :; do sleep 100 & sleep 0.001; done")
    wait_for(lambda: len(find()) > 20, "the storm")
    assert end(find, grace=0.1, limit=20) == set()
    assert find() == set()


def test_the_group_of_the_asking_process_is_never_killed(marker: str, find) -> None:
    with subprocess.Popen(["sleep", "100"], env={**os.environ, JOB_MARKER: marker}) as child:
        wait_for(find, "the child")
        assert {p.group for p in find()} == {0}, "the group holds the test itself"
        assert end(find, grace=0, limit=10, reap=None) == set()
        assert child.wait(10) == -signal.SIGKILL


def test_what_does_not_die_within_the_limit_is_returned() -> None:
    undying = Process(pid=2, parent=0, group=0, started=0)
    assert end(lambda: {undying}, grace=0, limit=0.1) == {undying}


def test_a_caller_that_owns_all_orphans_is_not_done_before_the_last_child_is() -> None:
    answers = iter([True, True, False])
    assert end(set, grace=0, limit=10, reap=lambda: next(answers)) == set()
    assert next(answers, None) is None
