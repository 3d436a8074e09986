"""A control group for each job: the kernel's own word on which processes belong to it.

Where version 2 of control groups is mounted and may be written, every job gets a group of its own below the one that
its driver runs in. Whatever a job's processes do (leave their session, clear their environment, outlive their
parents), their children stay in the group, and the kernel kills a whole group in one step. Where there is no such
hierarchy, or the user may not write to it, jobs do without: descent and markers (``processes``) find what they left.

``MANAGED_JOBS_CGROUPS=off`` in the agent's environment does without on purpose.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.agent.process import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

SWITCH = "MANAGED_JOBS_CGROUPS"
"""Environment variable; ``off``: no groups even where they could be had."""

_PREFIX = "managed-jobs-"
_LONGEST_CLUSTER = 180
"""Characters of a cluster in a group's name; the kernel takes 255 for all of it."""


class Hierarchy(NamedTuple):
    """Where the groups of version 2 are."""

    mount: Path
    own: Path
    """The group of this process."""


class Group:
    """The control group of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entrance = path / "cgroup.procs"
        """A process that writes its pid here enters, and so do all its children to come."""

    def processes(self) -> set[processes.Process]:
        """Return all that live in it and in groups that the job made below it, without the asking process."""
        found = {}
        for pid in self._pids():
            with suppress(OSError):  # it ended meanwhile
                found[pid] = processes.read_process(pid)
        # One that is in the group before and after the look at it is the same, or is the job's all the same.
        still = self._pids() - {os.getpid()}
        return {process._replace(group=0) for pid, process in found.items() if process and pid in still}

    def populated(self) -> bool:
        """Return whether anything lives in it; a group that is gone is empty."""
        try:
            return b"populated 1" in (self.path / "cgroup.events").read_bytes()
        except OSError:
            return False

    def wait_until_empty(self, seconds: float) -> None:
        """Wait until nothing lives in it, ``seconds`` at most."""
        with suppress(OSError), open(self.path / "cgroup.events", "rb", buffering=0) as events:
            poll = select.poll()
            poll.register(events, select.POLLPRI)
            deadline = time.monotonic() + seconds
            while b"populated 1" in os.pread(events.fileno(), 4096, 0):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                poll.poll(left * 1000)

    def kill(self) -> None:
        """Kill all of it at once; nothing happens where the kernel (before 5.14) cannot."""
        with suppress(OSError):
            # Not created when it is missing, as open() would: a group takes no files.
            handle = os.open(self.path / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, b"1")
            finally:
                os.close(handle)

    def remove(self) -> None:
        """Remove it with all below it; one that is not empty stays."""
        for path in reversed(list(self._tree())):
            with suppress(OSError):
                path.rmdir()

    def _pids(self) -> set[int]:
        found: set[int] = set()
        for path in self._tree():
            with suppress(OSError):  # removed meanwhile, or made of threads: those are listed further up
                found.update(int(line) for line in (path / "cgroup.procs").read_bytes().split())
        return found - {0}  # what this process cannot see has the pid 0

    def _tree(self) -> Iterator[Path]:
        """Return the group and the groups below it, each after the one that it is in."""
        return (Path(folder) for folder, _, _ in os.walk(self.path))


def create(marker: str) -> Group | None:
    """Return a new group for the job that carries ``marker``; None when there can be none."""
    if os.environ.get(SWITCH) == "off":
        return None
    hierarchy = find_hierarchy()
    # Who may not take processes out of the present group cannot put them into another.
    if hierarchy is None or not os.access(hierarchy.own / "cgroup.procs", os.W_OK):
        return None
    path = hierarchy.own / group_name(marker)
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return None  # read-only, another user's, or full: the job goes without
    return Group(path)


def find(marker: str) -> Group | None:
    """Return the group of a job whose driver may have run in another group than this process; None without one."""
    hierarchy = find_hierarchy()
    if hierarchy is None:
        return None
    name = group_name(marker)
    path = hierarchy.own / name
    if path.is_dir():
        return Group(path)
    return next((group for group in _search(hierarchy.mount) if group.path.name == name), None)


def of_cluster(cluster: str) -> list[Group]:
    """Return the groups of all jobs of a cluster (the part of their markers before the last colon)."""
    hierarchy = find_hierarchy()
    if hierarchy is None:
        return []
    beginning = group_name(f"{cluster}:")
    return [
        group for group in _search(hierarchy.mount) if group.path.name.rpartition("-")[0] + "-" == beginning
    ]


def group_name(marker: str) -> str:
    """Return the name of the group of the job that carries ``marker``; other markers have other names.

    ``<cluster>:<token>`` becomes ``managed-jobs-<cluster>-<token>``.
    """
    cluster, _, token = marker.rpartition(":")
    safe = _escaped(cluster)
    if len(safe) > _LONGEST_CLUSTER:
        import hashlib  # longer to import than all the rest, and hardly ever needed

        safe = hashlib.sha256(safe.encode()).hexdigest()
    return f"{_PREFIX}{safe}-{_escaped(token)}"


def _escaped(text: str) -> str:
    letters = (
        letter if letter.isascii() and (letter.isalnum() or letter in "._") else f"+{ord(letter):x}+"
        for letter in text
    )
    return "".join(letters)


def find_hierarchy() -> Hierarchy | None:
    """Return where groups of version 2 are mounted, None when this process sees none."""
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
        groups = Path("/proc/self/cgroup").read_bytes()
    except OSError:
        return None
    return parse_hierarchy(os.fsdecode(mounts), os.fsdecode(groups))


def parse_hierarchy(mounts: str, groups: str) -> Hierarchy | None:
    """Return the hierarchy of version 2 from the texts of ``/proc/self/mountinfo`` and ``/proc/self/cgroup``."""
    own = next((line[3:] for line in groups.splitlines() if line.startswith("0::/")), None)
    if own is None or own.startswith("/.."):
        return None  # the process is in a group that is not visible here
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > 4 and after.startswith("cgroup2 "):
            root, mount = fields[3], Path(_plain(fields[4]))
            # A container may have only its own branch mounted, and its processes are told the whole path.
            if root == "/" or own == root or own.startswith(root + "/"):
                return Hierarchy(mount, mount / (own if root == "/" else own[len(root) :]).strip("/"))
    return None


def _plain(text: str) -> str:
    """Undo the escapes of ``mountinfo``."""
    for letter in " \t\n\\":
        text = text.replace(f"\\{ord(letter):03o}", letter)
    return text


def _search(mount: Path) -> Iterator[Group]:
    for folder, below, _ in os.walk(mount):
        found = [name for name in below if name.startswith(_PREFIX)]
        yield from (Group(Path(folder, name)) for name in found)
        below[:] = [name for name in below if name not in found]
