"""Being told of changes: through inotify, and by looking where there is none."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent import watch
from airflow_provider.runtime.agent.watch import DirectoryWatcher

QUEUE = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


class NoInotify:
    """A libc of a system where no inotify instance is left."""

    def inotify_init1(self, flags: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1


class NoWatch:
    """A libc of a system where no inotify watch is left."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self.inotify_init1 = libc.inotify_init1

    def inotify_add_watch(self, handle: int, path: bytes, mask: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1


@pytest.fixture(params=["inotify", "no instance", "no watch"])
async def watcher(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DirectoryWatcher]:
    libc = {"inotify": ctypes.CDLL(None, use_errno=True), "no instance": NoInotify()}
    libc["no watch"] = NoWatch(libc["inotify"])
    monkeypatch.setattr(watch.ctypes, "CDLL", lambda *_, **__: libc[request.param])
    monkeypatch.setattr(watch, "_POLL_SECONDS", 0.01)
    before = set(os.listdir("/proc/self/fd"))
    watcher = DirectoryWatcher()
    yield watcher
    watcher.close()
    assert set(os.listdir("/proc/self/fd")) <= before


class Seen:
    """A callback that can be waited for."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.names: set[str] | None = set()

    def __call__(self, names: set[str] | None) -> None:
        if names is None or self.names is None:
            self.names = None
        else:
            self.names |= names
        self.event.set()

    async def once(self) -> set[str] | None:
        await asyncio.wait_for(self.event.wait(), 5)
        self.event.clear()
        names, self.names = self.names, set()
        return names


def named(names: set[str] | None, name: str) -> bool:
    return names is None or name in names


async def test_a_file_that_grows_is_told(watcher: DirectoryWatcher, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    seen = Seen()
    watcher.watch(tmp_path, seen)
    for _ in range(3):
        append(tmp_path / "log", "line\n")
        assert named(await seen.once(), "log")


async def test_a_file_that_is_replaced_is_told(watcher: DirectoryWatcher, tmp_path: Path) -> None:
    seen = Seen()
    watcher.watch(tmp_path, seen)
    (tmp_path / "report.part").write_text("x")
    (tmp_path / "report.part").replace(tmp_path / "report")
    names = await seen.once()
    while not named(names, "report"):
        names = await seen.once()


async def test_each_callback_hears_of_its_own_directory(watcher: DirectoryWatcher, tmp_path: Path) -> None:
    seen = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        seen[name] = Seen()
        watcher.watch(tmp_path / name, seen[name])
    (tmp_path / "b" / "log").write_text("x")
    assert named(await seen["b"].once(), "log")
    assert not seen["a"].event.is_set()


async def test_nothing_is_told_after_unwatch(watcher: DirectoryWatcher, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    seen, control = Seen(), Seen()
    watcher.watch(tmp_path, seen)
    watcher.watch(other, control)
    watcher.unwatch(tmp_path)
    watcher.unwatch(tmp_path / "never watched")
    (tmp_path / "log").write_text("x")
    (other / "log").write_text("x")
    await control.once()
    assert not seen.event.is_set()


async def test_a_directory_that_goes_disturbs_nobody(watcher: DirectoryWatcher, tmp_path: Path) -> None:
    gone, other = tmp_path / "gone", tmp_path / "other"
    gone.mkdir()
    other.mkdir()
    seen = Seen()
    watcher.watch(gone, Seen())
    watcher.watch(other, seen)
    gone.rmdir()
    (other / "log").write_text("x")
    await seen.once()
    watcher.unwatch(gone)


async def test_close_may_come_twice(watcher: DirectoryWatcher) -> None:
    watcher.close()
    watcher.close()


async def test_after_lost_events_everything_counts_as_changed(tmp_path: Path) -> None:
    names = ["a", "b"]
    seen = {name: Seen() for name in names}
    watcher = DirectoryWatcher()
    try:
        for name in names:
            (tmp_path / name).mkdir()
            watcher.watch(tmp_path / name, seen[name])
        files = [os.open(tmp_path / "a" / str(n), os.O_WRONLY | os.O_CREAT) for n in range(2)]
        # Without a pause for the reader; neighbours differ, so none are merged.
        for number in range(QUEUE + 10):
            os.write(files[number % 2], b"x")
        for file in files:
            os.close(file)
        while await seen["b"].once() is not None:
            pass
        assert await seen["a"].once() is None
    finally:
        watcher.close()
