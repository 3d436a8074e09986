"""Talking to a cluster: one interface, whatever agent is at the other end."""

from airflow_provider.runtime.client.base import (
    AgentFailed,
    ClientError,
    ClusterClient,
    FileTree,
    FollowStream,
    Heartbeat,
    JobRequest,
    JobState,
    JobStatus,
    LinkLost,
    LogBytes,
    NoSuchJob,
    Owner,
    RequestRefused,
)

__all__ = [
    "AgentFailed",
    "ClientError",
    "ClusterClient",
    "FileTree",
    "FollowStream",
    "Heartbeat",
    "JobRequest",
    "JobState",
    "JobStatus",
    "LinkLost",
    "LogBytes",
    "NoSuchJob",
    "Owner",
    "RequestRefused",
]
