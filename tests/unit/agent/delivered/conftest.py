"""Jobs of one cluster that share a home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.agent.conftest import DriverRun, StartJob
from tests.unit.agent.deliveries import packed

Deliver = Callable[..., DriverRun]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "cluster"
    root.mkdir()
    return root


@pytest.fixture
def source(tmp_path: Path) -> Callable[[dict[str, str | None]], Path]:
    """Make a folder of files (text), links ("-> target") and empty directories (None); a new one each time."""
    made = 0

    def make(entries: dict[str, str | None]) -> Path:
        nonlocal made
        made += 1
        top = tmp_path / f"source{made}"
        top.mkdir()
        for name, content in entries.items():
            path = top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir()
            elif content.startswith("-> "):
                path.symlink_to(content[3:])
            else:
                path.write_text(content)
        return top

    return make


@pytest.fixture
def start(start_job: StartJob, home: Path, root: Path, tmp_path: Path) -> Deliver:
    """Start a job of the cluster that gets files: destination -> source."""

    def start(files: dict[str, Path], run: str = "true", **fields: object) -> DriverRun:
        orders = [packed(path, tmp_path, destination) for destination, path in files.items()]
        return start_job(run, files=orders, home=home, root=str(root), **fields)

    return start


@pytest.fixture
def deliver(start: Deliver) -> Deliver:
    """Run such a job to its end, which must be good."""

    def deliver(*args: object, **kwargs: object) -> DriverRun:
        job = start(*args, **kwargs).wait()
        assert job.report.status == "SUCCEEDED", job.report.reason
        return job

    return deliver
