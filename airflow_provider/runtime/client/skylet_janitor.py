"""Sending the program that cleans up after a cancelled job."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.calls import ask_once
from airflow_provider.runtime.client.skylet_program import janitor_program
from airflow_provider.runtime.client.skylet_rows import JANITOR, METADATA
from airflow_provider.runtime.wire import jobs_pb2 as pb
from airflow_provider.runtime.wire import rpcs

if TYPE_CHECKING:
    import grpc.aio

    from airflow_provider.runtime.client.skylet_rows import Row

JANITORS = "airflow-managed-jobs-janitor"
"""Whose the janitors are in the skylet's table."""


async def send_janitor(channel: grpc.aio.Channel, job: Row, *, log_directory: str) -> None:
    """Wipe the program of a cancelled job and start one that has the last word on the job, should nobody else.

    When this returns, the job's secrets are off the disk: the skylet writes the janitor's program over the job's. The
    last word comes when the janitor's turn comes in the queue.

    Args:
        channel: To the skylet.
        job: Was cancelled, so that its program is not started any more.
        log_directory: Of the job.

    Raises:
        ClientError: it may not have been done.
    """
    metadata = {JANITOR: job.job_id}
    answer = await ask_once(
        channel,
        rpcs.ADD_JOB,
        pb.AddJobRequest(
            job_name="janitor",
            username=JANITORS,
            run_timestamp=f"sky-janitor-{uuid.uuid4().hex}",
            resources_str="1x[-]",
            metadata=json.dumps({METADATA: metadata}),
        ),
    )
    await ask_once(
        channel,
        rpcs.QUEUE_JOB,
        pb.QueueJobRequest(
            job_id=answer.job_id,
            codegen=janitor_program(
                job=job,
                log=f"{log_directory}/run.log",
                janitor_id=answer.job_id,
                janitor_metadata=metadata,
            ),
            script_path=script_path(job.job_id),
            remote_log_dir=f"{log_directory}/janitor",
        ),
    )


def script_path(job_id: int) -> str:
    """Return where the skylet keeps the program of a job until it has begun."""
    return f"~/.sky/sky_app/managed_job_{job_id}"
