"""What a skylet's job table says of a job, and what our own driver program added to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.client.base import AgentFailed, JobState, JobStatus
from airflow_provider.runtime.wire import jobs_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA = "managed_jobs"
"""Where our part of a job's metadata is."""

JANITOR = "janitor_of"
"""Holds, in our part of the metadata of a janitor, the id of the job that it cleans up after."""

_PREFIX = "JOB_STATUS_"
_OUTCOMES = frozenset({"SUCCEEDED", "FAILED", "FAILED_SETUP"})


@dataclass(frozen=True)
class End:
    """The driver program's last word, written when nothing of the job is left. Times in seconds, sizes in bytes.

    ``log_size`` None: unknown; ``status`` empty: as the table says.
    """

    status: str = ""
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    output: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    log_size: int | None = None


class Observation(NamedTuple):
    """What a follower wants to know of a job.

    ``began``: there may be a log; ``log_size``: of the whole log, None while it grows or when nobody knows; ``live``:
    the skylet does not say that it has ended.
    """

    state: JobState
    began: bool
    log_size: int | None
    live: bool


@dataclass(frozen=True)
class Row:
    """One job of the table.

    Attributes:
        key: Of the submit; None: the job is not ours.
        generation: Of the owner that submitted it.
        began: Whether a process was started for it.
        fields: All that is ours in its metadata.
        end: None until the driver program has had its last word, and for ever when the job is not ours.
    """

    job_id: int
    name: str
    status: JobStatus
    submitted_at: float
    started_at: float
    ended_at: float
    began: bool
    key: str | None
    generation: int
    grace_seconds: float
    instance: str
    fields: Mapping[str, object]
    end: End | None

    @property
    def settled(self) -> bool:
        """Whether nothing of the job is left, as far as anybody has said."""
        return self.status.terminal and (self.key is None or self.end is not None or not self.began)

    def state(self, exit_codes: tuple[int, ...], *, ending: bool) -> JobState:
        """Return the state for a client.

        Args:
            exit_codes: What the skylet stored.
            ending: The job has ended for the skylet, but its processes may not have.
        """
        end = self.end or End()
        return JobState(
            job_id=self.job_id,
            name=self.name,
            status=JobStatus.CANCELLING if ending else self.status,
            exit_codes=end.exit_codes or exit_codes,
            reason=end.reason,
            output=end.output,
            submitted_at=self.submitted_at,
            started_at=end.started_at or self.started_at,
            ended_at=0.0 if ending else end.ended_at or self.ended_at,
            log_size=end.log_size or 0,
        )


def status(value: pb.JobStatus) -> JobStatus:
    """Return our name of a skylet's status.

    Raises:
        AgentFailed: it is of a later SkyPilot and means nothing here.
    """
    try:
        return JobStatus(pb.JobStatus.Name(value).removeprefix(_PREFIX))
    except ValueError:
        raise AgentFailed(
            f"the cluster's agent tells a job status that this version does not know (number {int(value)}). "
            "Upgrade the provider"
        ) from None


def row(info: pb.JobInfo) -> Row:
    """Return a job of the table; metadata that is not as we write it makes the job not ours."""
    ours = _fields(info.metadata)
    key = ours.get("key")
    generation, grace, instance = ours.get("generation"), ours.get("grace_seconds"), ours.get("instance")
    end, found = _end(ours.get("end")), status(info.status)
    if found is JobStatus.FAILED_DRIVER and end is not None and end.status in _OUTCOMES:
        # The skylet missed the driver for a moment, which has told the truth by now.
        found = JobStatus(end.status)
    return Row(
        job_id=info.job_id,
        name=info.job_name,
        status=found,
        submitted_at=info.submitted_at,
        started_at=max(0.0, info.start_at),
        ended_at=max(0.0, info.end_at),
        began=info.pid != 0,
        key=key if isinstance(key, str) else None,
        generation=generation if isinstance(generation, int) else 0,
        grace_seconds=float(grace) if isinstance(grace, (int, float)) else 0.0,
        instance=instance if isinstance(instance, str) else "",
        fields=ours,
        end=end,
    )


def _fields(text: str) -> Mapping[str, object]:
    try:
        metadata = json.loads(text or "{}")
    except ValueError:
        return {}
    found = metadata.get(METADATA) if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _end(value: object) -> End | None:
    if not isinstance(value, dict):
        return None
    codes, output, size = value.get("exit_codes"), value.get("output"), value.get("log_size")
    return End(
        status=str(value.get("status") or ""),
        reason=str(value.get("reason") or ""),
        exit_codes=tuple(int(code) for code in codes) if isinstance(codes, list) else (),
        output=output if isinstance(output, str) else None,
        started_at=float(value.get("started_at") or 0.0),
        ended_at=float(value.get("ended_at") or 0.0),
        log_size=size if isinstance(size, int) else None,
    )
