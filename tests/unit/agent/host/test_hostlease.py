"""The host's lease: one cluster at a time has the machine, whatever the others do."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host import hostlease
from airflow_provider.runtime.agent.host.hostlease import Claim, HostLease
from airflow_provider.runtime.agent.host.problem import HostProblem
from tests.unit.agent.host.accounts import OTHER, needs_root
from tests.unit.agent.host.leases import OURS, THEIRS, Clock, entries


def test_i3_40_who_comes_second_is_told_who_has_the_host_and_for_how_long(
    lease: HostLease, clock: Clock
) -> None:
    assert lease.read() is None
    assert lease.take(OURS, 60) is None
    clock.time += 20
    held = lease.take(THEIRS, 60)
    assert held == lease.read()
    assert held is not None
    assert held.claim == OURS
    assert held.seconds_left == pytest.approx(40)


@pytest.mark.parametrize("other", [OURS._replace(instance="i9"), OURS._replace(root="/elsewhere")])
def test_another_instance_or_place_is_another_cluster(lease: HostLease, other: Claim) -> None:
    assert lease.take(OURS, 60) is None
    held = lease.take(other, 60)
    assert held is not None
    assert held.claim == OURS
    assert not lease.release(other.root, other.instance)
    assert lease.read() is not None


def test_the_holder_keeps_the_host_by_asking_again(lease: HostLease, clock: Clock) -> None:
    for _ in range(3):
        assert lease.take(OURS._replace(site="moved on"), 60) is None
        clock.time += 59
        assert lease.take(THEIRS, 60) is not None
    held = lease.read()
    assert held is not None
    assert held.claim.site == "moved on"


def test_the_time_of_the_lease_is_over_some_day(lease: HostLease, clock: Clock) -> None:
    lease.take(OURS, 60)
    clock.time += 60
    assert lease.read() is None
    assert lease.take(THEIRS, 60) is None
    held = lease.take(OURS, 60)
    assert held is not None, "it has lost the host for good"
    assert held.claim == THEIRS


def test_a_lease_does_not_survive_a_reboot(lease: HostLease, clock: Clock) -> None:
    lease.take(OURS, 1e6)
    clock.boot, clock.time = "boot 2", 5.0
    assert lease.read() is None
    assert lease.take(THEIRS, 60) is None


def test_a_holder_lets_the_host_go(lease: HostLease, directory: Path) -> None:
    assert not lease.release(OURS.root, OURS.instance), "nobody has it, and there is no directory yet"
    lease.take(OURS, 60)
    assert lease.release(OURS.root, OURS.instance)
    assert lease.read() is None
    assert entries(directory) == []
    assert not lease.release(OURS.root, OURS.instance)


def test_an_account_knows_for_whom_it_had_the_host_last(lease: HostLease, clock: Clock) -> None:
    assert lease.last() is None
    lease.take(OURS, 60)
    clock.time += 1000
    assert lease.read() is None
    assert lease.last() == OURS
    lease.release(OURS.root)
    assert lease.last() is None


def test_who_knows_that_nothing_is_left_of_a_cluster_lets_any_instance_go(lease: HostLease) -> None:
    lease.take(OURS, 60)
    assert not lease.release(THEIRS.root)
    assert lease.release(OURS.root)
    assert lease.read() is None


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_seconds_must_make_sense(lease: HostLease, seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds is"):
        lease.take(OURS, seconds)


def test_time_is_the_machines_own_and_goes_on(directory: Path) -> None:
    lease = HostLease(directory)
    lease.take(OURS, 3600)
    held = HostLease(directory).read()
    assert held is not None
    assert 3590 < held.seconds_left <= 3600


# ---- crashes and races


def _dies(step: str, lease: HostLease) -> None:
    """Take the host in a process that is killed when it comes to a step."""
    pid = os.fork()
    if pid == 0:
        setattr(os, step, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        lease.take(OURS, 60)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL, f"it does not {step}"


@pytest.mark.parametrize("step", ["fchmod", "replace"])
def test_a_taker_that_is_killed_leaves_nothing_in_the_way(
    lease: HostLease, directory: Path, step: str
) -> None:
    _dies(step, lease)
    assert lease.read() is None
    assert lease.take(THEIRS, 60) is None
    assert entries(directory) == [f"{os.geteuid()}.json"]


@needs_root
def test_of_many_who_want_the_host_at_once_one_gets_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = HostLease._valid

    def slowly(self: HostLease, handle: int) -> object:
        seen = look(self, handle)
        time.sleep(0.05)  # time enough for others to see the same
        return seen

    monkeypatch.setattr(HostLease, "_valid", slowly)
    begin, go = os.pipe()
    children = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.setuid(OTHER + number % 4)
            os.read(begin, 1)
            claim = Claim("c", str(number), "site", f"/root/{number}")
            os._exit(0 if HostLease(directory).take(claim, 60) is None else 3)
        children.append(pid)
    os.close(begin)
    os.close(go)  # all at once
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert sorted(codes) == [0] + [3] * 7


def test_a_lock_that_is_never_let_go_is_told(
    lease: HostLease, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostlease, "_LOCK_SECONDS", 0.05)
    directory.mkdir()
    handle = os.open(directory, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    with pytest.raises(HostProblem, match="held the lock of") as told:
        lease.take(OURS, 60)
    os.close(handle)
    assert "fuser" in told.value.remedy
    assert lease.take(OURS, 60) is None


def test_a_directory_that_was_cleaned_away_is_made_anew(lease: HostLease, directory: Path) -> None:
    lease.take(OURS, 60)
    shutil.rmtree(directory)
    assert lease.read() is None
    assert lease.take(OURS, 60) is None
    assert lease.read() is not None


def _fill(path: Path) -> None:
    with open(path, "ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@needs_root
def test_the_host_is_kept_on_a_full_disk(directory: Path, clock: Clock) -> None:
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=1777", "test", str(directory)], check=True)
    try:
        lease = clock.lease(directory)
        lease.take(OURS, 60)
        _fill(directory / "filler")
        clock.time += 30
        assert lease.take(OURS, 60) is None
        held = lease.read()
        assert held is not None
        assert held.seconds_left == pytest.approx(60)
        assert entries(directory) == [f"{os.geteuid()}.json", "filler"]
        lease.release(OURS.root)
        _fill(directory / "filler")
        with pytest.raises(OSError, match="No space"):
            lease.take(OURS, 60)
        assert lease.read() is None
    finally:
        subprocess.run(["umount", str(directory)], check=True)
