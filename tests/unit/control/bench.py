"""One managed task on a scripted cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from airflow_provider.runtime.client.base import LogBytes
from airflow_provider.runtime.control.controller import Controller
from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.files.blobs import BlobStore
from airflow_provider.runtime.state import StateStore, StoreUnavailable, TaskRecord
from tests.unit.control.scripted import RUNNING, SUCCEEDED, Lines, Said, ScriptedClient, ScriptedInfra
from tests.unit.state.orders import KEY, order

HELLO: list[Said] = [RUNNING, LogBytes(0, b"hello\n"), SUCCEEDED]
CANCEL = Outcome(Status.CANCELLED, "a user cancelled")


class Bench:
    """One managed task, its store, and the scripted cluster."""

    def __init__(self, folder: Path, *streams: list[Said], **values: Any) -> None:
        self.store: Any = StateStore.connect(f"sqlite:///{folder}/store.db")
        self.blobs = BlobStore.local(folder / "blobs")
        self.client = ScriptedClient(*(streams or [HELLO]))
        self.infra = ScriptedInfra(self.client)
        self.sink = Lines()
        self.secrets: dict[str, str] | Exception = {}
        self.record: TaskRecord = self.store.intend(
            KEY, owner="try-1", max_tries=0, order=order(**values), decide=lambda found: State()
        )

    def controller(self, **values: Any) -> Controller:
        async def secrets(references: dict[str, str]) -> dict[str, str]:
            if isinstance(self.secrets, Exception):
                raise self.secrets
            return self.secrets

        given: dict[str, Any] = {"store": self.store, "infra": self.infra, "blobs": self.blobs, **values}
        return Controller(self.record, secrets=secrets, sink=self.sink, **given)

    async def run(self, **values: Any) -> TaskRecord:
        self.record = await asyncio.wait_for(self.controller(**values).run(), 20)
        return self.record

    def history(self) -> list[str]:
        return [event.event for event in self.store.events(self.record.id)]


class Store:
    """A store that is away, or whose caller dies, at chosen calls."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.away = 0
        self.lost_answers = 0
        self.transitions = 0
        self.die_after = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, task: int) -> TaskRecord:
        self._maybe_away()
        return self._store.get(task)

    def transition(self, record: TaskRecord, **values: Any) -> TaskRecord:
        self._maybe_away()
        after = self._store.transition(record, **values)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnavailable("the connection broke before the answer came")
        self.transitions += 1
        if self.transitions == self.die_after:
            raise Died
        return after

    def _maybe_away(self) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("connection refused")


class Died(BaseException):
    """The process is gone."""
