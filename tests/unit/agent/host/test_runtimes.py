"""Installed runtimes stay as long as anything needs them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host.problem import HostProblem
from airflow_provider.runtime.agent.host.runtimes import remove_old_runtimes, runtime_directory

TWO_DAYS_AGO = time.time() - 2 * 24 * 3600


def install(base: Path, name: str, *, changed: float = TWO_DAYS_AGO) -> Path:
    directory = base / "runtime" / name
    (directory / "package").mkdir(parents=True)
    (directory / "package" / "module.py").touch()
    os.utime(directory, (changed, changed))
    return directory


def test_old_runtimes_that_nobody_uses_go(tmp_path: Path) -> None:
    old, new = install(tmp_path, "old"), install(tmp_path, "new", changed=time.time())
    used = install(tmp_path, "used")
    partial = install(tmp_path, ".old.123")
    remove_old_runtimes(tmp_path, {"used"})
    assert not old.exists()
    assert new.exists()
    assert used.exists()
    assert partial.exists(), "it is its installer's"


def test_a_runtime_with_a_live_process_stays(tmp_path: Path) -> None:
    directory = install(tmp_path, "old")
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        remove_old_runtimes(tmp_path, set())
        assert directory.exists()
        process.communicate()
    remove_old_runtimes(tmp_path, set())
    assert not directory.exists()


def test_one_that_is_asked_for_is_not_old_any_more(tmp_path: Path) -> None:
    directory = install(tmp_path, "old")
    assert runtime_directory(tmp_path, "old") == directory
    remove_old_runtimes(tmp_path, set())
    assert directory.exists()


def test_one_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostProblem, match="gone"):
        runtime_directory(tmp_path, "gone")
    remove_old_runtimes(tmp_path, set())  # nothing was ever installed


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden", "a\n", "-", "x" * 200])
def test_a_name_never_leads_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="runtime is"):
        runtime_directory(tmp_path, name)
