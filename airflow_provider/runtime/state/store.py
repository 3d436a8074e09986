"""Reading and writing managed tasks. All calls block; async code goes through ``run_blocking``."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_provider.runtime.control.codec import state_from_json, state_to_json
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.state.engine import engine_for
from airflow_provider.runtime.state.records import TaskEvent, TaskKey, TaskOrder, TaskRecord
from airflow_provider.runtime.state.tables import blob_references, blobs, events, jobs, tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider.runtime.control.machine import State

_TERMINAL = [status.value for status in Status if status.terminal]

_SELECT = sa.select(tasks, jobs.c.created_at.label("job_created_at")).join(jobs, tasks.c.job_id == jobs.c.id)


class NoRecord(Exception):
    """The store does not know the task."""


class StoreUnavailable(Exception):
    """The database cannot be reached or is too busy; trying again may help."""


class StateStore:
    """Managed tasks in a database.

    Every change of a task names the generation that the caller claimed. A later claim makes all writes of an earlier
    one fail with Superseded, so a stalled process that wakes up cannot do harm.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def connect(cls, url: str) -> StateStore:
        """Return the store at a database URL, with the tables made when they are not there.

        Raises:
            NewerSchema: a later version of the provider uses this database.
            StoreUnavailable: the database cannot be reached.
        """
        with _available():
            return cls(engine_for(url))

    def intend(
        self,
        key: TaskKey,
        *,
        owner: str,
        max_tries: int,
        order: TaskOrder,
        decide: Callable[[TaskRecord | None], State],
    ) -> TaskRecord:
        """Write down what a try is about to do, and claim the task for it; one transaction.

        Args:
            key: The Airflow task.
            owner: Id of the try.
            max_tries: Airflow's count, by which a later try tells a clear from a retry.
            order: What the user asks for.
            decide: Returns the state to go on from, given the record of an earlier try.
        """
        try:
            return self._intend(key, owner, max_tries, order, decide)
        except sa.exc.IntegrityError:
            # Another try wrote the task's first record between our look and our insert; now we find it.
            return self._intend(key, owner, max_tries, order, decide)

    def _intend(
        self,
        key: TaskKey,
        owner: str,
        max_tries: int,
        order: TaskOrder,
        decide: Callable[[TaskRecord | None], State],
    ) -> TaskRecord:
        now = time.time()
        with self._write() as connection:
            job_id = self._job(connection, key, order.chain.chain_id, now)
            found = self._read(connection, _where(key), lock=True)
            state = decide(found)
            values = {
                "owner": owner,
                "max_tries": max_tries,
                "task_order": json.dumps(order.to_json()),
                "updated_at": now,
                **_state_columns(state),
            }
            if found is None:
                result = connection.execute(
                    sa.insert(tasks)
                    .values(
                        **_key_columns(key),
                        job_id=job_id,
                        cluster_prefix=order.task.name[:60],
                        generation=1,
                        created_at=now,
                        **values,
                    )
                    .returning(tasks.c.id)
                )
                task = result.scalar_one()
            else:
                task = found.id
                # The cluster of the earlier try stays: it is taken over or torn down, never forgotten.
                connection.execute(
                    sa.update(tasks)
                    .where(tasks.c.id == task)
                    .values(generation=tasks.c.generation + 1, **values)
                )
            needed = () if state.status.terminal else sorted({tree.digest for tree in order.files})
            self._reference(connection, task, needed, now)
            record = self._get(connection, task)
            self._event(connection, record, "Intended", f"by {owner}", now)
            return record

    def claim(self, task: int, owner: str) -> TaskRecord:
        """Take over the control of a task within its try: the next generation.

        Raises:
            NoRecord: the store does not know the task.
            Superseded: the task belongs to another try now.
        """
        now = time.time()
        with self._write() as connection:
            record = self._get(connection, task, lock=True)
            if record.owner != owner:
                raise Superseded(f"managed task {task} belongs to try {record.owner}, not to {owner}")
            connection.execute(
                sa.update(tasks)
                .where(tasks.c.id == task)
                .values(generation=record.generation + 1, updated_at=now)
            )
            claimed = self._get(connection, task)
            self._event(connection, claimed, "Claimed", f"by {owner}", now)
            return claimed

    def transition(
        self, record: TaskRecord, *, state: State, event: str, message: str, cluster: dict[str, Any] | None
    ) -> TaskRecord:
        """Store a new state together with its audit event; one transaction. A terminal status stays for good.

        Repeating a call whose answer was lost is safe.

        Args:
            record: The record as the caller last saw it; its generation is the caller's claim.
            state: The new state.
            event: Name of the event that led to it.
            message: What the user was told.
            cluster: Handle of the present cluster, None when there is none.

        Raises:
            Superseded: somebody claimed the task later, or it has ended otherwise.
        """
        now = time.time()
        with self._write() as connection:
            result = connection.execute(
                sa.update(tasks)
                .where(
                    tasks.c.id == record.id,
                    tasks.c.generation == record.generation,
                    tasks.c.status.not_in(_TERMINAL),
                )
                .values(
                    cluster=None if cluster is None else json.dumps(cluster),
                    updated_at=now,
                    **_state_columns(state),
                )
            )
            after = self._get(connection, record.id)
            if result.rowcount != 1:
                if (after.generation, after.state) == (record.generation, state):
                    return after
                raise Superseded(
                    f"managed task {record.id} is {after.status.value}, controlled by {after.owner} (generation "
                    f"{after.generation}); generation {record.generation} may not change it any more"
                )
            self._event(connection, after, event, message, now)
            if state.status.terminal:
                connection.execute(sa.delete(blob_references).where(blob_references.c.task == record.id))
            return after

    def get(self, task: int) -> TaskRecord:
        """Return a task.

        Raises:
            NoRecord: the store does not know it.
        """
        with self._connect(writes=False) as connection:
            return self._get(connection, task)

    def find(self, *, dag_id: str, run_id: str) -> list[TaskRecord]:
        """Return the tasks of a DAG run, oldest first."""
        query = _SELECT.where(tasks.c.dag_id == dag_id, tasks.c.run_id == run_id).order_by(tasks.c.id)
        with self._connect(writes=False) as connection:
            return [_record(row) for row in connection.execute(query)]

    def events(self, task: int) -> list[TaskEvent]:
        """Return the history of a task, oldest first."""
        query = sa.select(events).where(events.c.task == task).order_by(events.c.id)
        with self._connect(writes=False) as connection:
            return [
                TaskEvent(row.at, row.generation, row.event, row.status, row.message)
                for row in connection.execute(query)
            ]

    def collect_blobs(self, delete: Callable[[str], None]) -> list[str]:
        """Remove every archive that no live task refers to, and return their digests.

        A task that begins to need one meanwhile waits for the row that is locked here, finds the archive gone, and
        sends it again.
        """
        unused = sa.select(blobs.c.digest).where(
            ~sa.exists().where(blob_references.c.digest == blobs.c.digest)
        )
        with self._connect(writes=False) as connection:
            candidates = list(connection.scalars(unused))
        removed = []
        for digest in candidates:
            with self._write() as connection:
                # Two statements: the second sees what was committed while the first waited for the lock.
                connection.execute(
                    sa.select(blobs.c.digest).where(blobs.c.digest == digest).with_for_update()
                )
                if connection.scalar(unused.where(blobs.c.digest == digest)) is not None:
                    delete(digest)
                    connection.execute(sa.delete(blobs).where(blobs.c.digest == digest))
                    removed.append(digest)
        return removed

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        """Open a transaction that writes: it takes SQLite's lock at its begin, not at its first write."""
        with self._connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def _connect(self, *, writes: bool = True) -> Iterator[sa.Connection]:
        with _available(), self._engine.connect().execution_options(writes=writes) as connection:
            yield connection

    def _job(self, connection: sa.Connection, key: TaskKey, chain_id: str, now: float) -> int:
        """Return the number of the managed job, given out on first use."""
        where = {
            "dag_id": key.dag_id,
            "run_id": key.run_id,
            "chain_id": chain_id,
            "map_index": key.map_index,
        }
        query = sa.select(jobs.c.id).filter_by(**where)
        known: int | None = connection.scalar(query)
        if known is not None:
            return known
        try:
            with connection.begin_nested():
                inserted = sa.insert(jobs).values(**where, created_at=now).returning(jobs.c.id)
                return int(connection.execute(inserted).scalar_one())
        except sa.exc.IntegrityError:
            return int(connection.execute(query).scalar_one())  # another stage was faster

    def _reference(self, connection: sa.Connection, task: int, digests: Sequence[str], now: float) -> None:
        """Make ``digests`` the archives that the task needs."""
        connection.execute(sa.delete(blob_references).where(blob_references.c.task == task))
        for digest in digests:
            # The update takes the row's lock: see collect_blobs.
            touched = connection.execute(
                sa.update(blobs).where(blobs.c.digest == digest).values(touched_at=now)
            )
            if touched.rowcount == 0:
                try:
                    with connection.begin_nested():
                        connection.execute(sa.insert(blobs).values(digest=digest, touched_at=now))
                except sa.exc.IntegrityError:
                    connection.execute(
                        sa.update(blobs).where(blobs.c.digest == digest).values(touched_at=now)
                    )
            connection.execute(sa.insert(blob_references).values(digest=digest, task=task))

    def _get(self, connection: sa.Connection, task: int, *, lock: bool = False) -> TaskRecord:
        record = self._read(connection, tasks.c.id == task, lock=lock)
        if record is None:
            raise NoRecord(f"the state store has no managed task {task}")
        return record

    def _read(
        self, connection: sa.Connection, where: sa.ColumnElement[bool], *, lock: bool
    ) -> TaskRecord | None:
        query = _SELECT.where(where)
        row = connection.execute(query.with_for_update(of=tasks) if lock else query).one_or_none()
        return None if row is None else _record(row)

    def _event(
        self, connection: sa.Connection, record: TaskRecord, event: str, message: str, now: float
    ) -> None:
        connection.execute(
            sa.insert(events).values(
                task=record.id,
                at=now,
                generation=record.generation,
                event=event,
                status=record.status.value,
                message=_storable(message),
            )
        )


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
        raise StoreUnavailable(f"state store: {error.orig}") from error


