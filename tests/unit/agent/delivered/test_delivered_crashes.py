"""Deliveries that are killed half-way, and places outside the home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.driver.delivered import remove_delivered
from airflow_provider.runtime.agent.process import cgroup
from tests.unit.agent.conftest import DriverRun
from tests.unit.agent.deliveries import tree

Deliver = Callable[..., DriverRun]


# ---- crashes


@pytest.mark.parametrize("moment", ["begin", "extract", "replace", "merge", "close"])
@pytest.mark.parametrize("there", [False, True])
def test_whatever_a_crash_leaves_is_on_record(
    deliver: Deliver,
    start: Deliver,
    source,
    home: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    there: bool,
) -> None:
    if there:
        deliver({"~/x/data": source({"old": "1", "d/old": "1", "d/a": "1"})})
    module = "unpack" if moment in ("extract", "merge") else "delivered"
    owner, name = {
        "begin": ("Account", "begin"),
        "extract": ("_Extraction", "extract"),
        "replace": ("Account", "replace"),
        "merge": ("", "_merge" if there else "_check_end"),
        "close": ("Account", "close"),
    }[moment]
    target = f"m.{owner}" if owner else "m"
    crash = (
        f"import os, signal; from airflow_provider.runtime.agent.driver import {module} as m; "
        f"real = {target}.{name}; "
        f"{target}.{name} = lambda *a, **k: (real(*a, **k), os.kill(os.getpid(), signal.SIGKILL)); "
    )
    monkeypatch.setenv(cgroup.SWITCH, "off")
    killed = start({"~/x/data": source({"new": "1", "d/new": "1"})}, before=crash).wait()
    report = killed.directory.report()
    assert report is None or report.ended_at == 0
    assert remove_delivered(root) == []
    assert tree(home) == {}


def test_after_a_crash_the_next_delivery_is_whole(
    deliver: Deliver, start: Deliver, source, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cgroup.SWITCH, "off")
    deliver({"~/sky_workdir": source({"old": "1"})})
    crash = (
        "import os, signal; from airflow_provider.runtime.agent.driver import unpack as m; "
        "m._merge = lambda *a: os.kill(os.getpid(), signal.SIGKILL); "
    )
    start({"~/sky_workdir": source({"middle": "1"})}, before=crash).wait()
    assert list((home / "sky_workdir").glob(".managed-jobs-*"))
    deliver({"~/sky_workdir": source({"new": "1"})})
    assert tree(home / "sky_workdir") == {"new": "1"}


# ---- absolute destinations


def test_k87_an_absolute_destination_is_reached_and_cleaned(
    deliver: Deliver, source, root: Path, tmp_path: Path
) -> None:
    job = deliver({str(tmp_path / "abs" / "in"): source({"a": "1"})}, f"cat '{tmp_path}/abs/in/a'")
    assert job.log == "1"
    assert remove_delivered(root) == []
    assert not (tmp_path / "abs").exists()


def test_k87_an_absolute_destination_that_cannot_be_written_is_told_with_the_remedy(
    start: Deliver, source
) -> None:
    job = start({"/proc/managed-jobs/in": source({"a": "1"})}, "echo run").wait()
    assert (job.report.status, job.log) == ("FAILED_SETUP", "")
    assert "cannot unpack /proc/managed-jobs/in" in job.report.reason
