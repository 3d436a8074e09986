"""Waiting for the uploads of cached mounts: real logs and real processes, in place of rclone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.driver import mounts
from airflow_provider.runtime.agent.driver.mounts import CachedMount, FlushFailed
from tests.unit.agent.conftest import wait_for

Mount = Callable[..., "subprocess.Popen[bytes]"]


def cache(to_upload: int, uploading: int = 0, in_use: int = 0) -> str:
    """Return rclone's line on the state of its cache."""
    return (
        "2026/01/01 00:00:00 INFO  : vfs cache: cleaned: objects 3 (was 3) "
        f"in use {in_use}, to upload {to_upload}, uploading {uploading}, total size 1Mi (was 1Mi)\n"
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    logs = tmp_path / ".sky" / "rclone_log"
    logs.mkdir(parents=True)
    return logs


@pytest.fixture
def mount(logs: Path) -> Iterator[Mount]:
    """Start a process that looks like rclone's, with a log."""
    started: list[subprocess.Popen[bytes]] = []

    def mount(name: str, *, flag: str = "--log-file {}", verb: str = "mount") -> subprocess.Popen[bytes]:
        log = logs / f"{name}.log"
        log.touch()
        command = f"exec -a rclone sleep 100 {verb} remote:{name} /mnt/{name} {flag.format(log)} --daemon"
        # `sleep` refuses such arguments; a shell that waits for its standard input takes any.
        command = command.replace("sleep 100", "bash -c 'read -r _; exit' rclone")
        process = subprocess.Popen(["bash", "-c", command], stdin=subprocess.PIPE)
        started.append(process)
        wait_for(lambda: b"rclone" in Path(f"/proc/{process.pid}/cmdline").read_bytes()[:6], "its name")
        return process

    yield mount
    for process in started:
        process.kill()
        process.communicate()


class Waiting:
    """Time that passes only while somebody pauses, and what happens meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.events: dict[float, Callable[[], object]] = {}
        monkeypatch.setattr(mounts, "time", self)

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        assert seconds > 0, "it never polls without a pause"
        before, self.now = self.now, self.now + seconds
        for at in sorted(self.events):
            if before < at <= self.now:
                self.events.pop(at)()

    def flush(self, found: list[CachedMount], limit: float = 600.0) -> None:
        mounts.flush(found, limit=limit, pause=self.pause, say=self.said.append)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


def append(log: Path, text: str) -> Callable[[], object]:
    def write() -> None:
        with log.open("a") as file:
            file.write(text)

    return write


# ---- which mounts there are


def test_a_home_without_cached_mounts_has_none(tmp_path: Path) -> None:
    assert mounts.find(tmp_path) == []


def test_a_log_whose_process_is_gone_is_no_mount(logs: Path, tmp_path: Path) -> None:
    (logs / "old.log").write_text(cache(5))
    assert mounts.find(tmp_path) == []


@pytest.mark.parametrize("flag", ["--log-file {}", "--log-file={}"])
def test_a_process_that_writes_a_log_is_a_mount(mount: Mount, logs: Path, tmp_path: Path, flag: str) -> None:
    process = mount("data", flag=flag)
    (found,) = mounts.find(tmp_path)
    assert found.process.pid == process.pid
    assert found.name == str(logs / "data.log"), "nothing is really mounted, so the log names it"
    assert found.alive
    process.kill()
    process.wait()
    assert not found.alive


def test_an_rclone_that_copies_is_no_mount(mount: Mount, tmp_path: Path) -> None:
    mount("data", verb="copy")
    assert mounts.find(tmp_path) == []


def test_a_mount_is_named_after_its_directory(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_mount_points", lambda: {"/mnt/data"})
    mount("data")
    assert [found.name for found in mounts.find(tmp_path)] == ["/mnt/data"]


# ---- waiting


def test_it_waits_until_nothing_is_left_to_upload(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("data")
    log = logs / "data.log"
    waiting.events = {5: append(log, cache(2, 1)), 15: append(log, cache(0, 1)), 25: append(log, cache(0))}
    waiting.flush(mounts.find(tmp_path))
    assert 25 <= waiting.now <= 26
    assert waiting.said[0] == f"waiting for uploads of {log}"
    assert any("3 file(s) left" in line for line in waiting.said[1:])
    assert waiting.said[-1] == "all uploads are done"


def test_what_was_logged_before_the_end_of_run_does_not_count(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("data")
    (logs / "data.log").write_text(cache(0))
    waiting.events = {8: append(logs / "data.log", cache(0))}
    waiting.flush(mounts.find(tmp_path))
    assert waiting.now >= 8


def test_a_file_that_somebody_reads_keeps_nobody_waiting(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("data")
    waiting.events = {8: append(logs / "data.log", cache(0, in_use=2))}
    waiting.flush(mounts.find(tmp_path))
    assert waiting.now < 10


def test_a_line_that_is_half_written_is_waited_for(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("data")
    line = cache(0)
    middle = line.index("uploading 0")
    waiting.events = {
        3: append(logs / "data.log", line[:middle]),
        7: append(logs / "data.log", line[middle:]),
    }
    waiting.flush(mounts.find(tmp_path))
    assert 7 <= waiting.now <= 8


def test_of_several_mounts_all_are_waited_for(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("one")
    mount("two")
    waiting.events = {3: append(logs / "one.log", cache(0)), 40: append(logs / "two.log", cache(0))}
    waiting.flush(mounts.find(tmp_path))
    assert waiting.now >= 40


def test_uploads_that_do_not_end_are_told_with_mount_count_and_error(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("good")
    mount("bad")
    waiting.events = {
        2: append(logs / "good.log", cache(0)),
        4: append(logs / "bad.log", "2026/01/01 ERROR : x: failed to upload: 403 Forbidden\n" + cache(7)),
    }
    with pytest.raises(FlushFailed) as failed:
        waiting.flush(mounts.find(tmp_path), limit=30)
    assert waiting.now == pytest.approx(30, abs=0.1)
    assert "within 30 s" in str(failed.value)
    assert (
        f"{logs / 'bad.log'} (7 file(s) left; last error: 2026/01/01 ERROR : x: failed to upload: 403"
        in str(failed.value)
    )
    assert "good" not in str(failed.value)


def test_a_mount_that_never_tells_is_told(mount: Mount, tmp_path: Path, waiting: Waiting) -> None:
    mount("data")
    with pytest.raises(FlushFailed, match="has not told the state of its cache"):
        waiting.flush(mounts.find(tmp_path), limit=30)


def test_a_mount_that_ends_before_its_uploads_is_told_at_once(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    process = mount("data")
    waiting.events = {3: append(logs / "data.log", cache(2)), 5: lambda: (process.kill(), process.wait())}
    with pytest.raises(FlushFailed, match=r"ended before its uploads: .*data.log \(2 file"):
        waiting.flush(mounts.find(tmp_path))
    assert waiting.now < 7


def test_a_mount_that_ends_after_its_uploads_is_no_loss(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    process = mount("data")
    waiting.events = {
        4.5: lambda: (append(logs / "data.log", cache(0))(), process.kill(), process.wait()),
    }
    waiting.flush(mounts.find(tmp_path))


def test_a_log_that_is_emptied_is_read_from_its_beginning(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("data")
    (logs / "data.log").write_text("x" * 1000 + "\n")
    waiting.events = {3: lambda: (logs / "data.log").write_text(cache(0))}
    waiting.flush(mounts.find(tmp_path))
    assert waiting.now < 6


def test_a_log_of_every_detail_is_read_in_pieces(
    mount: Mount, logs: Path, tmp_path: Path, waiting: Waiting
) -> None:
    mount("data")
    noise = "DEBUG : something happened\n" * 100_000 + "y" * 5_000_000 + "\n"
    waiting.events = {3: append(logs / "data.log", noise + cache(0) + noise)}
    found = mounts.find(tmp_path)
    waiting.flush(found)
    assert waiting.now < 6
    assert len(found[0].rest) <= 4096
    assert (logs / "data.log").stat().st_size == found[0].offset
