"""Repositories and addresses of nodes in a job: what is refused, and what the job's driver is told."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.agent.jobs.jobdir import GitOrder
from airflow_provider.runtime.client import RequestRefused
from airflow_provider.runtime.client.base import GitSource
from tests.integration.clusters import Cluster


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (GitSource(""), "url is empty"),
        (GitSource("--upload-pack=touch /tmp/x"), "url begins with '-'"),
        (GitSource("https://example.com/a\nb"), "url holds control"),
        (GitSource("https://example.com/a\0"), "url holds control"),
        (GitSource("https://example.com/a", "--output=/tmp/x"), "ref begins with '-'"),
        (GitSource("https://example.com/a", "main\x1b[2J"), "ref holds control"),
    ],
)
async def test_what_git_could_misunderstand_is_refused(
    cluster: Cluster, source: GitSource, field: str
) -> None:
    with pytest.raises(RequestRefused, match=f"job.git.{field}"):
        await cluster.submit("true", git=source)


@pytest.mark.parametrize("address", ["", "10.0.0.1\n10.0.0.2", "10.0.0.1 10.0.0.2"])
async def test_what_is_no_address_of_a_node_is_refused(cluster: Cluster, address: str) -> None:
    with pytest.raises(RequestRefused, match=r"job\.node_ips"):
        await cluster.submit("true", node_ips=("10.0.0.1", address))


async def test_the_driver_is_told_of_the_repository(cluster: Cluster) -> None:
    job_id = await cluster.submit("true", git=GitSource("https://127.0.0.1:9/none.git", "v1"))
    order = cluster.job_directory(job_id).order()
    await cluster.follow_to_end(job_id)
    assert order.git == GitOrder("https://127.0.0.1:9/none.git", "v1")


async def test_a_job_without_one_has_none_and_knows_its_addresses(cluster: Cluster) -> None:
    job_id = await cluster.submit('printf "%s" "$SKYPILOT_NODE_IPS"', node_ips=("192.0.2.7",))
    assert cluster.job_directory(job_id).order().git is None
    assert (await cluster.follow_to_end(job_id)).text == "192.0.2.7"
