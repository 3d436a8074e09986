"""A state store, a blob store and clusters for managed tasks, and a log to wait for."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from airflow_provider.runtime.agent.process import processes
from airflow_provider.runtime.control.controller import Controller
from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.control.reconcile import reconcile
from airflow_provider.runtime.files.archive import pack
from airflow_provider.runtime.files.blobs import BlobStore
from airflow_provider.runtime.infra.local import LocalInfra
from airflow_provider.runtime.state import FileTreeRef, StateStore, TaskKey, TaskRecord
from tests.unit.state.orders import order


class Log:
    """The task log, and a way to wait for what is written to it."""

    def __init__(self) -> None:
        self.records: list[str] = []
        self.said: list[str] = []
        self.keep = True
        self.size = 0
        self._news = asyncio.Event()

    @property
    def lines(self) -> list[str]:
        return [line for record in self.records for line in record.split("\n")]

    async def output(self, text: str) -> None:
        self.size += len(text) + 1
        if self.keep:
            self.records.append(text)
        self._wake()

    async def say(self, message: str) -> None:
        self.said.append(message)
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def seen(self, text: str) -> None:
        """Wait until the job has printed ``text`` or the controller has said it."""

        async def wait() -> None:
            while True:
                news = self._news
                if any(text in line for line in [*self.records, *self.said]):
                    return
                await news.wait()

        await asyncio.wait_for(wait(), 60)


class Lab:
    """A state store, a blob store and local clusters in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: Any = StateStore.connect(f"sqlite:///{folder}/state/store.db")
        self.blobs = BlobStore.local(folder / "blobs")
        self.infra = LocalInfra(folder / "clusters", lease_seconds=60)
        self.log = Log()
        self.effects = folder / "effects"
        self._tasks = 0

    def intend(self, run: str, *, files: Path | None = None, **values: Any) -> TaskRecord:
        """Write down a task. ``$EFFECTS`` is a file that outlives clusters."""
        self._tasks += 1
        trees: tuple[FileTreeRef, ...] = ()
        archive = None
        if files is not None:
            archive = pack(files, self.folder / "packed")
            trees = (FileTreeRef(archive.digest, archive.size, archive.kind, "~/sky_workdir"),)
        values["envs"] = {"EFFECTS": str(self.effects), **values.get("envs", {})}
        record: TaskRecord = self.store.intend(
            TaskKey("dag", "run", f"train-{self._tasks}"),
            owner="try-1",
            max_tries=0,
            order=order(run, files=trees, **values),
            decide=lambda found: State(),
        )
        if archive is not None:
            self.blobs.put(archive)
        return record

    def controller(self, record: TaskRecord, **values: Any) -> Controller:
        async def secrets(references: dict[str, str]) -> dict[str, str]:
            return dict.fromkeys(references, "s3cret")

        given = {"store": self.store, "infra": self.infra, "sink": self.log, **values}
        return Controller(record, blobs=self.blobs, secrets=secrets, **given)

    async def run(self, run: str, **values: Any) -> TaskRecord:
        return await self.controller(self.intend(run, **values)).run()

    def claim(self, record: TaskRecord) -> TaskRecord:
        """Return the record as another process would that goes on with the task."""
        claimed: TaskRecord = self.store.claim(record.id, "try-1")
        return claimed

    def next_try(self, record: TaskRecord) -> TaskRecord:
        """Return the record as the next try finds it when Airflow retries the task."""
        written: TaskRecord = self.store.intend(
            record.key,
            owner="try-2",
            max_tries=record.max_tries,
            order=record.order,
            decide=lambda found: reconcile(found, max_tries=record.max_tries).state,
        )
        return written

    def side_effects(self) -> list[str]:
        return self.effects.read_text().split() if self.effects.exists() else []

    def agent_pid(self, record: TaskRecord) -> int:
        lock = self.folder / "clusters" / record.cluster_name / "agent" / "agent.lock"
        return int(lock.read_text())

    def kill_agent(self, record: TaskRecord) -> None:
        os.kill(self.agent_pid(record), signal.SIGKILL)

    def leftovers(self) -> list[str]:
        """Return what should not be there when all tasks have ended."""
        left = [str(path) for path in (self.folder / "clusters").glob("*")]
        left += [str(path) for path in (self.folder / "blobs").rglob("*.tar")]
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{processes.CLUSTER_MARKER}={self.folder}".encode() in path.read_bytes():
                    left.append(f"process {path.parent.name}")
            except OSError:
                continue
        return left
