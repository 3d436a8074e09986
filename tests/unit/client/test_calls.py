"""A status that gRPC lost."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from airflow_provider.runtime.client.base import AgentFailed, LinkLost
from airflow_provider.runtime.client.calls import LOST_STATUS, translated


def broken(details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def test_a_status_that_was_lost_during_a_write_says_nothing_about_the_agent() -> None:
    with pytest.raises(LinkLost), translated("follow"):
        raise broken(LOST_STATUS)


def test_an_internal_error_that_the_agent_names_is_its_own() -> None:
    with pytest.raises(AgentFailed), translated("follow"):
        raise broken("follow: KeyError: 1")
