"""A managed task's record in the state store, as its controller keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from airflow_provider.runtime.blocking import run_blocking
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.state import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    from airflow_provider.runtime.control.taskstate import State
    from airflow_provider.runtime.state import StateStore, TaskRecord

    Arguments = ParamSpec("Arguments")

_PATIENCE_SECONDS = 300.0


class Ledger:
    """The record of one task, and every change to it. A database that is away for a while holds the task up, no more.

    Args:
        record: The task, claimed by the caller.
        store: Where it was claimed.
    """

    def __init__(self, record: TaskRecord, store: StateStore) -> None:
        self.record = record
        self._store = store

    async def save(self, state: State, event: str, message: str, cluster: dict[str, object] | None) -> None:
        """Store a transition.

        Raises:
            Superseded: somebody else controls the task now.
            StoreUnavailable: the store was away for too long.
        """
        self.record = await self._stored(
            self._store.transition, self.record, state=state, event=event, message=message, cluster=cluster
        )

    async def check_claim(self) -> None:
        """Make sure that the task is still ours: clusters are made and removed by name, which the next owner uses.

        Raises:
            Superseded: it is not.
        """
        now = await self._stored(self._store.get, self.record.id)
        if now.generation != self.record.generation:
            raise Superseded(
                f"managed task {now.id} was claimed by {now.owner} (generation {now.generation}), after "
                f"generation {self.record.generation}"
            )

    async def _stored(
        self, call: Callable[Arguments, TaskRecord], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> TaskRecord:
        """Call the store, and again while it is away."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailable),
            wait=wait_random_exponential(multiplier=0.2, max=10),
            stop=stop_after_delay(_PATIENCE_SECONDS),
            reraise=True,
        ):
            with attempt:
                return await run_blocking(call, *args, **kwargs)
        raise AssertionError("the loop ends by returning or raising")
