"""Locks that no killed process leaves behind."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host import locks
from airflow_provider.runtime.agent.host.locks import held, lock_file
from airflow_provider.runtime.agent.host.problem import HostProblem


def test_one_at_a_time_has_a_lock_and_it_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside, most = 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with lock_file(path, seconds=30):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert not path.exists()


def test_i3_40_a_lock_that_is_held_for_long_is_told_and_never_broken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path, seconds=1):
        assert held(path)
        with pytest.raises(HostProblem, match=str(path)), lock_file(path, seconds=0.02):
            pass
        assert path.exists(), "it is still its holder's"
    assert not held(path)


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    pid = os.fork()
    if pid == 0:
        with lock_file(path, seconds=1):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert path.exists()
    with lock_file(path, seconds=0):
        assert held(path)
    assert not path.exists()


def test_a_link_is_never_a_lock(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "lock").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links"), lock_file(tmp_path / "lock", seconds=1):
        pass


def test_who_waited_for_a_lock_that_was_removed_takes_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    take, removed = locks.take, []

    def remove_once(handle: int, *, what: str, seconds: float) -> None:
        take(handle, what=what, seconds=seconds)
        if not removed:
            path.unlink()
            removed.append(path)

    monkeypatch.setattr(locks, "take", remove_once)
    with lock_file(path, seconds=1):
        assert held(path)
    assert removed
