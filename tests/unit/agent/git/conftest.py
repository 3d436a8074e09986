"""Jobs whose working directory is a Git repository, and servers for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.jobdir import GitOrder
from tests.unit.agent.conftest import DriverRun, StartJob
from tests.unit.agent.git.servers import GitServer, Repository

QUICK = "from airflow_provider.runtime.agent.driver import git; git._PAUSE_SECONDS = 0.01; "

Serve = Callable[..., GitServer]
Run = Callable[..., DriverRun]


def said(job: DriverRun) -> str:
    """What the job printed itself."""
    return "".join(
        line
        for line in job.log.splitlines(keepends=True)
        if not line.startswith(("[managed job]", "From ", " * "))
    )


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server for the repositories below ``served``."""
    servers: list[GitServer] = []

    def serve(**options: object) -> GitServer:
        servers.append(GitServer(tmp_path / "served", **options))  # type: ignore[arg-type]
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "served" / "repo")


@pytest.fixture
def url(serve: Serve) -> str:
    return serve().url()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cluster").mkdir()
    return tmp_path / "cluster"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def start(start_job: StartJob, home: Path, root: Path) -> Run:
    """Start a job of a cluster whose jobs share their home."""

    def start(url: str, run: str = "true", *, ref: str = "", **fields: object) -> DriverRun:
        fields.setdefault("before", QUICK)
        return start_job(run, git=GitOrder(url, ref), home=home, root=str(root), **fields)

    return start


@pytest.fixture
def run(start: Run) -> Run:
    """Run such a job to its end, which must be good."""

    def run(*args: object, **kwargs: object) -> DriverRun:
        job = start(*args, **kwargs).wait()
        assert job.report.status == "SUCCEEDED", job.report.reason + job.log
        return job

    return run
