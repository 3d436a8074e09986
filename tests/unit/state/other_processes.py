"""What the tests do to one database from several processes at once."""

from __future__ import annotations

import hashlib
import multiprocessing
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider.runtime.control.machine import State
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.files.archive import Archive
from airflow_provider.runtime.files.blobs import BlobStore
from airflow_provider.runtime.state import FileTreeRef, StateStore, TaskKey
from tests.unit.state.orders import ENDED, order

PROCESSES = 4

_barrier: Any = None
"""Of each of the processes."""


class Processes:
    """Four processes that know nothing of each other, made once: they import a lot."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = context.Pool(PROCESSES, _remember, (context.Barrier(PROCESSES),))

    def at_once(self, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call ``function`` in each of the processes, with these arguments, all at the same moment."""
        assert len(arguments) == PROCESSES
        return self._pool.starmap(_together, [(function, each) for each in arguments], chunksize=1)

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


def _remember(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _together(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    _barrier.wait(60)
    return function(*arguments)


def intend(url: str, key: TaskKey, owner: str, name: str) -> tuple[int, int, int]:
    """Open the store, which may not exist yet, and write an intent."""
    place = order(name=name, stages=("prepare", "train", "evaluate"))
    record = StateStore.connect(url).intend(
        key, owner=owner, max_tries=0, order=place, decide=lambda found: found.state if found else State()
    )
    return record.id, record.job_id, record.generation


def claim_many(url: str, task: int, owner: str, times: int) -> tuple[list[int], int]:
    """Claim again and again, and write after each claim; return the generations and the writes that went through."""
    store = StateStore.connect(url)
    generations, written = [], 0
    for _ in range(times):
        record = store.claim(task, owner)
        generations.append(record.generation)
        try:
            store.transition(
                record, state=record.state, event=f"by {record.generation}", message="", cluster=None
            )
            written += 1
        except Superseded:
            pass
    return generations, written


def archive_of(folder: Path, content: str) -> Archive:
    """Return an archive with that content, the same for everybody."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    path = folder / f"{digest}-{uuid.uuid4().hex}.tar"
    path.write_text(content)
    return Archive(path, digest, path.stat().st_size, 1, "file")


def use_and_drop_files(url: str, blobs: Path, worker: int, rounds: int) -> list[str]:
    """Live through many short tasks that share one archive; return what went wrong."""
    store, blob_store = StateStore.connect(url), BlobStore.local(blobs)
    archive = archive_of(blobs.parent, "shared by all")
    tree = FileTreeRef(archive.digest, archive.size, archive.kind, "~/sky_workdir")
    problems = []
    for number in range(rounds):
        key = TaskKey("dag", "run", f"task-{worker}-{number}")
        record = store.intend(
            key, owner="me", max_tries=0, order=order(files=(tree,)), decide=lambda found: State()
        )
        blob_store.put(archive)
        for _ in range(3):
            if not blob_store.has(archive.digest):
                problems.append(f"worker {worker}, round {number}: the archive of a live task is gone")
        store.transition(record, state=ENDED, event="End", message="", cluster=None)
        store.collect_blobs(blob_store.delete)
    return problems
