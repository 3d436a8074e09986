"""A real, small, disposable Airflow for the demo, the end-to-end tests and the benchmarks. Not shipped."""

from __future__ import annotations

from harness.airflow import AirflowError, AirflowInstance
from harness.rest import AirflowApi, ApiError, DagRun, LogRecord, TaskInstance

__all__ = [
    "AirflowApi",
    "AirflowError",
    "AirflowInstance",
    "ApiError",
    "DagRun",
    "LogRecord",
    "TaskInstance",
]
