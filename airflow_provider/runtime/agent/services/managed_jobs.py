"""managed_jobs.v1: what others see of the managed tasks whose jobs this agent runs or ran, and can do about them."""

from __future__ import annotations

import asyncio
import json
import math
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import grpc

from airflow_provider.runtime.agent.guard import BadRequest, answering, streaming
from airflow_provider.runtime.agent.managed.managed import Cancelled, Choice, ManagedJobs
from airflow_provider.runtime.agent.managed.query import SORT_KEYS, Filters, Found, Order, Page, find
from airflow_provider.runtime.agent.managed.rows import DEFAULT_WORKSPACE, TaskRow, parse_infra
from airflow_provider.runtime.agent.services.managed_logs import ManagedLogs
from airflow_provider.runtime.wire import managed_jobs_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from google.protobuf.message import Message

    from airflow_provider.runtime.agent.jobs.jobs import Jobs
    from airflow_provider.runtime.agent.lease import Lease

    Context = grpc.aio.ServicerContext[Message, Message]

CONTROLLER_VERSION = "42"
"""What SkyPilot 0.14.1 calls ``SKYLET_VERSION``; its clients go by it to know what the service can do."""

_STATUS_PREFIX = "MANAGED_JOB_STATUS_"
_STATUSES = frozenset(
    name.removeprefix(_STATUS_PREFIX)
    for name, number in pb.ManagedJobStatus.items()
    if number != pb.MANAGED_JOB_STATUS_UNSPECIFIED
)
_ALWAYS = frozenset({"job_id", "status"})
"""Fields that are filled whichever are asked for, as with SkyPilot: a row without them means nothing."""

_FILLED = frozenset(
    {
        *("_job_id", "job_id", "task_id", "job_name", "task_name", "job_duration", "workspace", "status"),
        *("schedule_state", "resources", "cluster_resources", "cluster_resources_full", "infra", "cloud"),
        *("region", "zone", "recovery_count", "failure_reason", "user_name", "user_hash", "submitted_at"),
        *("start_at", "end_at", "entrypoint", "metadata", "pool", "pool_hash", "is_primary_in_job_group"),
        "is_batch",
    }
)
_UNKNOWN = "-"


class ManagedJobsService:
    """One method per RPC of ``MANAGED_JOBS_RPCS`` in ``wire/rpcs.py``."""

    def __init__(self, managed: ManagedJobs, jobs: Jobs, lease: Lease) -> None:
        self._managed = managed
        self._lease = lease
        self._logs = ManagedLogs(managed, jobs, lease)

    @answering
    async def get_version(self, request: pb.GetVersionRequest, context: Context) -> pb.GetVersionResponse:
        """Say which version of SkyPilot's service this is like."""
        self._lease.renew()
        return pb.GetVersionResponse(controller_version=CONTROLLER_VERSION)

    @answering
    async def get_job_table(self, request: pb.GetJobTableRequest, context: Context) -> pb.GetJobTableResponse:
        """Return the managed tasks that are wanted, a row each, those of one job together.

        ``total`` and ``total_no_filter`` count jobs; pages count from 1, and without both ``page`` and ``limit`` there
        is but one. Unknown ``fields`` are those of a newer client: there is nothing to fill in.
        """
        self._lease.renew()
        filters, statuses, order, page = (
            _filters(request),
            _statuses(request),
            _order(request),
            _page(request),
        )
        tasks = await self._managed.tasks()
        now = time.time()

        def answer() -> pb.GetJobTableResponse:
            found = find(tasks, filters=filters, statuses=statuses, order=order, page=page, now=now)
            return _table(found, _hidden(request), now)

        # Thousands of rows take their time, and the event loop has other callers.
        return await asyncio.to_thread(answer)

    @answering
    async def get_all_job_ids_by_name(
        self, request: pb.GetAllJobIdsByNameRequest, context: Context
    ) -> pb.GetAllJobIdsByNameResponse:
        """Return the ids of the jobs of a name, or of all jobs, the newest first."""
        self._lease.renew()
        name = request.job_name if request.HasField("job_name") else None
        return pb.GetAllJobIdsByNameResponse(job_ids=await self._managed.ids(name))

    @answering
    async def cancel_jobs(self, request: pb.CancelJobsRequest, context: Context) -> pb.CancelJobsResponse:
        """Begin to end jobs, and say which. As with SkyPilot, a name that several live jobs have ends none."""
        self._lease.renew()
        criterion = request.WhichOneof("cancellation_criteria")
        workspace = request.current_workspace or DEFAULT_WORKSPACE
        cancelled = await self._managed.cancel(
            _choice(request),
            workspace=workspace,
            only_one=criterion == "job_name",
            # As with SkyPilot, which reads neither for a pool.
            limit=None if criterion == "pool_name" else _limit(request),
        )
        return pb.CancelJobsResponse(message=_told(cancelled, workspace))

    @streaming
    async def stream_logs(
        self, request: pb.StreamLogsRequest, context: Context
    ) -> AsyncIterator[pb.StreamLogsResponse]:
        """Stream the log of a job's tasks, one after the other; the last message has the exit code alone."""
        self._lease.renew()
        async for response in self._logs.stream(request):
            yield response


