"""Fixtures that give real SSH hosts to tests; skipped, with the reason, where there cannot be any."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.lab import Lab
from tests.hosts.machine import unavailable
from tests.hosts.settings import HostSettings


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The lab of this test run."""
    if reason := unavailable():
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(f"In CI these tests may not be left out: {reason}", pytrace=False)
        pytest.skip(reason)
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="session")
def client_keys(lab: Lab) -> ClientKeys:
    """The keys that open the hosts."""
    return lab.keys


@pytest.fixture(scope="session")
def hosts(lab: Lab) -> Callable[[int], list[Host]]:
    """Gives so many hosts, all on; they are shared by all tests, which leave them as they find them."""
    shared: list[Host] = []

    def give(count: int) -> list[Host]:
        shared.extend(lab.start(max(count - len(shared), 0)))
        for host in shared[:count]:
            assert host.answers(seconds=10), f"an earlier test has broken {host}"
        return shared[:count]

    return give


@pytest.fixture
def make_host(lab: Lab) -> Iterator[Callable[[HostSettings], Host]]:
    """Makes hosts for one test, each as wished and on."""
    made: list[Host] = []

    def make(settings: HostSettings) -> Host:
        made.extend(lab.start(settings=settings))
        return made[-1]

    yield make
    for host in made:
        lab.remove(host)


@pytest.fixture
def host(make_host: Callable[[HostSettings], Host]) -> Host:
    """A plain host for one test, which may do anything to it."""
    return make_host(HostSettings())
