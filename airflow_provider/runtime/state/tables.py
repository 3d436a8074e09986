"""The tables of the state store."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 1
"""Grows with each change of the tables or of what the JSON columns hold."""

metadata = MetaData()

# SQLite gives out row ids only for a column of exactly this type.
_Id = BigInteger().with_variant(Integer, "sqlite")

schema = Table(
    "managed_jobs_schema",
    metadata,
    Column("version", Integer, primary_key=True),
)

jobs = Table(
    "managed_jobs",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("dag_id", String(250), nullable=False),
    Column("run_id", String(250), nullable=False),
    Column("chain_id", String(250), nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("dag_id", "run_id", "chain_id", "map_index"),
)

tasks = Table(
    "managed_tasks",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("job_id", _Id, ForeignKey("managed_jobs.id"), nullable=False),
    Column("dag_id", String(250), nullable=False),
    Column("run_id", String(250), nullable=False),
    Column("task_id", String(250), nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("cluster_prefix", String(60), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("max_tries", Integer, nullable=False),
    Column("status", String(32), nullable=False),
    Column("state", Text, nullable=False),
    Column("task_order", Text, nullable=False),
    Column("cluster", Text),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    UniqueConstraint("dag_id", "run_id", "task_id", "map_index"),
    Index("managed_tasks_status", "status"),
)

events = Table(
    "managed_task_events",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("task", _Id, ForeignKey("managed_tasks.id"), nullable=False, index=True),
    Column("at", Float, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("event", String(64), nullable=False),
    Column("status", String(32), nullable=False),
    Column("message", Text, nullable=False),
)

# An archive may be removed when no row names it. Its own row is the lock under which that is decided.
blobs = Table(
    "managed_job_blobs",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("touched_at", Float, nullable=False),
)

blob_references = Table(
    "managed_job_blob_references",
    metadata,
    Column("digest", String(64), ForeignKey("managed_job_blobs.digest"), primary_key=True),
    Column("task", _Id, ForeignKey("managed_tasks.id"), primary_key=True),
)
