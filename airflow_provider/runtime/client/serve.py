"""The client of SkyPilot's serve service: services and pools on the cluster of their controller."""

from __future__ import annotations

import base64
import binascii
from enum import Enum
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.base import AgentFailed
from airflow_provider.runtime.client.calls import Transport, ask, ask_once
from airflow_provider.runtime.client.inert_pickle import InertPickleError, Plain, loads
from airflow_provider.runtime.wire import rpcs
from airflow_provider.runtime.wire import serve_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATUS_SECONDS = 30.0
"""The server asks each service's controller, which it gives ten seconds and more than one try."""
_CHANGE_SECONDS = 60.0
REGISTRATION_SECONDS = 370.0
"""A server waits 300 s for the controller and 60 s for its port, and we for its answer."""


class UpdateMode(str, Enum):
    """How replicas give way to those of a new version."""

    ROLLING = "rolling"
    BLUE_GREEN = "blue_green"


class ServeClient:
    """All of ``serve.v1`` over one channel. Owns the channel.

    Every call has a deadline and raises ClientError. Only ``statuses`` is made again when the link breaks: whether
    another call was carried out, the caller finds out by ``statuses``.
    """

    def __init__(self, channel: Transport) -> None:
        self._transport = channel
        self._channel = channel.channel

    async def statuses(
        self, names: Sequence[str] | None = None, *, pool: bool = False
    ) -> list[dict[str, Plain]]:
        """Return the status of each service (or pool), by SkyPilot's names of its fields.

        Values that are no plain data (enumerations, handles) come as inert records of what they are made of; nothing
        that a cluster sends is run.

        Args:
            names: Which; None: all of the kind.
            pool: Pools, not services.

        Raises:
            AgentFailed: a value cannot be read.
        """
        request = pb.GetServiceStatusRequest(service_names=_names(names), pool=pool)
        answer = await ask(self._channel, rpcs.GET_SERVICE_STATUS, request, seconds=_STATUS_SECONDS)
        return [
            {name: _value(name, text) for name, text in status.status.items()} for status in answer.statuses
        ]

    async def add_version(self, service: str) -> int:
        """Return a new version number for the service."""
        answer = await ask_once(self._channel, rpcs.ADD_VERSION, pb.AddVersionRequest(service_name=service))
        return answer.version

    async def update(self, service: str, version: int, *, mode: UpdateMode, pool: bool = False) -> None:
        """Make the controller move to ``version``."""
        await ask_once(
            self._channel,
            rpcs.UPDATE_SERVICE,
            pb.UpdateServiceRequest(service_name=service, version=version, mode=mode.value, pool=pool),
            seconds=_CHANGE_SECONDS,
        )

    async def terminate(self, names: Sequence[str] | None, *, purge: bool = False, pool: bool = False) -> str:
        """End services (or pools), None: all of the kind; return what the server says to people.

        Args:
            names: Which.
            purge: Also forget those whose cleanup failed.
            pool: Pools, not services.
        """
        answer = await ask_once(
            self._channel,
            rpcs.TERMINATE_SERVICES,
            pb.TerminateServicesRequest(service_names=_names(names), purge=purge, pool=pool),
            seconds=_CHANGE_SECONDS,
        )
        return answer.message

    async def terminate_replica(self, service: str, replica: int, *, purge: bool = False) -> str:
        """End one replica; return what the server says to people."""
        answer = await ask_once(
            self._channel,
            rpcs.TERMINATE_REPLICA,
            pb.TerminateReplicaRequest(service_name=service, replica_id=replica, purge=purge),
            seconds=_CHANGE_SECONDS,
        )
        return answer.message

    async def wait_for_registration(
        self, service: str, job_id: int, *, pool: bool = False, seconds: float = REGISTRATION_SECONDS
    ) -> int:
        """Wait until the controller with this job id has registered the service; return its load balancer's port."""
        answer = await ask_once(
            self._channel,
            rpcs.WAIT_SERVICE_REGISTRATION,
            pb.WaitServiceRegistrationRequest(service_name=service, job_id=job_id, pool=pool),
            seconds=seconds,
        )
        return answer.lb_port

    async def close(self) -> None:
        """Close the channel. Idempotent."""
        await self._transport.close()


def _names(names: Sequence[str] | None) -> pb.ServiceNames | None:
    return None if names is None else pb.ServiceNames(names=names)


def _value(name: str, text: str) -> Plain:
    try:
        return loads(base64.b64decode(text, validate=True))
    except (binascii.Error, InertPickleError) as error:
        raise AgentFailed(f"GetServiceStatus: the field {name} cannot be read: {error}") from error