def _filters(request: pb.GetJobTableRequest) -> Filters:
    users: set[str | None] | None = None
    if request.HasField("user_hashes"):
        users = {*request.user_hashes.hashes, *([None] if request.show_jobs_without_user_hash else [])}
    try:
        infra = parse_infra(request.infra_match) if request.HasField("infra_match") else None
    except ValueError as error:
        raise BadRequest(f"infra_match: {error}") from error
    for field in ("submitted_after", "submitted_before"):
        if math.isnan(getattr(request, field)):
            raise BadRequest(f"{field} is no number")
    return Filters(
        skip_finished=request.skip_finished,
        workspaces=(
            frozenset(request.accessible_workspaces.workspaces)
            if request.HasField("accessible_workspaces")
            else None
        ),
        job_ids=frozenset(request.job_ids.ids) if request.HasField("job_ids") else None,
        workspace=request.workspace_match if request.HasField("workspace_match") else None,
        name=request.name_match if request.HasField("name_match") else None,
        pool=request.pool_match if request.HasField("pool_match") else None,
        infra=infra,
        users=None if users is None else frozenset(users),
        submitted_after=request.submitted_after if request.HasField("submitted_after") else None,
        submitted_before=request.submitted_before if request.HasField("submitted_before") else None,
    )


def _statuses(request: pb.GetJobTableRequest) -> frozenset[str] | None:
    if not request.HasField("statuses"):
        return None
    for status in request.statuses.statuses:
        if status not in _STATUSES:
            raise BadRequest(f"statuses has {status!r}: only {', '.join(sorted(_STATUSES))} are known")
    return frozenset(request.statuses.statuses)


def _order(request: pb.GetJobTableRequest) -> Order:
    if request.sort_by and request.sort_by not in SORT_KEYS:
        raise BadRequest(f"sort_by is {request.sort_by!r}: one of {', '.join(SORT_KEYS)} is needed")
    if request.sort_order not in ("", "asc", "desc"):
        raise BadRequest(f"sort_order is {request.sort_order!r}: asc or desc is needed")
    return Order(request.sort_by or None, ascending=request.sort_order == "asc")


def _page(request: pb.GetJobTableRequest) -> Page | None:
    for field, value in (("page", request.page), ("limit", request.limit)):
        if request.HasField(field) and value < 1:
            raise BadRequest(f"{field} is {value}: a number from 1 on is needed")
    if not (request.HasField("page") and request.HasField("limit")):
        return None
    return Page(request.page, request.limit)


def _hidden(request: pb.GetJobTableRequest) -> frozenset[str]:
    """Return the fields that are not to be filled."""
    if not request.fields.fields:
        return frozenset()
    return _FILLED - _ALWAYS - frozenset(request.fields.fields)


