"""Configuration files of OpenSSH mean to us what they mean to ssh: `ssh -G` is asked."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path

import pytest

from airflow_provider.runtime.transport.ssh.config import ConfiguredHost, apply_config, target_from_config
from airflow_provider.runtime.transport.ssh.errors import BadConfig
from airflow_provider.runtime.transport.ssh.target import HostKeys, Identity, SshTarget

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh (package openssh-client)")


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "config") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("@/", f"{tmp_path}/"))
        path.chmod(0o600)
        return str(path)

    return write


def asked(file: str, alias: str, *options: str) -> dict[str, list[str]]:
    """Return what ssh says about a host."""
    words = ["ssh", "-G", "-F", file, *options, alias]
    said = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
    assert said.returncode == 0, said.stderr
    values: dict[str, list[str]] = {}
    for line in said.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        values.setdefault(keyword, []).append(value)
    return values


def agrees(found: ConfiguredHost, said: dict[str, list[str]]) -> None:
    """Fail unless we and ssh see the same."""
    assert found.host.lower() == said["hostname"][0]
    assert (found.user or getpass.getuser()) == said["user"][0]
    assert (found.port or 22) == int(said["port"][0])
    assert found.identities_only is (said["identitiesonly"][0] == "yes")
    assert list(found.proxy_jump) == [hop for hops in said.get("proxyjump", []) for hop in hops.split(",")]
    tokens = {"%h": found.host, "%p": str(found.port or 22)}
    commands = said.get("proxycommand", [None])
    for token, value in tokens.items():
        commands = [command and command.replace(token, value) for command in commands]
    assert [found.proxy_command] == commands
    assert (found.connect_timeout or "none") == (
        int(said["connecttimeout"][0]) if said["connecttimeout"][0].isdecimal() else "none"
    )
    if found.identity_files:
        assert list(found.identity_files) == [str(Path(name).expanduser()) for name in said["identityfile"]]
    else:
        assert said["identityfile"][0] == "~/.ssh/id_rsa"  # ssh's own first guess: nothing was said
    if found.host_key_alias:
        assert said["hostkeyalias"] == [found.host_key_alias]
    if found.known_hosts is not None:
        named = [
            word for key in ("userknownhostsfile", "globalknownhostsfile") for word in said[key][0].split()
        ]
        assert set(found.known_hosts) <= {str(Path(name).expanduser()) for name in named}
        assert {Path(name).name for name in named} - {Path(name).name for name in found.known_hosts} <= {
            "known_hosts2",
            "ssh_known_hosts2",
        }


PLAIN = """
Host gpu-*  web
    HostName %h.example.com
    User trainer
    Port 2222
    IdentityFile @/keys/gpu
    IdentityFile "@/keys/with blank"
    IdentitiesOnly yes
    ConnectTimeout 7

Host *.quiet !loud.quiet
    User quiet
    UserKnownHostsFile @/known
    HostKeyAlias "the name"

host=equal
hostname = 10.0.0.9
  Port=2200

Host tabs
\tHostName\t10.0.0.8   # a remark
\tUser 'single quoted'

Host first
    User one
Host first second
    User two
    Port 99

Host gone
    ProxyJump none
    ProxyCommand nc %h %p

Host command
    ProxyCommand   ssh -W '[%h]:%p' "bastion # here" 2>/dev/null
    ProxyJump ignored
    HostName 10.9.9.9

Host not-any
    ProxyCommand none
    ProxyCommand nc %h
    ProxyJump somewhere

Host not-at-first
    ProxyJump none
    ProxyJump somewhere

Host jumping
    ProxyJump ops@bastion:2022,inner  # both
    ProxyCommand ignored

Host UPPER
    HostName Upper.Example.COM

Host *
    User everyone
    IdentityFile @/keys/any
"""

MATCHING = """
Match host "10.*" originalhost "!excluded,*"
    User by-address

Host short long excluded
    HostName 10.1.2.3

Match host 10.1.* user by-address
    Port 1

Match originalhost long
    Port 2

Match exec "test %n = run"
    User executed
    Port 3

Match !exec "test %h = run" originalhost other
    User not-executed

Match final host 10.1.2.3
    IdentityFile @/final
    ConnectTimeout 44

Match canonical all
    HostKeyAlias canonical

Match tagged blue
    Port 4
Host tagged
    Tag blue
Match all
    ConnectTimeout 33
