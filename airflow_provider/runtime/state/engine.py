"""Database engines: SQLite by default, PostgreSQL for several hosts."""

from __future__ import annotations

import os
import sqlite3
import time
from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from airflow_provider.runtime.state import tables

_BUSY_SECONDS = 30


class NewerSchema(Exception):
    """The database was made by a later version of the provider."""


def engine_for(url: str) -> sa.Engine:
    """Return the engine of this process for ``url``, with the tables made on first use.

    Raises:
        NewerSchema: a later version of the provider uses this database.
    """
    # By process: a forked worker must not use its parent's connections.
    return _engine(url, os.getpid())


@lru_cache(maxsize=8)
def _engine(url: str, _process: int) -> sa.Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database:
            Path(parsed.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False})
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    else:
        engine = sa.create_engine(url, pool_pre_ping=True, pool_size=4, max_overflow=4)
    _create_tables(engine)
    return engine


def _set_up_sqlite(connection: object, _record: object) -> None:
    # The driver's own implicit BEGIN comes too late for a read that decides about a write.
    connection.isolation_level = None  # type: ignore[attr-defined]  # a DB-API connection has no common type
    cursor = connection.cursor()  # type: ignore[attr-defined]
    _switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _switch_to_wal(cursor: sqlite3.Cursor) -> None:
    """Switch the file's mode; SQLite's own waiting does not cover two processes that do so with a new file."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _create_tables(engine: sa.Engine) -> None:
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            # Two processes may meet an empty database at the same moment.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7263548190)")
        tables.metadata.create_all(connection)
        version = connection.scalar(sa.select(sa.func.max(tables.schema.c.version)))
        if version is None:
            connection.execute(sa.insert(tables.schema).values(version=tables.SCHEMA_VERSION))
        elif version > tables.SCHEMA_VERSION:
            raise NewerSchema(
                f"the state store has schema version {version}, this version of the provider knows up to "
                f"{tables.SCHEMA_VERSION}: upgrade airflow-provider-managed-jobs on this host"
            )
