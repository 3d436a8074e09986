"""Pools of real SSH hosts in a real Airflow: their connections, and what is to be seen on the hosts and in Airflow."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from typing import Any

from harness import AirflowInstance
from harness.waiting import poll
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.integration.ssh.bench import assert_nothing_left


def pool_of(keys: ClientKeys, *hosts: Host, **extra: object) -> dict[str, Any]:
    """Return what the extra field of a connection says that has these hosts, with pinned keys and a pasted one."""
    entries = [
        {"name": host.name, "address": host.address, "host_key": "\n".join(host.disk.host_keys)}
        for host in hosts
    ]
    return {
        "user": "worker",
        "private_key": keys.ed25519.path.read_text(),
        "hosts": entries,
        "connect_timeout": 5,
        "silence_limit": 3,
        **extra,
    }


def await_nothing_left(hosts: Iterable[Host], *, timeout: float) -> None:
    """Wait until the hosts are free and nothing of ours is on them; an AssertionError says what stays."""
    for host in hosts:
        try:
            poll(partial(_is_clean, host), timeout=timeout, what=f"{host.name} to be clean")
        except TimeoutError:
            assert_nothing_left(host)


def _is_clean(host: Host) -> bool:
    try:
        assert_nothing_left(host)
    except AssertionError:
        return False
    return True


def logins(host: Host) -> int:
    """Return how many times somebody has logged in to the host since it was made."""
    return host.sshd_log.count("Accepted publickey for worker ")


def fingerprint(host: Host) -> str:
    """Return the fingerprint of the host's key, as `ssh-keygen -l` shows it."""
    (key,) = host.disk.host_keys
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def databases(airflow: AirflowInstance) -> str:
    """Return all rows of Airflow's database and of the state store, as SQL."""
    texts = []
    for file in (airflow.home / "airflow.db", airflow.home / "managed_jobs" / "state.db"):
        with closing(sqlite3.connect(file)) as connection:
            texts += connection.iterdump()
    return "\n".join(texts)


def logs(airflow: AirflowInstance) -> str:
    """Return all that Airflow has logged, for tasks and for itself."""
    files = [*(airflow.home / "logs").rglob("*"), *airflow.logs.iterdir()]
    return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())
