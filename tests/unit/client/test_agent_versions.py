"""Agents that are older or newer than this side (K52)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from airflow_provider.runtime.client import Owner, RequestRefused
from airflow_provider.runtime.client.agent import AgentClient
from airflow_provider.runtime.transport.channel import UnixChannel
from airflow_provider.runtime.wire import agent_pb2 as pb
from airflow_provider.runtime.wire import rpcs


class OtherAgent:
    """An agent of another version: knows the handshake and Status, and answers them as the test wants."""

    protocol_version = rpcs.PROTOCOL_VERSION
    status_number = 3

    async def handshake(self, request: pb.HandshakeRequest, context: object) -> pb.HandshakeResponse:
        return pb.HandshakeResponse(
            protocol_version=self.protocol_version, agent_version="9.9", instance="other"
        )

    async def status(self, request: pb.StatusRequest, context: object) -> pb.JobState:
        state = pb.JobState(job_id=request.job_id)
        state.MergeFromString(
            bytes([2 << 3, self.status_number])
        )  # field 2, a number that the stubs may not know
        return state


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[OtherAgent]:
    agent = OtherAgent()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((rpcs.handlers((rpcs.HANDSHAKE, rpcs.STATUS), agent),))
    server.add_insecure_port(f"unix:{tmp_path}/agent.sock")
    await server.start()
    yield agent
    await server.stop(None)


@pytest.fixture
async def client(agent: OtherAgent, tmp_path: Path) -> AsyncIterator[AgentClient]:
    client = AgentClient(UnixChannel(tmp_path, "agent.sock"))
    yield client
    await client.close()


async def test_k52_an_agent_of_another_protocol_is_refused_with_both_versions(
    agent: OtherAgent, client: AgentClient
) -> None:
    agent.protocol_version = 2
    with pytest.raises(RequestRefused, match=r"agent \(9\.9\) speaks protocol 2, this side 1"):
        await client.handshake()


async def test_k52_a_status_of_a_newer_agent_is_not_guessed_at(
    agent: OtherAgent, client: AgentClient
) -> None:
    agent.status_number = 42
    with pytest.raises(RequestRefused, match="job status 42, which this version does not know"):
        await client.status(1)


@pytest.mark.usefixtures("agent")
async def test_k52_what_an_older_agent_does_not_know_is_refused_and_the_rest_works(
    client: AgentClient,
) -> None:
    with pytest.raises(RequestRefused, match="UNIMPLEMENTED"):
        await client.hold("me", 10)
    with pytest.raises(RequestRefused, match="UNIMPLEMENTED"):
        async for _ in await client.follow(1, Owner("o", 1), offset=0):
            pass
    assert await client.handshake() == "other"
    assert (await client.status(7)).status.value == "SETTING_UP"