def _table(found: Found, hidden: frozenset[str], now: float) -> pb.GetJobTableResponse:
    answer = pb.GetJobTableResponse(
        total=found.total,
        total_no_filter=found.total_no_filter,
        status_counts=found.status_counts,
        infra_match_applied=True,
        infra_options=found.infra_options,
    )
    for task in found.tasks:
        row = _add(answer, task, found.states[task.job_id], now)
        for field in hidden:
            row.ClearField(field)
    return answer


def _add(answer: pb.GetJobTableResponse, task: TaskRow, state: str, now: float) -> pb.ManagedJobInfo:
    of_job, of_task = _details(task.job_details), _details(task.task_details)
    place = task.place
    # What a task asks for is what it has, once it has a node.
    obtained = task.resources if task.resources and task.cluster_job is not None else _UNKNOWN
    # Made in place: a row that is made apart would be copied.
    return answer.jobs.add(
        _job_id=task.key,
        job_id=task.job_id,
        task_id=task.task_id,
        job_name=task.job_name or task.task_name,
        task_name=task.task_name,
        job_duration=task.duration(now),
        workspace=task.workspace,
        status=f"{_STATUS_PREFIX}{task.status}",
        schedule_state=f"MANAGED_JOB_SCHEDULE_STATE_{state}",
        resources=task.resources,
        cluster_resources=obtained,
        cluster_resources_full=obtained,
        infra=task.infra or _UNKNOWN,
        cloud=place.cloud or _UNKNOWN,
        region=place.region or _UNKNOWN,
        zone=place.zone or _UNKNOWN,
        recovery_count=max(0, task.attempt - 1),
        failure_reason=task.reason if task.status.startswith("FAILED") else None,
        user_name=of_task.get("user_name") or None,
        user_hash=task.user_hash,
        submitted_at=task.submitted_at,
        start_at=task.started_at or None,
        end_at=task.ended_at or None,
        entrypoint=of_job.get("entrypoint"),
        metadata={
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in of_task["metadata"].items()
            if value is not None
        },
        pool=task.pool,
        pool_hash=of_job.get("pool_hash"),
        is_batch=of_job.get("batch"),
        is_primary_in_job_group=of_task.get("primary"),
    )


@lru_cache(maxsize=1024)
def _details(text: str) -> Mapping[str, Any]:
    """Return the details that `managed.py` stored; most tasks of a kind have the same."""
    details: dict[str, Any] = json.loads(text)
    return details


def _choice(request: pb.CancelJobsRequest) -> Choice:
    user = request.user_hash if request.HasField("user_hash") else None
    criterion = request.WhichOneof("cancellation_criteria")
    if criterion == "job_ids":
        return Choice(job_ids=frozenset(request.job_ids.ids))
    if criterion == "job_name":
        return Choice(name=request.job_name)
    if criterion == "pool_name":
        return Choice(pool=request.pool_name)
    if criterion is None:
        raise BadRequest("one of all_users, job_ids, job_name and pool_name is needed")
    if request.all_users:
        return Choice()
    if user is None:
        raise BadRequest("all_users is false and user_hash is not set: whose jobs?")
    return Choice(user_hash=user)


def _limit(request: pb.CancelJobsRequest) -> float | None:
    """Return the seconds that jobs have to end, None: each its own grace period."""
    if not (request.graceful and request.HasField("graceful_timeout")):
        return None
    if request.graceful_timeout < 0:
        raise BadRequest(f"graceful_timeout is {request.graceful_timeout}: seconds from 0 on are needed")
    return float(request.graceful_timeout)


def _told(cancelled: Cancelled, workspace: str) -> str:
    """Return the words on a cancel."""
    if cancelled.ambiguous:
        told = f"Several live jobs have this name, none is cancelled: {_listed(cancelled.ambiguous)}."
    elif cancelled.job_ids:
        told = f"Scheduled to be cancelled: {_listed(cancelled.job_ids)}."
    else:
        told = "No job to cancel."
    if cancelled.elsewhere:
        told += f" Skipped, as not in workspace {workspace!r}: {_listed(cancelled.elsewhere)}."
    return told


def _listed(job_ids: tuple[int, ...]) -> str:
    return f"job{'s' if len(job_ids) > 1 else ''} {', '.join(map(str, job_ids))}"
