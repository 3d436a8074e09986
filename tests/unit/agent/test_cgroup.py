"""Where control groups are, what they are called, and what they know of their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.agent.process import cgroup, processes
from airflow_provider.runtime.agent.process.cgroup import Group, Hierarchy, group_name, parse_hierarchy
from airflow_provider.runtime.agent.process.sweep import end_cluster, end_job
from tests.unit.agent.conftest import need_groups, wait_for

V2 = "31 23 0:28 / {} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


@pytest.mark.parametrize(
    ("mounts", "groups", "hierarchy"),
    [
        (V2.format("/sys/fs/cgroup"), "0::/", ("/sys/fs/cgroup", "/sys/fs/cgroup")),
        (
            V2.format("/sys/fs/cgroup"),
            "0::/user.slice/a b",
            ("/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/a b"),
        ),
        (
            V1 + "\n" + V2.format("/sys/fs/cgroup/unified"),
            "9:cpu:/x\n0::/",
            ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"),
        ),
        (V2.format(r"/a\040b\134c"), "0::/own", ("/a b\\c", "/a b\\c/own")),
        ("5 4 0:1 /docker/ab /cg ro - cgroup2 c ro", "0::/docker/ab", ("/cg", "/cg")),
        ("5 4 0:1 /docker/ab /cg ro - cgroup2 c ro", "0::/docker/ab/c", ("/cg", "/cg/c")),
        ("5 4 0:1 /docker/ab /cg ro - cgroup2 c ro", "0::/docker/abc", None),
        (V2.format("/sys/fs/cgroup"), "0::/../outside", None),
        (V1, "9:cpu:/x\n0::/", None),
        (V2.format("/sys/fs/cgroup"), "9:cpu:/x", None),
        ("", "", None),
    ],
)
def test_the_hierarchy_is_found_where_it_is_mounted(
    mounts: str, groups: str, hierarchy: tuple[str, str] | None
) -> None:
    expected = Hierarchy(*map(Path, hierarchy)) if hierarchy else None
    assert parse_hierarchy(mounts, groups) == expected


CLUSTERS = st.text(max_size=12) | st.sampled_from(
    ["/a/b", "/a-b", "/a+2f+b", "x" * 180, "x" * 181, "/" * 300]
)
MARKERS = st.builds(lambda cluster, token: f"{cluster}:{token}", CLUSTERS, st.from_regex(r"\A\w{1,4}\Z"))


@given(MARKERS, MARKERS)
def test_every_marker_has_a_name_of_its_own_that_the_kernel_takes(one: str, other: str) -> None:
    assert (group_name(one) == group_name(other)) == (one == other)
    name = group_name(one)
    assert len(name.encode()) <= 255
    assert not {"/", "\n", "\0"} & set(name)


def test_without_control_groups_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "find_hierarchy", lambda: None)
    assert cgroup.create("c:1") is None
    assert cgroup.find("c:1") is None
    assert cgroup.of_cluster("c") == []


def test_where_processes_cannot_be_moved_there_is_no_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cgroup, "find_hierarchy", lambda: Hierarchy(tmp_path, tmp_path))
    assert cgroup.create("c:1") is None
    assert list(tmp_path.iterdir()) == []


def test_where_no_group_can_be_made_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / group_name("c:1")).touch()
    monkeypatch.setattr(cgroup, "find_hierarchy", lambda: Hierarchy(tmp_path, tmp_path))
    assert cgroup.create("c:1") is None


def test_groups_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    need_groups()
    monkeypatch.setenv(cgroup.SWITCH, "off")
    assert cgroup.create("c:1") is None


# ---- real ones

Enter = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def cluster() -> Iterator[str]:
    need_groups()
    name = f"/clusters/{uuid.uuid4().hex}"
    yield name
    left = cgroup.of_cluster(name)
    for group in left:
        group.kill()
        wait_for(lambda group=group: not group.populated(), "the group to be empty")
        group.remove()


@pytest.fixture
def marker(cluster: str) -> str:
    return f"{cluster}:1"


@pytest.fixture
def group(marker: str) -> Group:
    group = cgroup.create(marker)
    assert group is not None
    return group


@pytest.fixture
def enter() -> Iterator[Enter]:
    """Start a command in a group, without any marker; returns once it printed "ready"."""
    started: list[subprocess.Popen[bytes]] = []

    def enter(group: Group, command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["bash", "-c", f"echo $$ > {group.entrance}; {command}"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield enter
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_group_is_empty_until_somebody_enters_and_after_all_have_ended(group: Group, enter: Enter) -> None:
    assert not group.populated()
    process = enter(group, "echo ready; exec sleep 100")
    assert group.populated()
    assert {p.pid for p in group.processes()} == {process.pid}
    group.kill()
    assert process.wait(10) == -signal.SIGKILL
    wait_for(lambda: not group.populated(), "the end")
    assert group.processes() == set()


def test_children_are_in_the_group_wherever_they_go(group: Group, enter: Enter) -> None:
    enter(group, "(setsid env -i /bin/sleep 100 &) ; echo ready; exec sleep 100")
    wait_for(lambda: len(group.processes()) == 2, "the child")
    group.kill()
    wait_for(lambda: not group.populated(), "the end")


def test_groups_below_belong_to_it_and_go_with_it(group: Group, enter: Enter) -> None:
    below = Group(group.path / "a" / "b")
    below.path.mkdir(parents=True)
    process = enter(below, "echo ready; exec sleep 100")
    assert {p.pid for p in group.processes()} == {process.pid}
    assert group.populated()
    group.remove()
    assert group.path.exists(), "what is not empty stays"
    group.kill()
    wait_for(lambda: not group.populated(), "the end")
    group.remove()
    assert not group.path.exists()


def test_a_group_that_is_gone_is_empty(group: Group) -> None:
    group.remove()
    group.remove()
    group.kill()
    assert not group.populated()
    assert group.processes() == set()


def test_a_group_is_found_from_wherever_one_is(group: Group, marker: str) -> None:
    elsewhere = group.path.parent / f"elsewhere-{os.getpid()}"
    (elsewhere / "scope").mkdir(parents=True)
    group.remove()
    try:
        assert cgroup.find(marker) is None
        moved = elsewhere / "scope" / group.path.name
        moved.mkdir()
        found = cgroup.find(marker)
        assert found is not None
        assert found.path == moved
        moved.rmdir()
    finally:
        (elsewhere / "scope").rmdir()
        elsewhere.rmdir()


def test_a_cluster_has_the_groups_of_its_jobs_and_no_others(cluster: str, group: Group) -> None:
    other = cgroup.create(f"{cluster}-2:1")
    second = cgroup.create(f"{cluster}:2")
    assert other is not None
    assert second is not None
    assert {found.path for found in cgroup.of_cluster(cluster)} == {group.path, second.path}
    other.remove()


def test_a_job_is_asked_to_end_then_killed(group: Group, marker: str, enter: Enter, tmp_path: Path) -> None:
    polite = enter(
        group, f"trap 'echo bye > {tmp_path}/said; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    )
    stubborn = enter(group, "trap '' TERM; echo ready; while :; do sleep 100; done")
    assert end_job(marker, grace=0.3, limit=20) == set()
    assert polite.wait(10) == 5
    assert (tmp_path / "said").read_text() == "bye\n"
    assert stubborn.wait(10) == -signal.SIGKILL
    assert not group.path.exists()


def test_a_kernel_that_kills_no_groups_is_no_obstacle(
    group: Group, marker: str, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "kill", lambda self: None)
    enter(group, "trap '' TERM; echo ready; while :; do sleep 100 & sleep 0.002; done")
    assert end_job(marker, grace=0, limit=20) == set()
    assert not group.path.exists()


def test_a_frozen_job_is_ended(group: Group, marker: str, enter: Enter) -> None:
    process = enter(group, "echo ready; exec sleep 100")
    (group.path / "cgroup.freeze").write_text("1")
    wait_for(lambda: "frozen 1" in (group.path / "cgroup.events").read_text(), "the frost")
    assert end_job(marker, grace=0.05, limit=20) == set()
    assert process.wait(10) < 0


def test_a_process_whose_first_thread_is_over_is_ended(group: Group, marker: str, enter: Enter) -> None:
    code = (
        "import threading, time, ctypes, sys; threading.Thread(target=time.sleep, args=(100,)).start();"
        "print('ready', flush=True); ctypes.CDLL(None).syscall(60, 0)"
    )
    process = enter(group, f'exec python3 -c "{code}"')
    wait_for(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes(), "the first thread to end")
    assert end_job(marker, grace=0.05, limit=20) == set()
    assert not group.path.exists()


def test_neighbours_are_left_alone(cluster: str, group: Group, marker: str, enter: Enter) -> None:
    other = cgroup.create(f"{cluster}:2")
    assert other is not None
    neighbour = enter(other, "echo ready; exec sleep 100")
    enter(group, "echo ready; exec sleep 100")
    assert end_job(marker, grace=0, limit=20) == set()
    assert neighbour.poll() is None


def test_the_end_of_a_cluster_is_the_end_of_its_jobs(cluster: str, group: Group, enter: Enter) -> None:
    other = cgroup.create(f"{cluster}-2:1")
    second = cgroup.create(f"{cluster}:2")
    assert other is not None
    assert second is not None
    neighbour = enter(other, "echo ready; exec sleep 100")
    enter(group, "trap '' TERM; echo ready; while :; do sleep 100; done")
    assert end_cluster(cluster, grace=0, limit=20) == set()
    assert cgroup.of_cluster(cluster) == []
    assert neighbour.poll() is None
    assert end_cluster(f"{cluster}-2", grace=0, limit=20) == set()


def test_a_cluster_without_groups_is_known_by_its_marker() -> None:
    name = f"/clusters/{uuid.uuid4().hex}"
    with subprocess.Popen(["sleep", "100"], env={**os.environ, processes.CLUSTER_MARKER: name}) as process:
        assert end_cluster(name, grace=0, limit=20) == set()
        assert process.wait(10) == -signal.SIGKILL
