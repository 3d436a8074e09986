"""The controller of a managed task, put together from what Airflow knows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import redact  # type: ignore[attr-defined]  # public by name, without an __all__
from tenacity import AsyncRetrying, retry_if_not_exception_type, stop_after_attempt, wait_random_exponential

from airflow_provider import settings
from airflow_provider.hooks.cluster import ClusterHook
from airflow_provider.hooks.connection import BadConnection, ClusterSettings
from airflow_provider.hooks.naming import connection_of
from airflow_provider.hooks.secrets import resolve_secrets
from airflow_provider.runtime.blocking import run_blocking
from airflow_provider.runtime.control.controller import Controller, SecretMissing
from airflow_provider.tasklog import TaskLogSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.state import StateStore, TaskRecord


_ATTEMPTS = 5


class CannotBegin(ValueError):
    """A managed task cannot be controlled as things are; the text says why and what to do."""


async def make_controller(record: TaskRecord, store: StateStore, logger: Callable[[], Any]) -> Controller:
    """Return the controller of ``record``, which the caller has claimed, for the running event loop.

    Args:
        record: The managed task.
        store: Where it was claimed.
        logger: Returns the logger of the task log.

    Raises:
        CannotBegin: the task's connection does not exist, or says something that is not acceptable.
    """
    try:
        conn_id = connection_of(record.order.task, record.order.conn_id)
    except ValueError as error:
        raise CannotBegin(str(error)) from None
    cluster = await _settings(conn_id)
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


async def _settings(conn_id: str) -> ClusterSettings:
    """Return what the connection says; an Airflow that does not answer is asked again for a while."""
    lasting = (BadConnection, AirflowNotFoundException)
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_not_exception_type(lasting),
            wait=wait_random_exponential(multiplier=0.5, max=10),
            stop=stop_after_attempt(_ATTEMPTS),
            reraise=True,
        ):
            with attempt:
                return await ClusterHook(conn_id).asettings()
    except AirflowNotFoundException as error:
        raise CannotBegin(
            f"the Airflow connection {conn_id!r}, which clusters come from, does not exist; create it or name another"
        ) from error
    except BadConnection as error:
        raise CannotBegin(str(error)) from error
    except Exception as error:
        raise CannotBegin(f"the Airflow connection {conn_id!r} cannot be read: {error}") from error
    raise AssertionError("the loop ends by returning or raising")


def _redact(text: str) -> str:
    return str(redact(text))
