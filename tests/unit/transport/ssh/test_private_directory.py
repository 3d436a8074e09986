from __future__ import annotations

import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.transport.ssh.private import PrivateDirectory


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def directory(temporary: Path) -> Iterator[PrivateDirectory]:
    directory = PrivateDirectory()
    yield directory
    directory.remove()


def test_it_can_be_entered_by_this_account_alone(directory: PrivateDirectory) -> None:
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700


def test_a_socket_in_it_has_a_short_path_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    directory = PrivateDirectory()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(directory.short("1.sock"))
        assert (directory.path / "1.sock").is_socket()
    directory.remove()
    assert not list(deep.iterdir())


def test_removing_it_twice_is_removing_it_once(temporary: Path) -> None:
    directory = PrivateDirectory()
    directory.remove()
    directory.remove()
    assert not list(temporary.iterdir())


KEEPER = (
    "import socket, sys\n"
    "from airflow_provider.runtime.transport.ssh.private import PrivateDirectory\n"
    "directory = PrivateDirectory()\n"
    "listener = socket.socket(socket.AF_UNIX)\n"
    "listener.bind(directory.short('1.sock'))\n"
    "print(directory.path, flush=True)\n"
    "sys.stdin.read()\n"
)


def test_those_of_live_processes_are_left_alone_and_those_of_killed_ones_removed(temporary: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(temporary)},
        cwd=Path(__file__).parents[4],
    )
    assert keeper.stdout is not None
    theirs = Path(keeper.stdout.readline().strip())
    assert theirs.parent == temporary
    PrivateDirectory().remove()
    assert (theirs / "1.sock").is_socket()
    keeper.kill()
    keeper.communicate()
    PrivateDirectory().remove()
    assert not theirs.exists()


def test_what_is_not_ours_is_left_alone(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    link = temporary / "managed-jobs-tunnels-link"
    link.symlink_to(elsewhere)
    full = temporary / "managed-jobs-tunnels-full"
    full.mkdir()
    (full / "notes.txt").write_text("somebody's")
    (temporary / "managed-jobs-tunnels-file").write_text("no directory")
    PrivateDirectory().remove()
    assert sorted(path.name for path in temporary.iterdir()) == [
        "elsewhere",
        "managed-jobs-tunnels-file",
        "managed-jobs-tunnels-full",
        "managed-jobs-tunnels-link",
    ]
    assert (full / "notes.txt").exists()
