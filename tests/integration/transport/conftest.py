"""Each test has the SSH thread and the connections of a process that has just begun."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider.runtime.transport.ssh import process


@pytest.fixture(autouse=True)
def _ssh_of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process, "_current", None)
    yield
    process._end()
