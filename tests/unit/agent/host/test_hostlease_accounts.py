"""The host's lease among accounts that need not be friends, and with things that lie in the way."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.host import hostlease
from airflow_provider.runtime.agent.host.hostlease import HostLease
from airflow_provider.runtime.agent.host.problem import HostProblem
from tests.unit.agent.host.accounts import OTHER, THIRD, as_account, needs_root
from tests.unit.agent.host.leases import OURS, THEIRS, Clock, entries, record_of

# ---- several accounts


@needs_root
def test_the_host_is_one_for_all_accounts(directory: Path, clock: Clock) -> None:
    def take() -> object:
        held = clock.lease(directory).take(THEIRS, 60)
        return held and held.account

    assert as_account(OTHER, take) is None
    held = clock.lease(directory).take(OURS, 60)
    assert held is not None
    assert held.claim == THEIRS
    assert held.account == f"uid {OTHER}"
    assert as_account(THIRD, take) == f"uid {OTHER}", "the same words from another account are another claim"
    assert not clock.lease(directory).release(THEIRS.root, THEIRS.instance), "not even root, by this way"
    clock.time += 60
    assert clock.lease(directory).take(OURS, 60) is None
    assert as_account(OTHER, take) == "root"


@needs_root
@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_any_umask_lets_all_accounts_take_part(directory: Path, clock: Clock, mask: int) -> None:
    def take() -> object:
        os.umask(mask)
        return clock.lease(directory).take(THEIRS, 60) is None

    assert as_account(OTHER, take)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    assert stat.S_IMODE((directory / f"{OTHER}.json").stat().st_mode) == 0o644
    assert as_account(THIRD, lambda: clock.lease(directory).read() is not None)
    clock.time += 60
    assert as_account(THIRD, lambda: clock.lease(directory).take(OURS, 60) is None)


@needs_root
def test_a_record_counts_for_the_account_that_wrote_it_and_no_other(directory: Path, clock: Clock) -> None:
    def forge() -> object:
        lease = clock.lease(directory)
        lease.take(THEIRS, 1e6)
        mine = directory / f"{OTHER}.json"
        for name in (f"{THIRD}.json", "0.json", "x.json", "-1.json", ".json"):
            (directory / name).write_bytes(mine.read_bytes())
        return lease.release(THEIRS.root)

    as_account(OTHER, forge)
    assert f"{THIRD}.json" in entries(directory)
    assert clock.lease(directory).read() is None


@needs_root
def test_nobody_ends_anothers_lease_by_what_he_does_to_the_file(directory: Path, clock: Clock) -> None:
    clock.lease(directory).take(OURS, 60)

    def attack() -> object:
        failed = 0
        for attempt in (
            lambda: record_of(directory).unlink(),
            lambda: record_of(directory).rename(directory / "away"),
            lambda: (directory / "mine").replace(record_of(directory)),
            lambda: record_of(directory).write_text("{}"),
            lambda: directory.rename(directory.parent / "away"),
            lambda: os.link(record_of(directory), directory / "link"),
        ):
            (directory / "mine").touch()
            try:
                attempt()
            except OSError:
                failed += 1
        return failed

    failed = as_account(OTHER, attack)
    assert isinstance(failed, int)
    assert failed >= 5, "a link is refused where the kernel protects links"
    held = clock.lease(directory).read()
    assert held is not None
    assert held.claim == OURS


@needs_root
def test_a_file_of_another_account_in_our_place_is_told_with_the_remedy(
    directory: Path, clock: Clock
) -> None:
    as_account(OTHER, lambda: clock.lease(directory).read() or directory.mkdir() or directory.chmod(0o1777))
    as_account(OTHER, lambda: (directory / f"{THIRD}.json").write_text("{}"))

    def take() -> object:
        try:
            clock.lease(directory).take(OURS, 60)
        except HostProblem as problem:
            return [problem.cause, problem.remedy]
        return None

    told = as_account(THIRD, take)
    assert isinstance(told, list)
    assert f"{THIRD}.json" in told[0]
    assert "remove it" in told[1]


@needs_root
def test_a_directory_that_is_closed_to_others_is_told_with_the_remedy(
    directory: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostlease, "_MAKER_SECONDS", 0.05)
    for mode in (0o700, 0o755, 0o777):  # without the sticky bit one could remove another's record
        directory.mkdir(mode=mode)
        directory.chmod(mode)

        def take() -> object:
            try:
                clock.lease(directory).take(OURS, 60)
            except HostProblem as problem:
                return problem.remedy
            return None

        assert f"chmod 1777 {directory}" in str(as_account(OTHER, take))
        directory.rmdir()


# ---- what lies in the way


@contextmanager
def untouched(path: Path) -> Iterator[Path]:
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def test_a_link_in_the_records_place_is_replaced_and_not_followed(lease: HostLease, directory: Path) -> None:
    lease.read()
    directory.mkdir()
    with untouched(directory.parent / "file") as file:
        record_of(directory).symlink_to(file)
        assert lease.take(OURS, 60) is None
    assert not record_of(directory).is_symlink()
    held = lease.read()
    assert held is not None
    assert held.claim == OURS


def test_a_link_to_a_sound_record_is_none(lease: HostLease, directory: Path) -> None:
    lease.take(OURS, 60)
    record_of(directory).rename(directory / "elsewhere")
    record_of(directory).symlink_to(directory / "elsewhere")
    assert lease.read() is None


def test_a_link_in_the_directorys_place_is_refused(lease: HostLease, directory: Path) -> None:
    target = directory.parent / "target"
    target.mkdir(mode=0o1777)
    directory.symlink_to(target)
    with pytest.raises(HostProblem, match="no directory"):
        lease.take(OURS, 60)
    assert entries(target) == []
    directory.unlink()
    directory.write_text("")
    with pytest.raises(HostProblem, match="no directory"):
        lease.read()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _text(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


WHOLE = {**OURS._asdict(), "boot_id": "boot 1", "expires": 5000.0}


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(_fifo, id="a pipe, which blocks who opens it"),
        pytest.param(_text(""), id="nothing"),
        pytest.param(_text("{"), id="no JSON"),
        pytest.param(_text("[]"), id="no object"),
        pytest.param(_text("null"), id="null"),
        pytest.param(_text(json.dumps({**WHOLE, "expires": "soon"})), id="no time"),
        pytest.param(_text(json.dumps({**WHOLE, "expires": None})), id="null time"),
        pytest.param(
            _text(json.dumps({k: v for k, v in WHOLE.items() if k != "root"})), id="a field is missing"
        ),
        pytest.param(_text(json.dumps(WHOLE).ljust(5000)), id="too long"),
        pytest.param(_text("[" * 4000), id="too deep"),
    ],
)
def test_what_makes_no_sense_holds_nothing(
    lease: HostLease, directory: Path, made: Callable[[Path], None]
) -> None:
    directory.mkdir()
    made(record_of(directory))
    assert lease.read() is None
    assert lease.take(OURS, 60) is None
    assert lease.read() is not None


def test_the_record_that_the_others_are_broken_copies_of_is_sound(lease: HostLease, directory: Path) -> None:
    directory.mkdir()
    record_of(directory).write_text(json.dumps(WHOLE))
    held = lease.read()
    assert held is not None
    assert held.claim == OURS


def test_words_of_others_are_shown_without_control_characters(lease: HostLease) -> None:
    lease.take(OURS._replace(site="a\x1b[2J\nb" + "x" * 500), 60)
    held = lease.read()
    assert held is not None
    assert held.claim.site.startswith("a?[2J?bx")
    assert len(held.claim.site) == 200


def test_a_record_is_never_longer_than_its_place(lease: HostLease, directory: Path) -> None:
    lease.take(OURS._replace(site="\x00" * 5000), 60)
    assert record_of(directory).stat().st_size == 4096
    assert lease.read() is not None
