"""From the loss of a local cluster to its job running again; from a cancel to nothing left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow_provider.runtime.control.controller import Controller
from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.files.blobs import BlobStore
from airflow_provider.runtime.infra.local import LocalInfra
from airflow_provider.runtime.state import StateStore, TaskKey, TaskOrder, TaskRecord
from airflow_provider.runtime.task import ChainPlace, task_from_definition
from benchmarks.report import Figure, median

_ROUNDS = 5


class _Lines:
    """A sink that tells when the job has printed a line."""

    def __init__(self) -> None:
        self.printed: asyncio.Queue[float] = asyncio.Queue()

    async def output(self, text: str) -> None:
        self.printed.put_nowait(time.perf_counter())

    async def say(self, message: str) -> None:
        """Drop the controller's own lines."""


async def measure() -> list[Figure]:
    """Run tasks under the controller, lose their clusters, then cancel them."""
    recoveries, cancels = [], []
    with TemporaryDirectory() as folder:
        for number in range(_ROUNDS):
            recovery, cancel = await _round(Path(folder), number)
            recoveries.append(recovery)
            cancels.append(cancel)
    return [
        Figure(
            "lost local cluster to the job running again",
            median(recoveries),
            5,
            "s",
            f"kill to the first line of the next attempt, median of {_ROUNDS}",
        ),
        Figure(
            "cancel to nothing left", median(cancels), 10, "s", f"job that obeys SIGTERM, median of {_ROUNDS}"
        ),
    ]


async def _round(folder: Path, number: int) -> tuple[float, float]:
    infra = LocalInfra(folder / "clusters")
    store = StateStore.connect(f"sqlite:///{folder / 'state.db'}")
    record = _intend(store, number)
    lines = _Lines()
    controller = Controller(
        record,
        store=store,
        infra=infra,
        blobs=BlobStore.local(folder / "blobs"),
        secrets=_no_secrets,
        sink=lines,
    )
    running = asyncio.create_task(controller.run())
    await lines.printed.get()
    begin = time.perf_counter()
    await asyncio.to_thread(infra.preempt, record.cluster_name)
    recovery = await lines.printed.get() - begin
    begin = time.perf_counter()
    controller.stop(Outcome(Status.CANCELLED, "benchmark"))
    await running
    if infra.clusters():
        raise RuntimeError(f"left behind: {infra.clusters()}")
    return recovery, time.perf_counter() - begin


def _intend(store: StateStore, number: int) -> TaskRecord:
    task = task_from_definition({"name": "lost", "run": "echo running; sleep 600"}).resolve()
    order = TaskOrder(task, (), ChainPlace("chain", "chain", ("lost",), 0), "none", "nobody", None, 5.0)
    return store.intend(
        TaskKey("benchmark", str(number), "lost"),
        owner="benchmark",
        max_tries=0,
        order=order,
        decide=lambda _found: State(),
    )


async def _no_secrets(_references: dict[str, str]) -> dict[str, str]:
    return {}
