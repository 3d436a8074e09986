"""Waiting until cached mounts have uploaded what a job wrote to them.

A cached mount is an rclone process that takes writes at once and uploads them later. It logs the state of its cache
every few seconds (SkyPilot has it do so into ``~/.sky/rclone_log``), and that log tells when nothing is left to upload.
The wait is not part of the user's shell, so that no ``exit`` or ``exec`` of the user's can skip it, and it has a limit.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.process import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SETTLE_SECONDS = 1.0
"""A file's last writer may be gone for a moment before the mount knows: reports of the cache before that do not count."""

_LOOK_SECONDS = 1.0
_TELL_SECONDS = 10.0
_BLOCK_BYTES = 256 * 1024
_LONGEST_LINE = 4096

_CACHE = re.compile(rb"vfs cache: cleaned: .*?in use (\d+), to upload (\d+), uploading (\d+)")


class FlushFailed(Exception):
    """Not all was uploaded; the text names the mounts."""


@dataclass
class CachedMount:
    """One live rclone process and the log that it writes."""

    log: Path
    process: processes.Process
    name: str
    """The directory where it is mounted, or its log where that is not known."""
    offset: int = 0
    """What of the log has been read."""
    rest: bytes = b""
    """The beginning of a line that is not written to its end yet."""
    pending: int | None = None
    """Files that are not uploaded yet; None before the first report."""
    problem: str = ""
    """The last error that it logged."""

    @property
    def clean(self) -> bool:
        """Whether all is uploaded, as far as it has told."""
        return self.pending == 0

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        try:
            now = processes.read_process(self.process.pid)
        except OSError:
            return False
        return now is not None and now.started == self.process.started

    def __str__(self) -> str:
        state = (
            "has not told the state of its cache" if self.pending is None else f"{self.pending} file(s) left"
        )
        return f"{self.name} ({state}{f'; last error: {self.problem}' if self.problem else ''})"

    def skip(self) -> None:
        """Pass over all that is logged by now."""
        self.offset, self.rest = _size(self.log), b""

    def look(self) -> None:
        """Read what was logged since the last look."""
        size = _size(self.log)
        if size < self.offset:
            self.offset, self.rest = 0, b""  # somebody emptied it
        try:
            with open(self.log, "rb") as log:
                log.seek(self.offset)
                # A log of every detail may grow by megabytes between two looks; none of it is kept.
                while self.offset < size and (data := log.read(min(_BLOCK_BYTES, size - self.offset))):
                    self.offset += len(data)
                    *lines, rest = (self.rest + data).split(b"\n")
                    self.rest = rest[:_LONGEST_LINE]
                    for line in lines:
                        self._take(line)
        except OSError:
            return  # gone: its process is asked next

    def _take(self, line: bytes) -> None:
        found = _CACHE.search(line)
        if found:
            _, to_upload, uploading = map(int, found.groups())
            self.pending = to_upload + uploading
        elif b"ERROR" in line:
            self.problem = line[-300:].decode("utf-8", "replace").strip()


def find(home: Path) -> list[CachedMount]:
    """Return the live cached mounts of a user: those of which a process still writes the log."""
    with suppress(OSError):
        logs = {os.path.realpath(entry) for entry in Path(home, ".sky", "rclone_log").glob("*.log")}
        if logs:
            return list(_processes(logs))
    return []


def _processes(logs: set[str]) -> Iterable[CachedMount]:
    mounted = _mount_points()
    found: dict[str, CachedMount] = {}
    for pid in processes.process_table():
        with suppress(OSError):
            arguments = [os.fsdecode(part) for part in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
            if "mount" not in arguments:
                continue
            log = next((path for path in map(os.path.realpath, _log_files(arguments)) if path in logs), None)
            process = processes.read_process(pid)
            if log is None or process is None:
                continue
            name = next((path for path in map(os.path.realpath, arguments) if path in mounted), log)
            # A mount has one process: of a parent that waits for its daemon the daemon, which is the younger, counts.
            if log not in found or found[log].process.started <= process.started:
                found[log] = CachedMount(Path(log), process, name)
    return found.values()


def _log_files(arguments: list[str]) -> Iterable[str]:
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--log-file":
            yield following
        elif argument.startswith("--log-file="):
            yield argument.partition("=")[2]


def _mount_points() -> set[str]:
    found = set()
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("fuse.rclone "):
            found.add(before.split(" ")[4].replace("\\040", " "))
    return found


def flush(
    mounts: list[CachedMount],
    *,
    limit: float,
    pause: Callable[[float], None],
    say: Callable[[str], None],
) -> None:
    """Wait until all ``mounts`` have uploaded everything.

    Args:
        mounts: What ``find`` returned.
        limit: Seconds to wait at most.
        pause: Waits for so many seconds; what it raises ends the wait.
        say: Takes lines on progress.

    Raises:
        FlushFailed: a mount ended before, or the limit is over.
    """
    deadline = time.monotonic() + limit
    pause(min(_SETTLE_SECONDS, limit))
    for mount in mounts:
        mount.skip()
    say(f"waiting for uploads of {', '.join(mount.name for mount in mounts)}")
    told = time.monotonic()
    waiting = list(mounts)
    while True:
        # Asked before the look at its log: what an ended process logged last is all there.
        dead = [mount for mount in waiting if not mount.alive]
        for mount in waiting:
            mount.look()
        waiting = [mount for mount in waiting if not mount.clean]
        lost = [str(mount) for mount in dead if not mount.clean]
        if lost:
            raise FlushFailed(f"a cached mount ended before its uploads: {', '.join(lost)}")
        if not waiting:
            say("all uploads are done")
            return
        now = time.monotonic()
        if now >= deadline:
            raise FlushFailed(
                f"uploads did not end within {limit:g} s: {', '.join(str(mount) for mount in waiting)}"
            )
        if now - told >= _TELL_SECONDS:
            told = now
            say(f"still uploading: {', '.join(str(mount) for mount in waiting)}")
        pause(min(_LOOK_SECONDS, deadline - now))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
