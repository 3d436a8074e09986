"""Every test of the store runs on SQLite, and on PostgreSQL where there is one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider.runtime.state import StateStore, tables
from tests.unit.state import postgresql
from tests.unit.state.other_processes import Processes

DATABASES = ["sqlite", *(["postgresql"] if postgresql.available() else [])]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgresql.server() as url:
        yield url


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/store.db"
    # One database for all tests, emptied before each; the name makes a new engine of it in every process.
    url = f"{request.getfixturevalue('server')}&application_name={uuid.uuid4().hex}"
    engine = sa.create_engine(url)
    tables.metadata.drop_all(engine)
    engine.dispose()
    return url


@pytest.fixture
def store(url: str) -> StateStore:
    return StateStore.connect(url)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.close()
