"""Pools of SSH hosts out of Airflow connections: everything that they may say, and words for what they may not (K99)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider.hooks.connection import BadConnection, ClusterSettings, read_connection
from airflow_provider.runtime.infra.ssh.pool import PoolHost, SshPool
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nTOPSECRETTOPSECRET\n-----END OPENSSH PRIVATE KEY-----\n"
LOGIN = {"user": "ada", "private_key": KEY}
PINNED = "ssh-ed25519 AAAAC3Nz"


def connection(conn_id: str = "gpus", conn_type: str = "managed_cluster", **fields: Any) -> Connection:
    return Connection(conn_id=conn_id, conn_type=conn_type, **fields)


def fetch(*known: Connection) -> Callable[[str], Connection]:
    by_id = {one.conn_id: one for one in known}

    def get(conn_id: str) -> Connection:
        if conn_id not in by_id:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return by_id[conn_id]

    return get


def read(extra: dict[str, Any], *known: Connection, **fields: Any) -> ClusterSettings:
    import json

    return read_connection(connection(extra=json.dumps(extra), **fields), fetch(*known))


def pool(extra: dict[str, Any], *known: Connection, **fields: Any) -> SshPool:
    found = read({"infra": "ssh", **extra}, *known, **fields).pool
    assert found is not None
    return found


def problems(extra: dict[str, Any], *known: Connection, **fields: Any) -> list[str]:
    with pytest.raises(BadConnection) as caught:
        read({"infra": "ssh", **extra}, *known, **fields)
    text = str(caught.value)
    assert "TOPSECRET" not in text
    return text.splitlines()


def places(hosts: tuple[PoolHost, ...]) -> list[str]:
    return [str(host.target) for host in hosts]


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
    assert b.host_keys == HostKeys(pinned=(PINNED,))
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


def test_ssh_connections_are_hosts_with_their_own_ways_in() -> None:
    one = connection("one", "ssh", host="h1", login="u1", port=2201, password="TOPSECRET1")
    two = connection(
        "two", "ssh", host="h2", login="u2", extra=f'{{"private_key": "x", "host_key": "{PINNED}"}}'
    )
    extra = {
        "ssh_conn_ids": "one",
        "hosts": [{"ssh_conn_id": "two", "cpus": 8, "zone": "z"}],
        "user": "nobody",
    }
    second, first = pool(extra, one, two).hosts
    assert (str(first.target), first.target.password) == ("one (u1@h1:2201)", "TOPSECRET1")
    assert (str(second.target), second.cpus, second.zone) == ("two (u2@h2:22)", 8, "z")
    assert second.target.identities == (Identity("connection two, private_key", "x"),)
    assert second.target.host_keys.pinned == (PINNED,)


def test_an_ssh_connection_is_a_pool_of_one() -> None:
    alone = connection(
        "gpu1", "ssh", host="h1", login="u1", password="TOPSECRET", extra='{"lease_seconds": 60, "cpus": 4}'
    )
    found = read_connection(alone, fetch())
    assert found.pool is not None
    assert (found.infra, found.pool.name, found.lease_seconds) == ("ssh", "gpu1", 60)
    (host,) = found.pool.hosts
    assert (str(host.target), host.cpus) == ("gpu1 (u1@h1:22)", 4)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, HostKeys()),
        ({"host_key": PINNED}, HostKeys(pinned=(PINNED,))),
        ({"host_key": f"h1,10.0.0.1 {PINNED} root@h1"}, HostKeys(pinned=(PINNED,))),
        ({"host_key": "AAAAB3Nz"}, HostKeys(pinned=("ssh-rsa AAAAB3Nz",))),
        ({"host_key": f"{PINNED}\nssh-rsa AAAAB3Nz"}, HostKeys(pinned=(PINNED, "ssh-rsa AAAAB3Nz"))),
        ({"no_host_key_check": "true"}, HostKeys(known_hosts=(), verify=False)),
        ({"no_host_key_check": False}, HostKeys()),
        ({"ignore_hostkey_verification": True}, HostKeys(known_hosts=(), verify=False)),
        ({"known_hosts": "none"}, HostKeys(known_hosts=(), verify=False)),
        ({"allow_host_key_change": "True"}, HostKeys(known_hosts=(), trust_first=True)),
        ({"allow_host_key_change": True, "host_key": PINNED}, HostKeys(pinned=(PINNED,))),
        ({"host_key_policy": "trust_first"}, HostKeys(trust_first=True)),
        ({"host_key_policy": "none"}, HostKeys(known_hosts=(), verify=False)),
        ({"host_key_policy": "strict"}, HostKeys()),
    ],
)
def test_host_keys_are_verified_unless_the_connection_says_otherwise(
    extra: dict[str, Any], expected: HostKeys
) -> None:
    import json

    alone = connection("one", "ssh", host="h1", login="u", password="p", extra=json.dumps(extra))
    found = read_connection(alone, fetch()).pool
    assert found is not None
    assert found.hosts[0].target.host_keys == expected


def test_other_extras_of_ssh_connections_mean_what_they_mean_to_airflow() -> None:
    extra = (
        '{"conn_timeout": "7", "host_proxy_cmd": "nc h 22", "look_for_keys": "false", "compress": "true", "x": 1, '
        '"disabled_algorithms": {"keys": ["rsa-sha2-512"]}}'
    )
    alone = connection("one", "ssh", host="h1", login="u", password="p", extra=extra)
    found = read_connection(alone, fetch()).pool
    assert found is not None
    target = found.hosts[0].target
    assert (target.connect_timeout, target.proxy_command) == (7, "nc h 22")
    assert target.disabled_algorithms == ("rsa-sha2-512",)


def test_k66_two_hops_and_an_ssh_connection_lead_to_a_host() -> None:
    bastion = connection("bastion", "ssh", host="b", login="eve", password="TOPSECRET")
    extra = {**LOGIN, "password": "TOPSECRET", "hosts": ["a"], "proxy_jump": "bastion,root@inner:2222"}
    target = pool(extra, bastion).hosts[0].target
    inner = target.jump
    assert inner is not None
    outer = inner.jump
    assert outer is not None
    assert [str(hop) for hop in (target, inner, outer)] == [
        "a (ada@a:22)",
        "inner (root@inner:2222)",
        "bastion (eve@b:22)",
    ]
    assert inner.identities == target.identities
    assert inner.password is None, "the password of a host is not shown to those on the way"
    assert (outer.password, outer.jump) == ("TOPSECRET", None)


def test_k66_a_host_of_its_own_way_does_not_go_the_way_of_the_pool() -> None:
    extra = {**LOGIN, "proxy_jump": "j@jump", "hosts": ["a", {"address": "b", "proxy_command": "nc b 22"}]}
    a, b = (host.target for host in pool(extra).hosts)
    assert (str(a.jump), a.proxy_command) == ("jump (j@jump:22)", None)
    assert (b.jump, b.proxy_command) == (None, "nc b 22")


def test_k66_a_proxy_command_gets_host_port_and_user_as_from_ssh() -> None:
    extra = {**LOGIN, "proxy_command": "nc -X %r%% %h %p", "hosts": ["a:2222"]}
    assert pool(extra).hosts[0].target.proxy_command == "nc -X ada% a 2222"
    assert problems({**extra, "hosts": ["$(id)"]}) == [
        "connection gpus, host 1: '$(id)' cannot be put into a proxy_command; only letters, digits and .:_%@+- can"
    ]


def test_k66_the_same_address_behind_two_bastions_is_two_hosts() -> None:
    behind = [
        {"name": name, "address": "10.0.0.1", "proxy_jump": f"ada@{name}-bastion"} for name in ("x", "y")
    ]
    assert [host.name for host in pool({**LOGIN, "hosts": behind}).hosts] == ["x", "y"]


def test_k66_hosts_behind_one_bastion_share_it() -> None:
    first, second = pool({**LOGIN, "hosts": ["a", "b"], "proxy_jump": "ada@bastion"}).hosts
    assert first.target.jump == second.target.jump


def test_k66_jumps_in_a_circle_are_refused() -> None:
    bastion = connection(
        "bastion", "ssh", host="b", login="eve", password="p", extra='{"proxy_jump": "bastion"}'
    )
    assert problems({**LOGIN, "hosts": ["a"], "proxy_jump": "bastion"}, bastion) == [
        "connection bastion: proxy_jump leads over more than 5 hosts, or in a circle"
    ]


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


def test_a_host_needs_a_connection_of_type_ssh() -> None:
    web = connection("web", "http", host="h1", login="u", password="p")
    assert problems({"ssh_conn_ids": ["web"]}, web) == [
        "connection web: is of type 'http'; it must be of type 'ssh'"
    ]


def test_k17_a_key_file_that_only_another_process_has_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "id").write_text(KEY)
    alone = connection("one", "ssh", host="h1", login="u", extra='{"key_file": "~/id"}')
    assert read_connection(alone, fetch()).pool is not None
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(
        BadConnection, match=r"connection one: key_file ~/id does not exist on .* paste the key"
    ):
        read_connection(alone, fetch())


def test_an_ssh_config_says_what_the_connection_does_not(tmp_path: Path) -> None:
    key, config = tmp_path / "id", tmp_path / "config"
    key.write_text(KEY)
    config.write_text(
        f"Host gpu*\n HostName %h.example\n User ada\n Port 2222\n IdentityFile {key}\n ProxyJump bastion\n"
        f"Host bastion\n HostName 10.0.0.1\n User eve\n IdentityFile {key}\n"
    )
    first, second = pool({"ssh_config": str(config), "hosts": ["gpu1", "bob@gpu2"]}).hosts
    assert str(first.target) == "gpu1 (ada@gpu1.example:2222)"
    assert str(first.target.jump) == "bastion (eve@10.0.0.1:22)"
    assert [identity.path for identity in first.target.identities] == [str(key)]
    assert second.target.user == "bob"


def test_an_ssh_config_that_names_no_user_or_key_does_not_take_those_of_the_process(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n HostName 10.0.0.2\n")
    assert problems({"ssh_config": str(config), "hosts": ["a"]}) == [
        "connection gpus, host 1: host a has no user; set user (login, in an ssh connection)",
        "connection gpus, host 1: host a has nothing to log in with; set private_key, key_file or password",
    ]


def test_an_ssh_config_that_cannot_be_understood_is_a_problem_of_the_connection(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n Port many\n")
    (told,) = problems({**LOGIN, "ssh_config": str(config), "hosts": ["a"]})
    assert told.startswith(f"connection gpus, host 1: ssh_config {config}: ")
