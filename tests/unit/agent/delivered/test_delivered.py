"""Files in a home that outlives its jobs: only changes are written, and all that was brought can be taken away."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.driver import delivered
from airflow_provider.runtime.agent.driver.delivered import remove_delivered
from tests.unit.agent.conftest import DriverRun
from tests.unit.agent.deliveries import as_nobody, tree

Deliver = Callable[..., DriverRun]


# ---- the next task


def test_k87_what_the_next_delivery_does_not_bring_is_removed(deliver: Deliver, source, home: Path) -> None:
    deliver({"~/sky_workdir": source({"a": "1", "old": "1", "d/e/old": "1", "link": "-> a", "empty": None})})
    deliver({"~/sky_workdir": source({"a": "1", "d/new": "2"})})
    assert tree(home / "sky_workdir") == {"a": "1", "d": None, "d/new": "2"}


def test_what_jobs_made_stays_and_so_do_the_directories_that_hold_it(
    deliver: Deliver, source, home: Path
) -> None:
    deliver({"~/sky_workdir": source({"d/old": "1", "e/old": "1"})}, "echo mine > d/mine; echo x > result")
    deliver({"~/sky_workdir": source({"a": "2"})})
    assert tree(home / "sky_workdir") == {"a": "2", "d": None, "d/mine": "mine\n", "result": "x\n"}
    (home / "sky_workdir/d/mine").unlink()
    deliver({"~/sky_workdir": source({"a": "3"})})
    assert tree(home / "sky_workdir") == {"a": "3", "result": "x\n"}


def test_files_that_are_the_same_are_not_touched(deliver: Deliver, source, home: Path) -> None:
    deliver({"~/sky_workdir": source({"same": "1", "d/same": "x" * 200_000, "content": "1", "mode": "1"})})
    before = {path.name: path.stat() for path in (home / "sky_workdir").rglob("*") if path.is_file()}
    changed = source({"same": "1", "d/same": "x" * 200_000, "content": "2", "mode": "1"})
    (changed / "mode").chmod(0o755)
    deliver({"~/sky_workdir": changed})
    after = {path.name: path.stat() for path in (home / "sky_workdir").rglob("*") if path.is_file()}
    kept = {name for name in before if before[name].st_ino == after[name].st_ino}
    assert kept == {"same"}
    assert before["same"].st_mtime_ns == after["same"].st_mtime_ns
    assert (home / "sky_workdir/content").read_text() == "2"
    assert stat.S_IMODE((home / "sky_workdir/mode").stat().st_mode) == 0o755


def test_what_a_job_changed_is_as_the_task_has_it_again(deliver: Deliver, source, home: Path) -> None:
    files = {"~/sky_workdir": source({"a": "1", "b": "1"})}
    deliver(files, "echo changed > a; rm b")
    deliver(files)
    assert tree(home / "sky_workdir") == {"a": "1", "b": "1"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"x": "1"}, {"x/y": "2"}),
        ({"x/y": "1"}, {"x": "2"}),
        ({"x": "-> /etc"}, {"x/y": "2"}),
        ({"x/y": "1"}, {"x": "-> nowhere"}),
        ({"x": "1"}, {"x": "-> nowhere"}),
        ({"x": None}, {"x": "1"}),
    ],
)
def test_a_name_may_become_something_else(
    deliver: Deliver, source, home: Path, first: dict[str, str | None], second: dict[str, str | None]
) -> None:
    deliver({"~/sky_workdir": source(first)})
    wanted = source(second)
    deliver({"~/sky_workdir": wanted})
    assert tree(home / "sky_workdir") == tree(wanted)


def test_a_delivered_file_that_a_job_made_something_else_stays(deliver: Deliver, source, home: Path) -> None:
    deliver(
        {"~/sky_workdir": source({"a": "1", "b": "-> a", "d/c": "1"})},
        "rm a b; mkdir a; echo mine > a/mine; echo mine > b; rm -r d; ln -s /usr d",
    )
    deliver({"~/sky_workdir": source({"new": "2"})})
    assert tree(home / "sky_workdir") == {
        "a": None,
        "a/mine": "mine\n",
        "b": "mine\n",
        "d": "-> /usr",
        "new": "2",
    }


def test_nothing_is_removed_through_a_link_that_a_job_made(
    deliver: Deliver, source, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    deliver({"~/sky_workdir": source({"d/file": "1"})}, f"rm -r d; ln -s '{tmp_path}/precious' d")
    deliver({"~/sky_workdir": source({"a": "2"})})
    assert (tmp_path / "precious" / "file").read_text() == "mine"


def test_a_file_mount_is_replaced_by_the_next(deliver: Deliver, source, home: Path) -> None:
    for text in ("1", "2", "2"):
        deliver({"~/cfg/app.toml": source({"f": text}) / "f"})
        assert (home / "cfg/app.toml").read_text() == text


def test_a_destination_behind_a_link_is_where_the_link_leads(
    deliver: Deliver, source, home: Path, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "volume").mkdir()
    (home / "data").symlink_to(tmp_path / "volume")
    deliver({"~/data": source({"a": "1", "b": "1"})})
    deliver({"~/data": source({"b": "1"})})
    assert tree(tmp_path / "volume") == {"b": "1"}
    assert remove_delivered(root) == []
    assert tree(tmp_path / "volume") == {}
    assert (home / "data").is_symlink()


def test_while_another_job_uses_its_files_none_of_them_is_removed(
    start: Deliver, deliver: Deliver, source, home: Path
) -> None:
    first = start({"~/sky_workdir": source({"a": "1", "old": "1"})}, "echo up; sleep 100")
    first.wait_for_log("up")
    second = deliver({"~/sky_workdir": source({"a": "2"})}, "cat a old")
    assert f"is in use by job {first.directory.path.name}: " in second.log
    assert second.log.endswith("\n21")
    first.send(signal.SIGTERM)
    first.wait()
    assert deliver({"~/sky_workdir": source({"a": "2"})}, "ls").log == "a\n"


def test_jobs_of_the_same_files_say_nothing_of_each_other(start: Deliver, deliver: Deliver, source) -> None:
    files = {"~/sky_workdir": source({"a": "1"})}
    first = start(files, "echo up; sleep 100")
    first.wait_for_log("up")
    assert deliver(files, "cat a").log == "1"


def test_deliveries_wait_for_each_other_and_a_cancel_ends_the_wait(
    start: Deliver, source, root: Path
) -> None:
    directory = root / "delivered"
    directory.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", "import fcntl, signal; fcntl.flock(0, fcntl.LOCK_EX); print(flush=True); signal.pause()"],
        stdin=open(directory / "lock", "w"),
        stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        holder.stdout.readline()
        job = start({"~/sky_workdir": source({"a": "1"})})
        job.wait_for_log("waiting: the files of another job")
        other = start({"~/sky_workdir": source({"a": "1"})}, "cat a")
        job.send(signal.SIGTERM)
        assert job.wait().report.status == "CANCELLED"
        holder.kill()
        assert other.wait().report.status == "SUCCEEDED"


# ---- the cluster's end


@pytest.mark.parametrize("target", [None, "/not/mounted"])
def test_what_the_account_keeps_in_place_of_a_working_directory_is_left_alone(
    start: Deliver, home: Path, root: Path, target: str | None
) -> None:
    place = home / "sky_workdir"
    if target is None:
        place.write_text("mine")
    else:
        place.symlink_to(target)
    before = tree(home)

    report = start({}).wait().report

    assert (report.status, str(place) in report.reason) == ("FAILED_SETUP", True)
    assert remove_delivered(root) == []
    assert tree(home) == before


def test_the_end_leaves_the_home_as_it_was(deliver: Deliver, source, home: Path, root: Path) -> None:
    (home / "mine").write_text("mine")
    (home / "cfg").mkdir()
    before = tree(home)
    deliver(
        {
            "~/sky_workdir": source({"a": "1", "d/b": "1"}),
            "~/cfg/app.toml": source({"f": "x"}) / "f",
            "~/data/in/deep": source({"c": "1", "l": "-> c", "empty": None}),
            "~/data/in/deep/inner": source({"c": "1"}),
        },
        "echo result > result",
    )
    assert len(tree(home)) > len(before)
    assert remove_delivered(root) == []
    assert tree(home) == before
    assert list((root / "delivered").glob("*.json")) == []
    assert remove_delivered(root) == []


def test_a_working_directory_without_any_files_goes_too(deliver: Deliver, home: Path, root: Path) -> None:
    deliver({}, "echo result > result")
    assert remove_delivered(root) == []
    assert tree(home) == {}


def test_a_working_directory_that_was_there_stays_with_what_jobs_wrote(
    deliver: Deliver, source, home: Path, root: Path
) -> None:
    (home / "sky_workdir").mkdir()
    (home / "sky_workdir" / "before").write_text("mine")
    deliver({"~/sky_workdir": source({"a": "1"})}, "echo x > result")
    assert remove_delivered(root) == []
    assert tree(home / "sky_workdir") == {"before": "mine", "result": "x\n"}


def test_what_jobs_wrote_elsewhere_stays(deliver: Deliver, source, home: Path, root: Path) -> None:
    deliver({"~/data": source({"d/a": "1"})}, "echo x > ~/data/result; echo y > ~/data/d/a")
    assert remove_delivered(root) == []
    assert tree(home) == {"data": None, "data/result": "x\n"}


def test_read_only_directories_are_removed(deliver: Deliver, source, home: Path, root: Path) -> None:
    top = source({"ro/a": "1", "ro/deep/b": "1"})
    for name in ("ro/deep", "ro"):
        (top / name).chmod(0o555)
    deliver({"~/data": top, "~/sky_workdir": top})
    assert remove_delivered(root) == []
    assert tree(home) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_read_only_directories_are_removed_by_others_than_root() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        (top / "place" / "ro").mkdir(parents=True)
        (top / "place" / "ro" / "a").write_text("1")
        (top / "delivered").mkdir()
        record = delivered.Record(
            place=str(top / "place"), files=["ro/a"], links=[], directories=["ro"], trees=[],
            made=[str(top / "place")], staging=[], whole=False, jobs=[],
        )  # fmt: skip
        (top / "delivered" / "0.json").write_text(json.dumps(record._asdict()))
        (top / "place" / "ro").chmod(0o555)
        for path in (top, *top.rglob("*")):
            os.chown(path, 65534, 65534)
        assert as_nobody(lambda: remove_delivered(top)) == []
        assert tree(top) == {"delivered": None}


def test_what_cannot_be_removed_is_told_and_stays_on_record(
    deliver: Deliver, source, home: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver({"~/data": source({"a": "1", "b": "1"})})
    real = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "a":
            raise OSError(5, "Input/output error", str(path))
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert remove_delivered(root) == [f"{home}/data/a: Input/output error"]
    assert tree(home / "data") == {"a": "1"}
    monkeypatch.undo()
    assert remove_delivered(root) == []
    assert tree(home) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"place": "/"}'])
def test_a_spoilt_record_is_told_and_removes_nothing(root: Path, text: str) -> None:
    (root / "delivered").mkdir()
    (root / "delivered" / "0.json").write_text(text)
    (problem,) = remove_delivered(root)
    assert "0.json" in problem


@pytest.mark.parametrize("name", ["../precious", "/precious", "d/../../precious", "link/precious", ""])
def test_a_record_leads_nowhere_else(root: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / "place"
    (place / "d").mkdir(parents=True)
    (place / "link").symlink_to(tmp_path)
    (tmp_path / "precious").write_text("mine")
    record = delivered.Record(
        place=str(place), files=[name], links=[name], directories=[name], trees=[name] if name else [],
        made=[], staging=[str(tmp_path / "precious")], whole=False, jobs=[],
    )  # fmt: skip
    (root / "delivered").mkdir()
    (root / "delivered" / "0.json").write_text(json.dumps(record._asdict()))
    remove_delivered(root)
    assert (tmp_path / "precious").read_text() == "mine"
    assert (place / "link").is_symlink()


def test_a_place_that_became_a_link_is_left_alone(
    deliver: Deliver, source, home: Path, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").write_text("mine")
    deliver({"~/data": source({"a": "1"})}, f"rm -r ~/data; ln -s '{tmp_path}/precious' ~/data")
    (problem,) = remove_delivered(root)
    assert "leads elsewhere" in problem
    assert (tmp_path / "precious" / "a").read_text() == "mine"


def test_a_file_of_the_accounts_own_is_replaced_and_stays_when_the_cluster_goes(
    deliver: Deliver, source, home: Path, root: Path
) -> None:
    (home / "cfg").mkdir()
    (home / "cfg" / "app.toml").write_text("the account's own")

    job = deliver({"~/cfg": source({"app.toml": "the task's", "more.toml": "the task's"})})
    deliver({"~/cfg": source({"app.toml": "the next task's"})})

    assert "stays when the cluster goes: app.toml" in job.log
    assert tree(home)["cfg/app.toml"] == "the next task's"
    assert remove_delivered(root) == []
    assert tree(home) == {"cfg": None, "cfg/app.toml": "the next task's"}
