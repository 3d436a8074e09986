"""How hosts of a pool are reached: connections of type ssh, host keys, jump hosts, ssh_config (K17, K66)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.hooks.connection import BadConnection, read_connection
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity
from tests.unit.airflow_side.pools import KEY, LOGIN, PINNED, connection, fetch, pool, problems


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


def test_k66_the_key_of_a_host_leaves_the_rule_for_those_on_the_way_to_it_as_it_is() -> None:
    host = {"address": "a", "host_key": PINNED}
    target = (
        pool({**LOGIN, "hosts": [host], "proxy_jump": "b", "host_key_policy": "trust_first"}).hosts[0].target
    )
    assert target.jump is not None
    assert target.host_keys.pinned == (PINNED,)
    assert (target.jump.host_keys.trust_first, target.jump.host_keys.pinned) == (True, ())
    target = pool({**LOGIN, "hosts": [host], "host_key_policy": "none"}).hosts[0].target
    assert target.host_keys.verify, "a key that is given is looked at"


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
