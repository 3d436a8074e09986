"""The controller of a managed task, put together from what Airflow knows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import redact  # type: ignore[attr-defined]  # public by name, without an __all__

from airflow_provider import settings
from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.secrets import resolve_secrets
from airflow_provider.runtime.blocking import run_blocking
from airflow_provider.runtime.control.controller import Controller, SecretMissing
from airflow_provider.tasklog import TaskLogSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.state import StateStore, TaskRecord


async def make_controller(record: TaskRecord, store: StateStore, logger: Callable[[], Any]) -> Controller:
    """Return the controller of ``record``, which the caller has claimed, for the running event loop.

    Args:
        record: The managed task.
        store: Where it was claimed.
        logger: Returns the logger of the task log.

    Raises:
        AirflowNotFoundException: the task's connection does not exist.
        ValueError: the connection says something that is not acceptable.
    """
    cluster = await ClusterHook(record.order.conn_id).asettings()
    with suppress(SecretMissing):  # told when the job is to be submitted
        # Resolved so that this process masks them: it may follow a job that another one has started.
        await resolve_secrets(record.order.task.secrets)
    return Controller(
        record,
        store=store,
        infra=cluster.make_infra(),
        blobs=await run_blocking(settings.blob_store),
        secrets=resolve_secrets,
        sink=TaskLogSink(logger),
        unreachable_timeout=cluster.unreachable_timeout,
        redact=_redact,
    )


def _redact(text: str) -> str:
    return str(redact(text))
