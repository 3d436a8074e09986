"""The state store: what is known of every managed task, in one database that all hosts share."""

from airflow_provider.runtime.state.records import (
    FileTreeRef,
    TaskEvent,
    TaskKey,
    TaskOrder,
    TaskRecord,
)
from airflow_provider.runtime.state.store import NoRecord, StateStore, StoreUnavailable

__all__ = [
    "FileTreeRef",
    "NoRecord",
    "StateStore",
    "StoreUnavailable",
    "TaskEvent",
    "TaskKey",
    "TaskOrder",
    "TaskRecord",
]