def _storable(text: str) -> str:
    """Return ``text`` without what a database cannot hold: messages may quote any bytes of a failed command."""
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode()


def _where(key: TaskKey) -> sa.ColumnElement[bool]:
    return sa.and_(*(tasks.c[name] == value for name, value in _key_columns(key).items()))


def _key_columns(key: TaskKey) -> dict[str, Any]:
    return {
        "dag_id": key.dag_id,
        "run_id": key.run_id,
        "task_id": key.task_id,
        "map_index": key.map_index,
    }


def _state_columns(state: State) -> dict[str, Any]:
    return {"status": state.status.value, "state": json.dumps(state_to_json(state))}


def _record(row: sa.Row[Any]) -> TaskRecord:
    return TaskRecord(
        id=row.id,
        job_id=row.job_id,
        job_created_at=row.job_created_at,
        key=TaskKey(row.dag_id, row.run_id, row.task_id, row.map_index),
        cluster_name=f"{row.cluster_prefix}-{row.id}",
        owner=row.owner,
        generation=row.generation,
        max_tries=row.max_tries,
        state=state_from_json(json.loads(row.state)),
        order=TaskOrder.from_json(json.loads(row.task_order)),
        cluster=None if row.cluster is None else json.loads(row.cluster),
        updated_at=row.updated_at,
    )
