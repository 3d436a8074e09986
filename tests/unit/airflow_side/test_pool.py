"""Pools of SSH hosts out of Airflow connections: everything that they may say, and words for what they may not (K99)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget
from tests.unit.airflow_side.pools import KEY, LOGIN, PINNED, connection, places, pool, problems, read


@pytest.mark.parametrize(
    "hosts",
    [
        ["a", "bob@b:2222", "fd00::7", "[fd00::8]:2222"],
        "a, bob@b:2222, fd00::7, [fd00::8]:2222",
        "a\nbob@b:2222\nfd00::7\n[fd00::8]:2222",
        "- a\n- bob@b:2222\n- fd00::7\n- '[fd00::8]:2222'",
        '["a", "bob@b:2222", "fd00::7", "[fd00::8]:2222"]',
        [
            {"address": "a"},
            {"host": "b", "user": "bob", "port": 2222},
            {"ip": "fd00::7"},
            {"ip": "fd00::8", "port": "2222"},
        ],
    ],
)
def test_hosts_can_be_written_in_many_ways(hosts: object) -> None:
    assert places(pool({**LOGIN, "hosts": hosts}).hosts) == [
        "a (ada@a:22)",
        "b:2222 (bob@b:2222)",
        "fd00::7 (ada@fd00::7:22)",
        "fd00::8:2222 (ada@fd00::8:2222)",
    ]


def test_a_host_is_described_for_choosing() -> None:
    text = """
- address: a
  name: big
  cpus: 64
  memory: 512GB
  accelerators: V100:4
  labels: {rack: 7, tier: hot}
  zone: north
  python: /opt/python3
  base: /scratch/jobs
- address: b
  memory: 0.5TB
  accelerators: {A100: 2}
