"""Removing directory trees of which others have different ideas."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.trees import remove_tree


def test_a_tree_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "link").symlink_to(tmp_path / "kept")
    os.mkfifo(tree / "fifo")
    remove_tree(tree)
    assert os.listdir(tmp_path) == ["kept"]


def test_one_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "none")


READ_ONLY = """
import os, sys
from pathlib import Path
os.chdir("/")
sys.path.insert(0, sys.argv[2])
from airflow_provider.runtime.agent.trees import remove_tree
if os.getuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
tree = Path(sys.argv[1], "tree")
(tree / "closed" / "deeper").mkdir(parents=True)
(tree / "closed" / "deeper" / "file").touch()
for path in (tree / "closed" / "deeper", tree / "closed", tree):
    path.chmod(0)
remove_tree(tree)
assert not tree.exists()
"""


def test_read_only_and_closed_directories_are_removed(tmp_path: Path) -> None:
    import shutil
    import tempfile

    # Not below tmp_path, which only its owner can reach: root is tested as somebody else.
    folder = tempfile.mkdtemp()
    code = Path(folder, "code")
    root = Path(__file__).parents[3]
    shutil.copytree(
        root / "airflow_provider", code / "airflow_provider", ignore=shutil.ignore_patterns("__pycache__")
    )
    Path(folder).chmod(0o755)
    work = Path(folder, "work")
    work.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(work), str(code)],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(folder)


def test_several_may_remove_the_same_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(50):
        (tree / str(number)).mkdir(parents=True)
        (tree / str(number) / "file").touch()
    errors = []

    def remove() -> None:
        try:
            remove_tree(tree)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not tree.exists()
    assert errors == []


def test_what_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not permitted"):
        remove_tree(Path("/proc/self/attr"))
