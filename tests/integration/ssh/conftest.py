"""Pools of real SSH hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.integration.ssh.bench import Bench, assert_nothing_left


@pytest.fixture
def bench(client_keys: ClientKeys) -> Bench:
    return Bench(client_keys)


@pytest.fixture
def clean_hosts(hosts: Callable[[int], list[Host]]) -> Iterator[Callable[[int], list[Host]]]:
    """Shared hosts, and afterwards a look that the test has left nothing on them."""
    used: list[Host] = []

    def give(count: int) -> list[Host]:
        used[:] = hosts(count)
        return used

    yield give
    for host in used:
        assert_nothing_left(host)
