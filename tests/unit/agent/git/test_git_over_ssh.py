"""A Git repository that is reached over ssh: keys, and whether the server is the right one. A real sshd."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.agent.jobs.jobdir import GitOrder
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.unit.agent.conftest import DriverRun, StartJob
from tests.unit.agent.git.servers import Repository

Clone = Callable[..., DriverRun]


@pytest.fixture
def clone(start_job: StartJob, hosts: Callable[[int], list[Host]]) -> Clone:
    """Run a job on a repository of a host, with these variables."""
    (host,) = hosts(1)
    place = host.home / "repo"
    if not place.exists():
        Repository(place).commit({"a": "1"})
        owner = host.home.stat()
        for path in (place, *place.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)

    def clone(**variables: str) -> DriverRun:
        url = f"ssh://{host.user}@{host.address}/home/{host.user}/repo/.git"
        # Not the keys and the agent of whoever runs the tests.
        alone = {"SSH_AUTH_SOCK": "", "GIT_SSH_KEY": "", **variables}
        return start_job("cat a", git=GitOrder(url), variables=alone).wait()

    return clone


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_a_key_opens_it_and_the_servers_key_is_remembered_for_the_job(
    clone: Clone, hosts: Callable[[int], list[Host]], client_keys: ClientKeys, kind: str
) -> None:
    key: Path = getattr(client_keys, kind).path
    job = clone(GIT_SSH_KEY=key.read_text())
    assert (job.report.status, job.log.splitlines()[-1]) == ("SUCCEEDED", "1"), job.log
    known = (job.directory.path / "git.known_hosts").read_text()
    assert known.split()[2] in hosts(1)[0].known_hosts
    assert not job.directory.git_key_file.exists()


def test_a_pinned_server_is_the_only_one_that_will_do(
    clone: Clone, hosts: Callable[[int], list[Host]], client_keys: ClientKeys
) -> None:
    key = client_keys.ed25519.path.read_text()
    assert clone(GIT_SSH_KEY=key, GIT_SSH_KNOWN_HOSTS=hosts(1)[0].known_hosts).report.status == "SUCCEEDED"
    other = f"{hosts(1)[0].address} {client_keys.stranger.public}"
    job = clone(GIT_SSH_KEY=key, GIT_SSH_KNOWN_HOSTS=other)
    assert job.report.status == "FAILED_SETUP"
    assert "the server's key is not the one that is known for it" in job.report.reason


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("stranger", "give the secret GIT_SSH_KEY (a private key that may read it)"),
        ("encrypted", "has a passphrase: give one that has none"),
        ("none", "GIT_SSH_KEY is not the text of a private key"),
    ],
)
def test_a_key_that_does_not_open_it_is_told_and_not_shown(
    clone: Clone, client_keys: ClientKeys, kind: str, remedy: str
) -> None:
    key = "no key at all" if kind == "none" else getattr(client_keys, kind).path.read_text()
    job = clone(GIT_SSH_KEY=key)
    assert job.report.status == "FAILED_SETUP"
    assert remedy in job.report.reason, job.report.reason + job.log
    assert "trying again" not in job.log
    assert key.splitlines()[len(key.splitlines()) // 2] not in job.log
