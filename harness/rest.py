"""A small client of Airflow's REST API, for an Airflow where everybody is an administrator."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from harness.waiting import poll

# SQLite answers "database is locked" (500) now and then; a restarting API server refuses connections.
_RETRY_FOR = 20.0
_RETRY_EVERY = 0.5

RUN_ENDED = frozenset({"success", "failed"})
TASK_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class ApiError(RuntimeError):
    """The API server refused a request; says which, with the status code and the reason it gave."""

    def __init__(self, response: httpx.Response) -> None:
        request = response.request
        super().__init__(
            f"{request.method} {request.url.path}: {response.status_code} {response.text[:1000]}"
        )
        self.status_code = response.status_code


@dataclass(frozen=True)
class DagRun:
    """One run of a DAG."""

    run_id: str
    state: str
    start: datetime | None
    end: datetime | None

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.state in RUN_ENDED


@dataclass(frozen=True)
class TaskInstance:
    """One task of a run, as of its latest try."""

    id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    start: datetime | None
    end: datetime | None
    operator: str | None

    @property
    def ended(self) -> bool:
        """Whether its state is final (unless somebody clears it)."""
        return self.state in TASK_ENDED


@dataclass(frozen=True)
class LogRecord:
    """One record of a task log."""

    event: str
    timestamp: datetime | None
    level: str | None
    fields: Mapping[str, Any]

    @property
    def error(self) -> str:
        """Type and message of each exception attached to the record, one a line."""
        details = self.fields.get("error_detail") or []
        return "\n".join(f"{d.get('exc_type', '')}: {d.get('exc_value', '')}" for d in details)


class AirflowApi:
    """Requests to one API server; safe to create before the server runs. Not thread-safe.

    Args:
        base_url: such as http://127.0.0.1:8080.
    """

    def __init__(self, base_url: str) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=60, trust_env=False)
        self._token: str | None = None

    def close(self) -> None:
        """Close the connections, which would hold a stopping server back."""
        self._http.close()

    # ---- DAGs and runs

    def health(self) -> dict[str, dict[str, str | None]] | None:
        """Return the health of the components, or None while the API server does not answer."""
        try:
            response = self._http.get("/api/v2/monitor/health", timeout=5)
        except httpx.TransportError:
            return None
        if response.status_code != httpx.codes.OK:
            return None
        health: dict[str, dict[str, str | None]] = response.json()
        return health

    def dag_exists(self, dag_id: str) -> bool:
        """Whether the DAG processor has stored this DAG."""
        return self._send("GET", f"/dags/{dag_id}", accept=(404,)).status_code == httpx.codes.OK

    def import_errors(self) -> dict[str, str]:
        """Return the traceback of each DAG file that could not be imported."""
        errors = self._json("GET", "/importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    def set_variable(self, key: str, value: str) -> None:
        """Create an Airflow Variable."""
        self._send("POST", "/variables", json={"key": key, "value": value}, accept=(409,))

    def add_connection(self, conn_id: str, conn_type: str, **fields: Any) -> None:
        """Create a connection; `fields` are `host`, `login`, `extra` (a mapping) and so on."""
        self._send("POST", "/connections", json=_connection(conn_id, conn_type, fields), accept=(409,))

    def check_connection(self, conn_id: str, conn_type: str, **fields: Any) -> tuple[bool, str]:
        """Do as the button that tests a connection; return whether it works, and what the UI then shows."""
        body = _connection(conn_id, conn_type, fields)
        answer = self._send("POST", "/connections/test", json=body).json()
        return answer["status"], answer["message"]

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> str:
        """Start a run and return its id."""
        # Our own id makes a repeated request harmless.
        run_id = run_id or f"manual__{uuid.uuid4().hex[:12]}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        self._send("POST", f"/dags/{dag_id}/dagRuns", json=body, accept=(409,))
        return run_id

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """Return a run's state and times."""
        run = self._json("GET", f"/dags/{dag_id}/dagRuns/{run_id}")
        return DagRun(run_id, run["state"], _time(run["start_date"]), _time(run["end_date"]))

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a run as `success` or `failed`, as the button in the UI does."""
        self._send("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout: float) -> DagRun:
        """Wait until a run has ended; TimeoutError with the tasks' states after `timeout` seconds."""

        def describe() -> str:
            states = {task.task_id: task.state for task in self.tasks(dag_id, run_id)}
            return f"run {run_id} of {dag_id} to end; tasks: {states}"

        return poll(lambda: self.run(dag_id, run_id), lambda run: run.ended, timeout=timeout, what=describe)

    # ---- task instances

    def tasks(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """Return all task instances of a run."""
        found = self._json("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return [_task_instance(task) for task in found]

    def task(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> TaskInstance:
        """Return one task instance."""
        return _task_instance(self._json("GET", _task_path(dag_id, run_id, task_id, map_index)))

    def task_text(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return all that the API tells of a task instance: its rendered fields and its trigger's arguments too."""
        return self._send("GET", _task_path(dag_id, run_id, task_id, -1)).text

    def find_task(
        self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1
    ) -> TaskInstance | None:
        """Return one task instance, or None where the scheduler has not made those of the run yet."""
        response = self._send("GET", _task_path(dag_id, run_id, task_id, map_index), accept=(404,))
        return None if response.status_code == httpx.codes.NOT_FOUND else _task_instance(response.json())

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, states: Sequence[str], *, timeout: float
    ) -> TaskInstance:
        """Wait until a task is in one of these states; TimeoutError with its state after `timeout` seconds.

        An end in another state raises at once: the awaited state will not come.
        """
        last: TaskInstance | None = None

        def reached() -> TaskInstance | None:
            nonlocal last
            last = self.find_task(dag_id, run_id, task_id)
            if last and last.ended and last.state not in states:
                raise RuntimeError(f"{task_id} ended as {last.state}, not {' or '.join(states)}")
            return last if last and last.state in states else None

        def describe() -> str:
            return f"{task_id} to be {' or '.join(states)}; it is {last.state if last else 'not there'}"

        task = poll(reached, timeout=timeout, what=describe)
        assert task is not None  # noqa: S101 - poll returns what is true
        return task

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task as `success`, `failed` or `skipped`, as the buttons in the UI do."""
        self._send("PATCH", _task_path(dag_id, run_id, task_id, -1), json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_ids: Sequence[str], *, downstream: bool = False) -> None:
        """Clear tasks of a run, running ones too, so that they run again."""
        body = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "include_downstream": downstream,
        }
        self._send("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return an XCom's value, or None when there is no such XCom."""
        path = f"{_task_path(dag_id, run_id, task_id, -1)}/xcomEntries/{key}"
        response = self._send(
            "GET", path, params={"deserialize": "false", "stringify": "false"}, accept=(404,)
        )
        return None if response.status_code == httpx.codes.NOT_FOUND else response.json()["value"]

    # ---- logs

    def log(
        self, dag_id: str, run_id: str, task_id: str, *, attempt: int | None = None, map_index: int = -1
    ) -> list[LogRecord]:
        """Return the log of a try (by default the latest), live too, without Airflow's remark on its sources."""
        if attempt is None:
            task = self.find_task(dag_id, run_id, task_id, map_index=map_index)
            if task is None:
                return []
            attempt = task.try_number
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        response = self._send(
            "GET",
            path,
            params={"full_content": "true", "map_index": str(map_index)},
            # One record a line: the JSON form builds a huge document in the API server's memory.
            headers={"accept": "application/x-ndjson"},
            accept=(404,),
        )
        if response.status_code == httpx.codes.NOT_FOUND:
            return []  # the task has not started yet
        records = [_log_record(json.loads(line)) for line in response.iter_lines() if line]
        return list(_without_source_group(records))

    def log_text(
        self, dag_id: str, run_id: str, task_id: str, *, attempt: int | None = None, map_index: int = -1
    ) -> str:
        """Return the log of a try as text: the events, each followed by its exceptions if it has some."""
        records = self.log(dag_id, run_id, task_id, attempt=attempt, map_index=map_index)
        return "\n".join(f"{r.event}\n{r.error}" if r.error else r.event for r in records)

    # ---- requests

    def _json(self, method: str, path: str) -> Any:
        return self._send(method, path).json()

    def _send(
        self,
        method: str,
        path: str,
        *,
        accept: tuple[int, ...] = (),
        headers: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> httpx.Response:
        """Send a request; an answer that is neither a success nor one of `accept` is an ApiError."""
        deadline = time.monotonic() + _RETRY_FOR
        while True:
            try:
                if self._token is None:
                    self._token = self._http.get("/auth/token").raise_for_status().json()["access_token"]
                bearer = {"Authorization": f"Bearer {self._token}", **(headers or {})}
                response = self._http.request(method, f"/api/v2{path}", headers=bearer, **arguments)
            except (httpx.TransportError, httpx.HTTPStatusError):
                if time.monotonic() > deadline:
                    raise
            else:
                if response.is_success or response.status_code in accept:
                    return response
                if not response.is_server_error or time.monotonic() > deadline:
                    raise ApiError(response)
            time.sleep(_RETRY_EVERY)


def _task_path(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
    return path if map_index < 0 else f"{path}/{map_index}"


def _connection(conn_id: str, conn_type: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    extra = json.dumps(fields.get("extra", {}))
    return {"connection_id": conn_id, "conn_type": conn_type, **fields, "extra": extra}


def _task_instance(task: Mapping[str, Any]) -> TaskInstance:
    return TaskInstance(
        id=task["id"],
        task_id=task["task_id"],
        map_index=task["map_index"],
        state=task["state"],
        try_number=task["try_number"],
        start=_time(task["start_date"]),
        end=_time(task["end_date"]),
        operator=task["operator"],
    )


def _log_record(record: dict[str, Any]) -> LogRecord:
    event, timestamp, level = record.pop("event"), record.pop("timestamp", None), record.pop("level", None)
    return LogRecord(event=event, timestamp=_time(timestamp), level=level, fields=record)


def _without_source_group(records: list[LogRecord]) -> Iterator[LogRecord]:
    """Leave out the group with which Airflow says where it read the log."""
    inside = False
    for record in records:
        if record.timestamp is None and record.event.startswith("::group::"):
            inside = True
        if not inside:
            yield record
        if record.timestamp is None and record.event.startswith("::endgroup::"):
            inside = False


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
