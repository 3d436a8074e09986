"""Hooks: what they are given, how they end, and that nothing they do keeps the cluster from ending."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.autostop.hooks import Hook, Outcome, run_hooks
from airflow_provider.runtime.agent.process import processes
from tests.unit.agent.conftest import wait_for


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "hooks"


async def run(directory: Path, *hooks: Hook, event: str = "down", grace: float = 0.2) -> list[Outcome]:
    return await run_hooks(hooks, event, directory=directory, grace_seconds=grace)


def alive(pid_file: Path) -> bool:
    return int(pid_file.read_text()) in processes.process_table()  # zombies are dead


async def test_they_run_in_order_and_know_the_event(directory: Path) -> None:
    outcomes = await run(directory, Hook('echo "first $SKYPILOT_HOOK_EVENT"'), Hook("echo second >&2"))
    assert [outcome.code for outcome in outcomes] == [0, 0]
    log = directory / "down.log"
    lines = [line for line in log.read_text().splitlines() if not line.startswith("[")]
    assert lines == ["first down", "second"]
    assert log.stat().st_mode & 0o777 == 0o600


async def test_only_those_of_the_event_run(directory: Path) -> None:
    outcomes = await run(
        directory,
        Hook("echo stop", events=("stop",)),
        Hook("echo both", events=("stop", "down")),
        Hook("echo preemption", events=("preemption",)),
        event="stop",
    )
    assert len(outcomes) == 2
    assert "preemption" not in (directory / "stop.log").read_text()
    assert not (directory / "down.log").exists()


async def test_one_that_fails_is_reported_and_the_next_one_runs(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = await run(directory, Hook("exit 3"), Hook("echo next"))
    assert [outcome.code for outcome in outcomes] == [3, 0]
    assert "next\n" in (directory / "down.log").read_text()
    assert "hook 1 of 2 before down exited with 3" in caplog.text
    assert "hook 1 of 2 before down exited with 3" in (directory / "down.log").read_text()


async def test_one_that_hangs_is_ended_at_its_limit(directory: Path) -> None:
    (outcome,) = await run(directory, Hook("trap 'echo ended; exit' TERM; sleep 100 & wait", timeout=0.3))
    assert outcome.code is None
    assert "did not end in its 0.3 s" in outcome.problem
    assert "ended\n" in (directory / "down.log").read_text()


async def test_one_that_ignores_sigterm_is_killed_with_its_whole_tree(
    directory: Path, tmp_path: Path
) -> None:
    script = f"""
    trap '' TERM
    setsid bash -c 'trap "" TERM; echo $$ > {tmp_path}/child; while :; do sleep 100; done' &
    while :; do sleep 100; done
    """
    begin = time.monotonic()
    (outcome,) = await run(directory, Hook(script, timeout=1.0))
    assert outcome.code is None
    assert not alive(tmp_path / "child")
    assert time.monotonic() - begin < 10


async def test_what_one_leaves_behind_ends_with_it(directory: Path, tmp_path: Path) -> None:
    script = f"(setsid sleep 100 & echo $! > {tmp_path}/daemon.pid)"
    (outcome,) = await run(directory, Hook(script))
    assert outcome.code == 0
    assert not alive(tmp_path / "daemon.pid")


async def test_a_long_script_runs(directory: Path) -> None:
    (outcome,) = await run(directory, Hook(f": {'x' * 300_000}\necho done"))
    assert outcome.code == 0
    assert "done\n" in (directory / "down.log").read_text()


async def test_one_that_reads_gets_nothing_of_its_own_script(directory: Path) -> None:
    (outcome,) = await run(directory, Hook("cat\necho done"))
    assert outcome.code == 0
    assert (directory / "down.log").read_text().startswith("done\n")


async def test_each_has_a_session_of_its_own(directory: Path) -> None:
    # The sixth field is the session; the name before it is "(bash)".
    (outcome,) = await run(directory, Hook("read -ra fields < /proc/$$/stat; [ ${fields[5]} = $$ ]"))
    assert outcome.code == 0


async def test_one_that_cannot_be_started_is_reported(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (outcome,) = await run(directory, Hook("true"))
    assert outcome.code is None
    assert "cannot be started" in outcome.problem


async def test_they_run_without_a_place_for_their_output(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (outcome,) = await run(tmp_path / "file" / "hooks", Hook(f"echo > {tmp_path}/ran"))
    assert outcome.code == 0
    assert (tmp_path / "ran").exists()


async def test_the_event_loop_goes_on_meanwhile(directory: Path) -> None:
    hook = Hook("trap '' TERM; while :; do sleep 100; done", timeout=0.3)
    running = asyncio.create_task(run(directory, hook, grace=0.5))
    longest = 0.0
    while not running.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    assert longest < 0.4
    assert running.result()[0].code is None


async def test_a_cancelled_caller_leaves_no_hook_behind(directory: Path, tmp_path: Path) -> None:
    running = asyncio.create_task(
        run(directory, Hook(f"echo $$ > {tmp_path}/pid; sleep 100"), Hook("echo 2"))
    )
    pid = tmp_path / "pid"
    await asyncio.to_thread(wait_for, lambda: pid.exists() and pid.read_text(), "the hook to begin")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(pid)
    assert "2" not in (directory / "down.log").read_text()


async def test_none_of_the_event_leaves_no_trace(directory: Path) -> None:
    assert await run(directory, Hook("true", events=("stop",))) == []
    assert os.listdir(directory.parent) == []


async def test_no_descriptor_is_left(directory: Path) -> None:
    await run(directory, Hook("true"), Hook("sleep 100", timeout=0.05))
    before = len(os.listdir("/proc/self/fd"))
    await run(directory, Hook("true"), Hook("sleep 100", timeout=0.05))
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before, "all descriptors to be closed")
