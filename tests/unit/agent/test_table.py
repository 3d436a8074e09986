"""The job table: what survives the agent, and files that other versions or accidents left."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.table import DamagedTable, JobTable, NewJob, on_network

OLD = """
CREATE TABLE jobs (job_id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
  marker TEXT NOT NULL, status TEXT NOT NULL, owner_id TEXT NOT NULL, generation INTEGER NOT NULL,
  acknowledged INTEGER NOT NULL DEFAULT 0, grace_seconds REAL NOT NULL, exit_codes TEXT NOT NULL DEFAULT '[]',
  reason TEXT NOT NULL DEFAULT '', output TEXT, submitted_at REAL NOT NULL, started_at REAL NOT NULL DEFAULT 0,
  ended_at REAL NOT NULL DEFAULT 0);
INSERT INTO jobs (key, name, marker, status, owner_id, generation, acknowledged, grace_seconds, submitted_at)
  VALUES ('k', 'old', 'm', 'RUNNING', 'ti', 7, 1234, 5, 1700000000);
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def table(file: Path) -> Iterator[JobTable]:
    opened = JobTable(file)
    yield opened
    opened.close()


def add(table: JobTable, key: str = "k", **fields: str) -> int:
    return table.add(NewJob(key=key, name="n", marker="m", **fields)).job_id


def move(table: JobTable, job_id: int, before: str, after: str) -> bool:
    row = table.get(job_id)
    assert row is not None
    return table.move(before, replace(row, status=after))


def test_a_job_is_found_by_id_and_by_key(table: JobTable) -> None:
    job_id = add(table, "one")
    by_id, by_key = table.get(job_id), table.by_key("one")
    assert by_id == by_key
    assert by_id is not None
    assert by_id.status == "INIT"
    assert table.get(job_id + 1) is None


def test_i1_09_a_transition_happens_only_from_the_status_it_was_decided_on(table: JobTable) -> None:
    job_id = add(table)
    assert move(table, job_id, "INIT", "PENDING")
    assert move(table, job_id, "PENDING", "CANCELLED")
    assert not move(table, job_id, "PENDING", "RUNNING")
    row = table.get(job_id)
    assert row is not None
    assert row.status == "CANCELLED"


def test_live_jobs_are_those_that_have_not_ended(table: JobTable) -> None:
    ids = [add(table, str(number)) for number in range(3)]
    move(table, ids[1], "INIT", "FAILED")
    assert [row.job_id for row in table.live()] == [ids[0], ids[2]]


def test_pages_go_from_the_newest_job_back(table: JobTable) -> None:
    ids = [add(table, str(number)) for number in range(5)]
    for job_id in ids:
        move(table, job_id, "INIT", "SUCCEEDED")
    first = table.page(before=None, limit=2, all_jobs=True, username=None)
    second = table.page(before=first[-1].job_id, limit=10, all_jobs=True, username=None)
    assert [row.job_id for row in first + second] == ids[::-1]
    assert table.page(before=None, limit=10, all_jobs=False, username=None) == []


def test_a_page_brings_no_outputs(table: JobTable) -> None:
    job_id = add(table)
    row = table.get(job_id)
    assert row is not None
    table.move("INIT", replace(row, status="SUCCEEDED", output='"large"'))
    (found,) = table.page(before=None, limit=1, all_jobs=True, username=None)
    assert found.output is None
    assert found == replace(table.get(job_id) or row, output=None)


def test_a_page_can_be_of_one_user(table: JobTable) -> None:
    mine = add(table, "a", username="me")
    add(table, "b", username="you")
    rows = table.page(before=None, limit=9, all_jobs=True, username="me")
    assert [row.job_id for row in rows] == [mine]


def test_many_ids_at_once_are_no_problem_for_sqlite(table: JobTable) -> None:
    job_id = add(table)
    assert [row.job_id for row in table.many(range(1, 5000))] == [job_id]


def test_k52_the_table_of_the_version_before_is_taken_over(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(OLD)
    connection.close()
    for _ in range(2):  # the second opening finds nothing to do
        table = JobTable(file)
        (row,) = table.live()
        assert (row.name, row.generation, row.acknowledged, row.logs, row.metadata) == (
            "old",
            7,
            1234,
            "",
            "{}",
        )
        table.close()


def test_k52_the_table_of_a_newer_version_is_refused(file: Path) -> None:
    JobTable(file).close()
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DamagedTable, match="newer agent"):
        JobTable(file)


@pytest.mark.parametrize("damage", [b"this is no database at all", b"\0" * 8192])
def test_k30_a_damaged_table_is_named_with_the_remedy(file: Path, damage: bytes) -> None:
    JobTable(file).close()
    file.write_bytes(damage)
    with pytest.raises(DamagedTable, match=r"jobs\.db is damaged .* move it away"):
        JobTable(file)


def test_k30_pages_that_were_overwritten_are_noticed_at_the_start(file: Path) -> None:
    table = JobTable(file)
    for number in range(500):
        add(table, str(number), metadata="x" * 200)
    table.close()
    content = bytearray(file.read_bytes())
    content[8192 : 8192 + 40_000] = b"\xff" * 40_000
    file.write_bytes(content)
    with pytest.raises(DamagedTable):
        JobTable(file)


def test_k30_a_local_directory_is_told_from_one_of_the_network(tmp_path: Path) -> None:
    assert not on_network(tmp_path)
