"""What the methods of the agent's service share: checks of requests, and a job's state as it travels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.guard import BadRequest
from airflow_provider.runtime.wire import agent_pb2 as pb

if TYPE_CHECKING:
    from airflow_provider.runtime.agent.jobs.job import Job


def job_state(job: Job) -> pb.JobState:
    """Return a job's state as it travels."""
    row = job.row
    return pb.JobState(
        job_id=row.job_id,
        name=row.name,
        status=row.status,
        exit_codes=row.exit_codes,
        reason=row.reason,
        output=row.output,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        log_size=job.directory.log_size(),
    )


def check_owner(owner: pb.Owner) -> None:
    """Refuse an owner that says nothing.

    Raises:
        BadRequest: it has no id.
    """
    if not owner.id:
        raise BadRequest("owner.id is empty")