"""
    big, other = pool({**LOGIN, "hosts": text, "python": "python3.12", "labels": {}}).hosts
    assert (big.name, big.cpus, big.memory, big.accelerators) == ("big", 64, 512, {"V100": 4})
    assert (big.labels, big.zone) == ({"rack": "7", "tier": "hot"}, "north")
    assert (big.python, big.base) == ("/opt/python3", "/scratch/jobs")
    assert (other.memory, other.accelerators, other.python) == (512, {"A100": 2}, "python3.12")


def test_what_the_pool_says_holds_for_all_hosts_that_say_nothing_else() -> None:
    extra = {
        **LOGIN,
        "private_key_passphrase": "TOPSECRET",
        "port": 2022,
        "connect_timeout": "4",
        "silence_limit": 5,
        "disabled_algorithms": {"kex": ["a", "b"], "pubkeys": ["a"]},
        "host_key_policy": "trust_first",
        "hosts": ["a", {"address": "b", "password": "TOPSECRET2", "host_key": PINNED, "port": 22}],
    }
    a, b = (host.target for host in pool(extra).hosts)
    assert a == SshTarget(
        name="a",
        host="a",
        user="ada",
        port=2022,
        identities=(Identity("connection gpus, private_key", KEY, None, "TOPSECRET"),),
        host_keys=HostKeys(trust_first=True),
        connect_timeout=4,
        silence_limit=5,
        disabled_algorithms=("a", "b"),
    )
    assert (b.port, b.identities, b.password) == (22, (), "TOPSECRET2"), (
        "one way to log in replaces the other"
    )
    assert b.host_keys == HostKeys(pinned=(PINNED,), trust_first=True)
    assert "TOPSECRET" not in repr((a, b))


def test_login_and_password_of_the_connection_are_the_user_and_password_of_its_hosts() -> None:
    (host,) = pool({"hosts": ["a"]}, login="bob", password="TOPSECRET").hosts
    assert (host.target.user, host.target.password) == ("bob", "TOPSECRET")


def test_the_port_of_the_connection_is_that_of_its_hosts() -> None:
    assert places(pool({**LOGIN, "hosts": ["a", "b:22"]}, port=2222).hosts) == [
        "a (ada@a:2222)",
        "b (ada@b:22)",
    ]


def test_host_and_port_of_the_connection_are_a_pool_of_one() -> None:
    found = read({}, host="a", port=2222, login="bob", password="TOPSECRET")
    assert found.infra == "ssh"
    assert found.pool is not None
    assert places(found.pool.hosts) == ["a (bob@a:2222)"]


def test_the_pool_has_the_name_of_its_connection_and_its_settings() -> None:
    found = read(
        {
            **LOGIN,
            "hosts": "a",
            "lease_seconds": 60,
            "unreachable_timeout": 5,
            "wheelhouse": "/tmp",
            "site": "here",
        }
    )
    assert found.pool is not None
    assert (found.pool.name, found.pool.lease_seconds, found.unreachable_timeout) == ("gpus", 60, 5)
    assert (found.pool.wheelhouse, found.pool.site) == ("/tmp", "here")


def test_secrets_are_known_for_masking() -> None:
    jump = connection("bastion", "ssh", host="j", login="eve", password="jump-secret")
    found = read({**LOGIN, "private_key_passphrase": "phrase", "hosts": ["a"], "proxy_jump": "bastion"}, jump)
    assert set(found.secrets()) == {KEY, "phrase", "jump-secret"}


def test_k99_every_problem_of_every_host_is_told_at_once(tmp_path: Path) -> None:
    missing = tmp_path / "id"
    told = problems(
        {
            "user": "ada",
            "hosts": [
                {"address": "a", "key_file": str(missing)},
                {"address": "b", "port": 70000, "private_key": KEY, "cpu": 4},
                {"address": "c d", "private_key": KEY},
                {"ssh_conn_id": "absent"},
                {"name": "nowhere", "private_key": KEY},
                7,
                {"address": "e"},
                {"address": "f", "private_key": KEY, "key_file": __file__},
            ],
        }
    )
    assert told[0].startswith(f"connection gpus, host 1 (a): key_file {missing} does not exist on ")
    assert "paste the key as private_key" in told[0]
    assert told[1:] == [
        "connection gpus, host 2 (b): unknown key 'cpu'; did you mean 'cpus'?",
        "connection gpus, host 2 (b): port is '70000'; it must be a port from 1 to 65535",
        "connection gpus, host 3 (c d): 'c d' is not a host; write user@host:port",
        "connection gpus, host 4 (absent): the ssh connection 'absent' does not exist; create it or name another",
        "connection gpus, host 5 (nowhere): has no address; write address: or ssh_conn_id:",
        "connection gpus: host 6 is a int; write user@host:port or a mapping",
        "connection gpus, host 7 (e): host e has nothing to log in with; set private_key, key_file or password",
        "connection gpus, host 8 (f): key_file and private_key exclude each other; keep one",
    ]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "connection gpus: has no hosts; list them in hosts, or name ssh connections in ssh_conn_ids"),
        (
            {**LOGIN, "hosts": []},
            "connection gpus: has no hosts; list them in hosts, or name ssh connections in ssh_conn_ids",
        ),
        (
            {**LOGIN, "hosts": {"one": {"address": "a"}}},
            "connection gpus: hosts is a mapping without an address; write a list of hosts",
        ),
        (
            {**LOGIN, "hosts": ["10.0.0.1:abc"]},
            "connection gpus, host 1: '10.0.0.1:abc' is not a host; write user@host:port",
        ),
        (
            {**LOGIN, "hosts": ["ssh://ada@a"]},
            "connection gpus, host 1: 'ssh://ada@a' is not a host; write user@host:port",
        ),
        ({**LOGIN, "hosts": "a: [b"}, "connection gpus: hosts is not valid YAML (line 1)"),
        ({**LOGIN, "hosts": ["a", "a:22"]}, "connection gpus: host a:22 is listed twice; list it once"),
        (
            {**LOGIN, "hosts": ["a", {"address": "b", "name": "a"}]},
            "connection gpus: two hosts are called a; give one another name",
        ),
        (
            {"private_key": KEY, "hosts": ["a"]},
            "connection gpus, host 1: host a has no user; set user (login, in an ssh connection)",
        ),
        (
            {**LOGIN, "hosts": ["-oProxyCommand=x"]},
            "connection gpus, host 1: '-oProxyCommand=x' is not a host; write user@host:port",
        ),
        (
            {**LOGIN, "hosts": ["a"], "user": "-x"},
            "connection gpus: user is '-x'; it must have no blanks and not begin with a dash",
        ),
        (
            {**LOGIN, "hosts": ["a"], "host_key_policy": "lax"},
            "connection gpus: host_key_policy is 'lax'; it must be one of strict, trust_first, none",
        ),
        (
            {**LOGIN, "hosts": ["a"], "host_key": PINNED, "no_host_key_check": True},
            "connection gpus: host_key says which key the host has, and it is not to be checked; keep one of both",
        ),
        (
            {**LOGIN, "hosts": ["a"], "host_key": "ssh-ed25519"},
            "connection gpus: host_key 'ssh-ed25519' has a type and no key; write both, as ssh-keyscan does",
        ),
        (
            {**LOGIN, "hosts": ["a"], "silence_limit": "soon"},
            "connection gpus: silence_limit is 'soon'; it must be a positive number of seconds",
        ),
        (
            {**LOGIN, "hosts": [{"address": "a", "memory": "much"}]},
            "connection gpus, host 1 (a): memory is 'much'; it must be a number of GiB, such as 64 or 64GB",
        ),
        (
            {**LOGIN, "hosts": [{"address": "a", "accelerators": "V100:half"}]},
            "connection gpus, host 1 (a): accelerators has V100:half; write a model and a whole number, such as V100:4",
        ),
        (
            {**LOGIN, "hosts": ["a"], "root": "/x"},
            "connection gpus: root is for infra local, and infra is ssh",
        ),
        (
            {**LOGIN, "hosts": ["a"], "proxy_jump": "a b"},
            "connection gpus, host 1: proxy_jump 'a b' is neither an ssh connection nor a host; write user@host:port",
        ),
        (
            {**LOGIN, "hosts": ["a"], "port": "ssh"},
            "connection gpus: port is 'ssh'; it must be a port from 1 to 65535",
        ),
        (
            {"user": "ada", "hosts": ["a"], "private_key": ["TOPSECRET"]},
            "connection gpus: private_key is not text; write it in quotes",
        ),
    ],
)
def test_k99_a_mistake_is_named_with_its_remedy(extra: dict[str, Any], message: str) -> None:
    assert message in problems(extra)


def test_k99_the_same_host_under_two_names_is_listed_twice() -> None:
    one = connection("one", "ssh", host="h1", login="u", password="p")
    two = connection("two", "ssh", host="H1", login="u", password="p")
    assert problems({"ssh_conn_ids": ["one", "two"]}, one, two) == [
        "connection gpus: host h1:22 is listed twice (as one and two); list it once"
    ]
