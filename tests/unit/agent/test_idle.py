"""When a cluster counts as idle, by mode and by what is found on it."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.autostop.idle import (
    Action,
    AutostopConfig,
    Found,
    IdleClock,
    WaitFor,
    boot_time,
    decide,
    occupied,
    seconds_to_next_look,
)
from airflow_provider.runtime.agent.autostop.sessions import ssh_sessions
from airflow_provider.runtime.agent.process.processes import process_table
from tests.unit.agent.conftest import Start, wait_for

JOB = Found(live_jobs=1)
HOLD = Found(held=30.0)
SESSION = Found(sessions=1)
BOTH, JOBS, NONE = WaitFor.JOBS_AND_SSH, WaitFor.JOBS, WaitFor.NONE


@pytest.mark.parametrize(
    ("wait_for", "found", "keeps"),
    [
        (BOTH, JOB, True),
        (BOTH, HOLD, True),
        (BOTH, SESSION, True),
        (BOTH, Found(), False),
        (JOBS, JOB, True),
        (JOBS, HOLD, True),
        (JOBS, SESSION, False),
        (JOBS, Found(), False),
        (NONE, JOB, False),
        (NONE, HOLD, False),
        (NONE, SESSION, False),
    ],
)
def test_k23_each_mode_has_its_own_rule_of_what_keeps_a_cluster(
    wait_for: WaitFor, found: Found, keeps: bool
) -> None:
    config = AutostopConfig(60.0, down=True, wait_for=wait_for)
    assert occupied(config, found) is keeps
    assert decide(config, found, 60.0) is (Action.NOTHING if keeps else Action.DOWN)


def test_nothing_is_due_before_the_time_is_over() -> None:
    config = AutostopConfig(60.0, down=False)
    assert decide(config, Found(), 59.9) is Action.NOTHING
    assert decide(config, Found(), 60.0) is Action.STOP


def test_nothing_is_due_without_a_setting() -> None:
    assert decide(None, Found(), 1e9) is Action.NOTHING


def test_the_clock_runs_from_the_look_that_no_longer_finds_it_busy() -> None:
    config = AutostopConfig(60.0, down=True)
    clock = IdleClock.begin(0.0).looked(10.0, busy=True).looked(20.0, busy=False)
    assert clock.idle_seconds(config, 25.0) == 5.0
    assert clock.looked(30.0, busy=False).idle_seconds(config, 30.0) == 10.0


def test_the_plain_timer_runs_from_the_last_submission_on_whatever_happens() -> None:
    config = AutostopConfig(60.0, down=True, wait_for=NONE)
    clock = IdleClock.begin(0.0).job_changed(10.0, submitted=True)
    clock = clock.looked(20.0, busy=True).job_changed(30.0, submitted=False)
    assert clock.idle_seconds(config, 40.0) == 30.0


@pytest.mark.parametrize(
    ("wait_for", "found", "idle", "seconds"),
    [
        (BOTH, JOB, 0.0, math.inf),
        (BOTH, HOLD, 0.0, 30.0),
        (BOTH, SESSION, 0.0, 15.0),
        (BOTH, Found(), 0.0, 15.0),
        (BOTH, Found(), 50.0, 10.0),
        (JOBS, Found(), 20.0, 40.0),
        (JOBS, SESSION, 20.0, 40.0),
        (NONE, JOB, 20.0, 40.0),
        (NONE, JOB, 70.0, 0.0),
    ],
)
def test_nobody_looks_more_often_than_needed(
    wait_for: WaitFor, found: Found, idle: float, seconds: float
) -> None:
    config = AutostopConfig(60.0, down=True, wait_for=wait_for)
    assert seconds_to_next_look(config, found, idle, look_seconds=15.0) == seconds


def test_without_a_setting_nobody_looks_at_all() -> None:
    assert seconds_to_next_look(None, Found(), 0.0, look_seconds=15.0) == math.inf


def test_k23_a_changed_date_does_not_touch_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before = boot_time()
    for days in (1, -1):
        monkeypatch.setattr(time, "time", lambda days=days: 1.7e9 + days * 86400)
        assert 0 <= boot_time() - before < 60


# A session's parts: a server that has opened a terminal, and a program that runs on it.
SERVER = """#!{python}
import os, pty, sys, time
kind = sys.argv[1]
if kind == "terminal":
    pid, handle = pty.fork()
else:
    pid = os.fork()
if pid == 0:
    time.sleep(1000)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def server(tmp_path: Path, start: Start) -> Callable[[str, str], Callable[[], None]]:
    """Start something that looks like an SSH server with a program below it; returns how to end it."""

    def run(name: str, kind: str) -> Callable[[], None]:
        script = tmp_path / name
        script.write_text(SERVER.format(python=sys.executable))
        script.chmod(0o700)
        process = start(f"exec {script} {kind}")

        def end() -> None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for child in children:
                os.kill(int(child), 9)
            process.kill()
            process.wait()
            wait_for(lambda: not process_table().keys() & set(map(int, children)), "the program to end")

        return end

    return run


@pytest.mark.parametrize("name", ["sshd", "sshd-session", "dropbear"])
def test_a_terminal_below_an_ssh_server_is_a_session(
    name: str, server: Callable[[str, str], Callable[[], None]]
) -> None:
    before = ssh_sessions()
    end = server(name, "terminal")
    wait_for(lambda: ssh_sessions() == before + 1, "the session to be seen")
    end()
    wait_for(lambda: ssh_sessions() == before, "the session's end to be seen")


def test_a_tunnel_below_an_ssh_server_is_none(server: Callable[[str, str], Callable[[], None]]) -> None:
    before = ssh_sessions()
    end = server("sshd", "tunnel")
    assert ssh_sessions() == before
    end()


def test_a_terminal_below_anything_else_is_none(server: Callable[[str, str], Callable[[], None]]) -> None:
    before = ssh_sessions()
    end = server("tmux", "terminal")
    assert ssh_sessions() == before
    end()
