"""The fixtures of the test bench, for its own tests."""

from tests.hosts.fixtures import client_keys, host, hosts, lab, make_host

__all__ = ["client_keys", "host", "hosts", "lab", "make_host"]