"""

INCLUDING = """
Include @/extra/*.conf
Host inside
    Include @/only-inside
    Port 77
Host after
    User after
Include @/nowhere/*
Host *
    IdentityFile @/last
"""


@needs_ssh
@pytest.mark.parametrize(
    "alias",
    [
        *("gpu-1", "web", "a.quiet", "loud.quiet", "equal", "tabs", "first", "second", "gone", "command"),
        *("not-any", "not-at-first", "jumping", "UPPER", "upper", "unknown", "10.0.0.1", "GPU-1"),
    ],
)
def test_k66_plain_files(write, alias: str) -> None:
    file = write(PLAIN)
    agrees(apply_config(alias, [file]), asked(file, alias))


@needs_ssh
@pytest.mark.parametrize(
    "alias", ["short", "long", "excluded", "run", "other", "10.1.2.3", "10.7.7.7", "plain"]
)
def test_k66_conditions(write, alias: str) -> None:
    # ssh before 9.4 knows no tags.
    without_tags = MATCHING.replace("Match tagged blue\n    Port 4\nHost tagged\n    Tag blue\n", "")
    file = write(without_tags)
    agrees(apply_config(alias, [file]), asked(file, alias))


def test_tags_are_matched(write) -> None:
    assert apply_config("tagged", [write("Host a\n Tag blue\nMatch tagged blue\n Port 4")]).port is None
    assert apply_config("a", [write("Host a\n Tag blue\nMatch tagged blue\n Port 4")]).port == 4


@needs_ssh
@pytest.mark.parametrize("alias", ["inside", "outside", "after", "one", "two", "hidden"])
def test_k66_included_files(write, alias: str) -> None:
    write("Host one\n  Port 11\nUser from-one\n", "extra/1.conf")
    write("Host two\n  Port 22\n", "extra/2.conf")
    # What an included file says counts only where the line that includes it does; so does a Host in it.
    write("User deep\nHost hidden\n  Port 5\nHost inside\n Port 6\n", "only-inside")
    file = write(INCLUDING)
    agrees(apply_config(alias, [file]), asked(file, alias))


@needs_ssh
def test_what_is_given_counts_more_than_the_files_and_is_matched(write) -> None:
    file = write("Match user ops\n  IdentityFile @/ops\nHost *\n  User other\n  Port 5\n")
    found = apply_config("any", [file], user="ops", port=7)
    agrees(found, asked(file, "any", "-l", "ops", "-p", "7"))
    assert found.identity_files[0].endswith("/ops")


def test_tokens_and_variables_are_replaced_in_paths(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    file = write(
        "Host a\n HostName b.c\n User u\n Port 3\n IdentityFile ${KEYS}/%h-%n-%p-%r-%%\n IdentityFile ~/x\n"
    )
    assert apply_config("a", [file]).identity_files == ("/keys/b.c-a-3-u-%", str(Path("~/x").expanduser()))


def test_files_are_read_in_order(write) -> None:
    first, second = write("Host a\n User one"), write("Host a\n User two\n Port 2", "second")
    found = apply_config("a", [first, second])
    assert (found.user, found.port) == ("one", 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Host a\n  Port many", "port 'many' is not a number"),
        ('Host a\n  User "open', "line 2: a quotation mark is missing"),
        ("Host a\n  User", "line 2: a value is missing"),
        ("Match nonsense x\n User y", "line 1: Match nonsense is not supported"),
        ("Match user", "line 1: Match user needs a value"),
        ("Host a\n  IdentityFile /%q", "there is no token %q"),
        ("Host a\n  IdentityFile ${NOT_SET_ANYWHERE}/x", "NOT_SET_ANYWHERE is not set"),
        ("Include @/config", "too many Include"),
    ],
)
def test_what_is_wrong_is_said(write, text: str, reason: str) -> None:
    with pytest.raises(BadConfig, match=reason):
        apply_config("a", [write(text)])


def test_a_file_that_others_may_write_is_refused(write) -> None:
    file = write("Host a\n  Port 2")
    Path(file).chmod(0o666)
    with pytest.raises(BadConfig, match=r"others may write it .mode 0666"):
        apply_config("a", [file])
    with pytest.raises(BadConfig, match="no-such: cannot be read: No such file"):
        apply_config("a", [file + "-no-such"])


# Targets.

BASTIONS = """
Host node-*
    HostName %h.inside
    User worker
    ProxyJump inner
    StrictHostKeyChecking accept-new
    Ciphers -aes128-cbc,3des-*
Host inner
    HostName 10.0.0.1
    User hop
    Port 2201
    ProxyJump outer
    IdentityFile @/inner-key
Host outer
    HostName 198.51.100.7
    Port 2202
    IdentityFile @/missing
"""


def test_a_target_over_two_hosts_on_the_way(write, tmp_path: Path) -> None:
    (tmp_path / "inner-key").write_text("")
    file = write(BASTIONS)
    target = target_from_config("node-1", [file], silence_limit=3.0)
    assert (target.name, target.host, target.user, target.port) == ("node-1", "node-1.inside", "worker", 22)
    assert target.host_keys.trust_first
    assert target.disabled_algorithms == ("aes128-cbc",)
    inner = target.jump
    assert inner is not None
    assert (inner.name, inner.host, inner.user, inner.port) == ("inner", "10.0.0.1", "hop", 2201)
    assert [identity.path for identity in inner.identities] == [str(tmp_path / "inner-key")]
    assert inner.silence_limit == 3.0
    outer = inner.jump
    assert outer is not None
    assert (outer.host, outer.user, outer.port) == ("198.51.100.7", getpass.getuser(), 2202)
    assert outer.identities == ()
    assert outer.jump is None


def test_targets_of_one_bastion_share_it(write) -> None:
    file = write(BASTIONS)
    first, second = (target_from_config(alias, [file]) for alias in ("node-1", "node-2"))
    assert first.jump == second.jump
    assert first != second


def test_a_list_of_hosts_on_the_way_overrules_what_each_says_but_the_first(write) -> None:
    file = write(BASTIONS + "Host far\n  ProxyJump root@outer:9,hop@inner\n")
    inner = target_from_config("far", [file]).jump
    assert inner is not None
    assert inner.jump is not None
    assert (inner.host, inner.user) == ("10.0.0.1", "hop")
    assert (inner.jump.host, inner.jump.user, inner.jump.port) == ("198.51.100.7", "root", 9)
    assert inner.jump.jump is None


@pytest.mark.parametrize("text", ["Host *\n  ProxyJump b", "Host a\n ProxyJump b\nHost b\n ProxyJump a"])
def test_a_circle_is_refused(write, text: str) -> None:
    with pytest.raises(BadConfig, match=r"a: its ProxyJump leads in a circle: a -> b"):
        target_from_config("a", [write(text)])


def test_an_unreadable_hop_is_refused(write) -> None:
    with pytest.raises(BadConfig, match="'b:many' is not"):
        target_from_config("a", [write("Host a\n ProxyJump b:many")])


def test_what_is_given_wins(write, tmp_path: Path) -> None:
    (tmp_path / "inner-key").write_text("")
    key = Identity("connection", text="...")
    given = target_from_config(
        "inner",
        [write(BASTIONS)],
        name="the inner one",
        user="me",
        port=5,
        identities=[key],
        password="secret",
        host_keys=HostKeys(pinned=("ssh-ed25519 AAAA",)),
        proxy_command="nc %h",
        connect_timeout=2.0,
        silence_limit=4.0,
        disabled_algorithms=["ssh-rsa"],
        use_agent=True,
    )
    assert given == SshTarget(
        name="the inner one",
        host="10.0.0.1",
        user="me",
        port=5,
        identities=(key,),
        password="secret",
        host_keys=HostKeys(pinned=("ssh-ed25519 AAAA",)),
        proxy_command="nc %h",
        connect_timeout=2.0,
        silence_limit=4.0,
        disabled_algorithms=("ssh-rsa",),
        use_agent=True,
    )


def test_a_certificate_beside_its_key_is_taken(write, tmp_path: Path) -> None:
    for name in ("one", "one-cert.pub", "two", "extra"):
        (tmp_path / name).write_text(name)
    beside = target_from_config("a", [write("Host a\n IdentityFile @/one\n IdentityFile @/two\n")])
    assert [identity.certificate for identity in beside.identities] == ["one-cert.pub", None]
    named = target_from_config("a", [write("Host a\n IdentityFile @/two\n CertificateFile @/extra\n")])
    assert [identity.certificate for identity in named.identities] == ["extra"]


def test_identities_only_keeps_the_agent_away(write) -> None:
    file = write("Host a\n IdentitiesOnly yes")
    assert not target_from_config("a", [file], use_agent=True).use_agent
    assert target_from_config("b", [file], use_agent=True).use_agent
    assert not target_from_config("b", [file]).use_agent
