"""Finding out which agent is at the other end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio

from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.client.base import ClusterClient, RequestRefused
from airflow_provider.runtime.client.calls import CALL_SECONDS, ask, translated
from airflow_provider.runtime.client.skylet import SkyletClient
from airflow_provider.runtime.wire import agent_pb2, managed_jobs_pb2, rpcs

if TYPE_CHECKING:
    from airflow_provider.runtime.client.calls import Transport

OLDEST_SKYLET = 28
"""The first version that stores exit codes."""


async def client_for(channel: Transport, *, instance: str = "") -> ClusterClient:
    """Return a client for the agent that answers; it owns the channel from then on.

    Asked once, here: what later calls say of themselves is never taken for a sign of another agent.

    Args:
        channel: To the agent.
        instance: What the caller calls this very cluster; a skylet has no name of its own.

    Raises:
        ClientError: nobody answers, or RequestRefused: somebody we cannot talk to. The channel stays the caller's.
    """
    with translated("handshake"):
        try:
            await rpcs.HANDSHAKE.unary(channel.channel)(agent_pb2.HandshakeRequest(), timeout=CALL_SECONDS)
            return AgentClient(channel)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
    answer = await ask(channel.channel, rpcs.GET_VERSION, managed_jobs_pb2.GetVersionRequest())
    version = answer.controller_version
    if not (version.isdecimal() and int(version) >= OLDEST_SKYLET):
        raise RequestRefused(
            f"handshake: the cluster's skylet has version {version!r}, {OLDEST_SKYLET} or later is needed. "
            "Start the cluster again with a newer SkyPilot"
        )
    return SkyletClient(channel, instance=instance)
