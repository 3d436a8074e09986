"""The client of the serve service."""

from __future__ import annotations

import base64
import pickle
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.client import AgentFailed, LinkLost
from airflow_provider.runtime.client.serve import REGISTRATION_SECONDS, ServeClient, UpdateMode
from airflow_provider.runtime.transport.tcp import TcpChannel
from airflow_provider.runtime.wire import rpcs
from airflow_provider.runtime.wire import serve_pb2 as pb
from tests.unit.client.scripted_skylet import ScriptedSkylet


@pytest.fixture
async def server() -> AsyncIterator[ScriptedSkylet]:
    async with ScriptedSkylet() as server:
        yield server


@pytest.fixture
async def client(server: ScriptedSkylet) -> AsyncIterator[ServeClient]:
    client = ServeClient(TcpChannel(server.port))
    yield client
    await client.close()


def told(**values: object) -> pb.GetServiceStatusResponse:
    encoded = {name: base64.b64encode(pickle.dumps(value)).decode() for name, value in values.items()}
    return pb.GetServiceStatusResponse(statuses=[pb.ServiceStatus(status=encoded)])


async def test_statuses_are_plain_values(server: ScriptedSkylet, client: ServeClient) -> None:
    values = {
        "name": "s",
        "uptime": 1.5,
        "active_versions": [1, 2],
        "replica_info": [{"replica_id": 1, "is_spot": True}],
    }
    asked: list[pb.GetServiceStatusRequest] = []

    async def answer(request: pb.GetServiceStatusRequest, context: object) -> pb.GetServiceStatusResponse:
        asked.append(request)
        return told(**values)

    server.on(rpcs.GET_SERVICE_STATUS, answer)  # type: ignore[arg-type]
    assert await client.statuses() == [values]
    assert await client.statuses(["a", "b"], pool=True) == [values]
    assert not asked[0].HasField("service_names"), "all services"
    assert (list(asked[1].service_names.names), asked[1].pool) == (["a", "b"], True)
    await client.statuses([])
    assert asked[2].HasField("service_names"), "no service"


@pytest.mark.parametrize("text", ["not base64!", base64.b64encode(b"garbage").decode()])
async def test_a_value_that_cannot_be_read_is_told_by_name(
    server: ScriptedSkylet, client: ServeClient, text: str
) -> None:
    broken = pb.GetServiceStatusResponse(statuses=[pb.ServiceStatus(status={"uptime": text})])
    server.always(rpcs.GET_SERVICE_STATUS, broken)
    with pytest.raises(AgentFailed, match="the field uptime cannot be read"):
        await client.statuses()


async def test_every_change_arrives_as_it_was_meant(server: ScriptedSkylet, client: ServeClient) -> None:
    seen: list[object] = []

    def note(answer: object) -> object:
        async def noting(request: object, context: grpc.aio.ServicerContext) -> object:
            seen.append(request)
            return answer

        return noting

    server.on(rpcs.ADD_VERSION, note(pb.AddVersionResponse(version=3)))  # type: ignore[arg-type]
    server.on(rpcs.UPDATE_SERVICE, note(pb.UpdateServiceResponse()))  # type: ignore[arg-type]
    server.on(rpcs.TERMINATE_SERVICES, note(pb.TerminateServicesResponse(message="gone")))  # type: ignore[arg-type]
    server.on(rpcs.TERMINATE_REPLICA, note(pb.TerminateReplicaResponse(message="one gone")))  # type: ignore[arg-type]
    server.on(rpcs.WAIT_SERVICE_REGISTRATION, note(pb.WaitServiceRegistrationResponse(lb_port=30001)))  # type: ignore[arg-type]
    assert await client.add_version("s") == 3
    await client.update("s", 3, mode=UpdateMode.BLUE_GREEN, pool=True)
    assert await client.terminate(None, purge=True) == "gone"
    assert await client.terminate(["s"]) == "gone"
    assert await client.terminate_replica("s", 7, purge=True) == "one gone"
    assert await client.wait_for_registration("s", 5) == 30001
    assert seen == [
        pb.AddVersionRequest(service_name="s"),
        pb.UpdateServiceRequest(service_name="s", version=3, mode="blue_green", pool=True),
        pb.TerminateServicesRequest(purge=True),
        pb.TerminateServicesRequest(service_names=pb.ServiceNames(names=["s"])),
        pb.TerminateReplicaRequest(service_name="s", replica_id=7, purge=True),
        pb.WaitServiceRegistrationRequest(service_name="s", job_id=5),
    ]


async def test_i1_44_waiting_for_a_registration_outlasts_the_server_and_a_change_is_made_once(
    server: ScriptedSkylet, client: ServeClient
) -> None:
    left: list[float | None] = []

    async def note(request: object, context: grpc.aio.ServicerContext) -> pb.WaitServiceRegistrationResponse:
        left.append(context.time_remaining())
        await context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")

    server.on(rpcs.WAIT_SERVICE_REGISTRATION, note)
    with pytest.raises(LinkLost):
        await client.wait_for_registration("s", 5)
    assert left[0] is not None
    assert 360 < left[0] <= REGISTRATION_SECONDS
    assert server.calls["WaitServiceRegistration"] == 1
