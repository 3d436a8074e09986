"""Connections to real hosts: how we log in, and what is said when a host does not let us."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from airflow_provider.runtime.transport.ssh.connect import connect
from airflow_provider.runtime.transport.ssh.errors import (
    BadKey,
    SshError,
    SshRefused,
    SshUnreachable,
)
from airflow_provider.runtime.transport.ssh.target import SshTarget
from tests.hosts.keys import ClientKeys, Key
from tests.hosts.settings import HostSettings
from tests.integration.transport.attempts import (
    PATIENCE,
    AskingServer,
    Hosts,
    MakeHost,
    Server,
    connected,
    echo,
    identity,
    poll,
    refusal,
    serving,
    target,
)

# Logging in.


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa", "encrypted"])
async def test_a_key_of_each_kind_opens_a_host(hosts: Hosts, client_keys: ClientKeys, kind: str) -> None:
    [host] = hosts(1)
    async with connected(target(host, getattr(client_keys, kind))) as opened:
        assert await echo(opened.connection) == "done\n"
        assert opened.host_key in host.disk.host_keys
        assert opened.ended_because is None


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
async def test_a_certificate_opens_a_host_that_knows_only_its_signer(
    make_host: MakeHost, client_keys: ClientKeys, kind: str
) -> None:
    key: Key = getattr(client_keys, kind)
    authority = asyncssh.generate_private_key("ssh-ed25519")
    public = asyncssh.import_public_key(key.public)
    certificate = authority.generate_user_certificate(public, "somebody", principals=["root"])
    settings = HostSettings(
        home_files={".ssh/authority": authority.export_public_key().decode()},
        sshd_options={"TrustedUserCAKeys": "/root/.ssh/authority", "AuthorizedKeysFile": "none"},
    )
    host = await asyncio.to_thread(make_host, settings)
    assert f"(ssh-{kind} " in await refusal(target(host, key), SshRefused)
    certified = replace(identity(key), certificate=certificate.export_certificate().decode())
    async with connected(target(host, identities=(certified,))) as opened:
        assert await echo(opened.connection) == "done\n"


async def test_keys_are_tried_in_order_until_one_fits(hosts: Hosts, client_keys: ClientKeys) -> None:
    [host] = hosts(1)
    async with connected(target(host, client_keys.stranger, client_keys.ecdsa, user=host.user)) as opened:
        assert (await opened.connection.run("id -un")).stdout == f"{host.user}\n"


async def test_a_refused_login_names_the_keys_and_what_the_server_takes(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    [host] = hosts(1)
    said = await refusal(target(host, client_keys.stranger, password="secret"), SshRefused)
    key = asyncssh.read_private_key(str(client_keys.stranger.path))
    assert f"connection gpu, private_key (ssh-ed25519 {key.get_fingerprint()})" in said
    assert "It takes: publickey." in said
    assert "~/.ssh/authorized_keys of root" in said
    assert "secret" not in said


async def test_k62_keys_of_this_account_and_its_agent_are_not_used_unasked(
    hosts: Hosts, client_keys: ClientKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [host] = hosts(1)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text(client_keys.ed25519.path.read_text())
    (home / ".ssh" / "config").write_text(f"Host *\n  IdentityFile {client_keys.ed25519.path}\n")
    monkeypatch.setenv("HOME", str(home))
    agent = await asyncio.create_subprocess_exec("ssh-agent", "-D", "-a", str(tmp_path / "agent"))
    try:
        await poll(lambda: (tmp_path / "agent").exists())
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        add = await asyncio.create_subprocess_exec("ssh-add", "-q", str(client_keys.rsa.path))
        assert await add.wait() == 0
        said = await refusal(target(host), SshRefused)
        assert "No key and no password was given. It takes: publickey." in said
        async with connected(target(host, use_agent=True)) as opened:
            assert await echo(opened.connection) == "done\n"
        stranger = target(host, use_agent=True, user="nobody")
        assert "a key of the ssh-agent (ssh-rsa" in await refusal(stranger, SshRefused)
    finally:
        agent.terminate()
        await agent.wait()
    assert "there is none" in await refusal(target(host, use_agent=True), SshRefused)
    assert sorted(path.name for path in (home / ".ssh").iterdir()) == ["config", "id_ed25519"]


async def test_a_bad_key_is_said_before_anything_is_sent(client_keys: ClientKeys) -> None:
    nowhere = SshTarget(name="nowhere", host="no-such-host.invalid", user="root")
    wrong = replace(identity(client_keys.encrypted), passphrase="nonsense")
    assert "wrong passphrase" in await refusal(replace(nowhere, identities=(wrong,)), BadKey)


async def test_a_server_that_gives_up_is_quoted(make_host: MakeHost, client_keys: ClientKeys) -> None:
    host = await asyncio.to_thread(make_host, HostSettings(sshd_options={"MaxAuthTries": "1"}))
    said = await refusal(target(host, client_keys.stranger, client_keys.ed25519), SshRefused)
    assert "Too many authentication failures" in said
    assert "private_key (ssh-ed25519 SHA256:" in said


@pytest.mark.parametrize("accepted", ["ssh-rsa", "-ssh-rsa", "rsa-sha2-512"])
async def test_k81_an_rsa_key_is_offered_with_the_signature_that_the_server_takes(
    make_host: MakeHost, client_keys: ClientKeys, accepted: str
) -> None:
    options = {"PubkeyAcceptedAlgorithms": accepted}
    host = await asyncio.to_thread(make_host, HostSettings(sshd_options=options))
    async with connected(target(host, client_keys.rsa)) as opened:
        assert await echo(opened.connection) == "done\n"
    if accepted == "ssh-rsa":
        disabled = target(host, client_keys.rsa, disabled_algorithms=("ssh-rsa",))
        said = await refusal(disabled, SshRefused)
        assert "ssh-rsa" not in said.partition("signed with")[2].partition(".")[0]
        assert "signed with rsa-sha2-" in said


async def test_k81_an_unknown_rsa_key_is_offered_twice_and_no_more(
    make_host: MakeHost, tmp_path: Path
) -> None:
    host = await asyncio.to_thread(make_host, HostSettings())
    asyncssh.generate_private_key("ssh-rsa", key_size=2048).write_private_key(tmp_path / "rsa")
    said = await refusal(target(host, Key(path=tmp_path / "rsa")), SshRefused)
    assert re.search(r"signed with rsa-sha2-(256|512) and then ssh-rsa\.", said)
    await poll(lambda: "Connection closed by" in host.sshd_log)
    refused = ("Failed publickey", "ssh-rsa not in PubkeyAcceptedAlgorithms")
    assert [host.sshd_log.count(line) for line in refused] == [1, 1]


async def test_connections_are_not_worth_a_line_in_the_log(
    hosts: Hosts, client_keys: ClientKeys, caplog: pytest.LogCaptureFixture
) -> None:
    [host] = hosts(1)
    with caplog.at_level(logging.INFO):
        async with connected(target(host, client_keys.ed25519)):
            pass
    assert [record.getMessage() for record in caplog.records if record.name.startswith("asyncssh")] == []


# A server that is made to misbehave.


@pytest.mark.parametrize("server", [Server, AskingServer])
async def test_a_password_is_given_in_the_way_that_the_server_asks(
    server: type[Server], client_keys: ClientKeys
) -> None:
    async with serving(server) as to:
        async with connected(replace(to, identities=(identity(client_keys.ed25519),))):
            pass
        with pytest.raises(SshRefused, match="Refused: the password") as caught:
            await connect(replace(to, password="close sesame"))
        assert "sesame" not in str(caught.value)


async def test_a_server_that_falls_silent_while_we_log_in_costs_the_timeout() -> None:
    async with serving() as to:
        began = time.monotonic()
        with pytest.raises(
            SshUnreachable, match=r"not done within 0.5 s: it stopped answering while logging in"
        ):
            await connect(replace(to, user="slow", connect_timeout=0.5))
        assert 0.4 < time.monotonic() - began < 0.5 + PATIENCE / 2


async def test_a_server_that_falls_silent_after_its_greeting_costs_the_timeout() -> None:
    ends = asyncio.Event()

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-Silence\r\n")
        await ends.wait()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        to = SshTarget(name="silent", host="127.0.0.1", port=port, user="me", connect_timeout=0.3)
        with pytest.raises(SshUnreachable, match=r"not done within 0.3 s: .* exchanging keys"):
            await connect(to)
        ends.set()


async def test_k81_no_algorithm_in_common_is_said_with_what_was_offered() -> None:
    async with serving(kex_algs=["curve25519-sha256"]) as to:
        with pytest.raises(SshRefused, match=r"no algorithm in common.*received curve25519-sha256") as caught:
            await connect(replace(to, disabled_algorithms=("curve25519-sha256",)))
        assert "ecdh-sha2-nistp256" in str(caught.value)


@pytest.mark.parametrize("sort", ["kex_algs", "encryption_algs", "mac_algs"])
async def test_unusual_algorithms_are_still_offered(sort: str) -> None:
    rare = {
        "kex_algs": "diffie-hellman-group14-sha1",
        "encryption_algs": "aes192-ctr",
        "mac_algs": "hmac-sha1",
    }
    chosen = {sort: [rare[sort]]}
    if sort == "mac_algs":
        chosen["encryption_algs"] = ["aes128-ctr"]
    async with serving(**chosen) as to, connected(to):
        pass


async def test_quick_algorithms_are_chosen_first() -> None:
    async with serving() as to, connected(to) as opened:
        assert opened.connection.get_extra_info("send_cipher") == "aes128-gcm@openssh.com"
        assert opened.connection.get_extra_info("send_compression") == "none"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (b"", SshUnreachable, "closed the connection before it greeted"),
        (b"Exceeded MaxStartups\r\n", SshUnreachable, "MaxStartups"),
        (b"SSH-1.5-old\r\n", SshRefused, "no SSH server of today"),
        (b"x" * 20_000, SshRefused, "no SSH server of today"),
    ],
)
async def test_what_is_no_ssh_server_is_told_apart(answer: bytes, error: type[SshError], said: str) -> None:
    async def answered(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(error, match=said):
            await connect(SshTarget(name="web", host="127.0.0.1", port=port, user="me"))
