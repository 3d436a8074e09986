"""Connections to hosts that show one key or another: which are trusted, and what is said of the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from airflow_provider.runtime.transport.ssh.connect import connect
from airflow_provider.runtime.transport.ssh.errors import (
    HostKeyRefused,
)
from airflow_provider.runtime.transport.ssh.target import HostKeys
from tests.hosts.host import Host
from tests.hosts.keys import ClientKeys
from tests.hosts.settings import HostSettings
from tests.integration.transport.attempts import (
    AUTHORITY,
    HOST_KEY,
    Hosts,
    MakeHost,
    connected,
    refusal,
    serving,
    target,
)


@pytest.mark.parametrize("known", ["rsa", "ecdsa", "ed25519"])
async def test_a_host_shows_the_key_that_is_known(
    make_host: MakeHost, client_keys: ClientKeys, tmp_path: Path, known: str
) -> None:
    host = await asyncio.to_thread(make_host, HostSettings(host_key_types=("ed25519", "ecdsa", "rsa")))
    [line] = [line for line in host.known_hosts.splitlines() if known in line]
    (tmp_path / "known_hosts").write_text(f"{line}\n")
    to = target(host, client_keys.ed25519, host_keys=HostKeys(known_hosts=(str(tmp_path / "known_hosts"),)))
    async with connected(to) as opened:
        assert opened.host_key == line.partition(" ")[2]


async def test_k64_a_reinstalled_host_is_refused_and_the_text_explains(
    host: Host, client_keys: ClientKeys, tmp_path: Path
) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(host.known_hosts)
    old = host.disk.host_keys[0]
    await asyncio.to_thread(host.disk.replace_host_keys)
    await asyncio.to_thread(host.reboot)
    new = host.disk.host_keys[0]
    by_file = target(host, client_keys.ed25519, host_keys=HostKeys(known_hosts=(str(known_hosts),)))
    pinned = replace(by_file, host_keys=HostKeys(pinned=(old,)))
    for to, origin in ((by_file, str(known_hosts)), (pinned, "pinned")):
        said = await refusal(to, HostKeyRefused)
        shown, _, expected = said.partition("; expected: ")
        assert asyncssh.import_public_key(new).get_fingerprint() in shown
        assert asyncssh.import_public_key(old).get_fingerprint() in expected
        assert origin in expected
    assert known_hosts.read_text().split(" ", 1)[1].strip() == old
    async with connected(replace(by_file, host_keys=HostKeys(verify=False))) as opened:
        assert opened.host_key == new


async def test_a_stranger_is_trusted_at_first_if_that_is_wished(
    hosts: Hosts, client_keys: ClientKeys
) -> None:
    [host] = hosts(1)
    first = target(host, client_keys.ed25519, host_keys=HostKeys(known_hosts=(), trust_first=True))
    async with connected(first) as opened:
        pinned = replace(first, host_keys=HostKeys(pinned=(opened.host_key,)))
    async with connected(pinned):
        pass
    said = await refusal(replace(first, host_keys=HostKeys(known_hosts=())), HostKeyRefused)
    assert "no key of it is known" in said


async def test_a_certificate_of_the_host_counts_if_its_signer_is_known(tmp_path: Path) -> None:
    certificate = AUTHORITY.generate_host_certificate(HOST_KEY, "host", principals=["127.0.0.1"])
    foreign = AUTHORITY.generate_host_certificate(HOST_KEY, "host", principals=["another.example.com"])
    file = tmp_path / "known_hosts"
    host_keys = HostKeys(known_hosts=(str(file),))
    file.write_text(f"@cert-authority * {AUTHORITY.export_public_key().decode()}")
    async with serving(server_host_keys=[(HOST_KEY, certificate)]) as to:
        async with connected(replace(to, host_keys=host_keys)) as opened:
            assert HOST_KEY.export_public_key().decode().startswith(opened.host_key)
        async with connected(to):  # pinned: the bare key is asked for
            pass
        file.write_text(f"@cert-authority * {HOST_KEY.export_public_key().decode()}")
        with pytest.raises(HostKeyRefused, match=r"signed by ssh-ed25519 SHA256.*; expected: "):
            await connect(replace(to, host_keys=host_keys))
        file.write_text(
            f"@cert-authority * {AUTHORITY.export_public_key().decode()}"
            f"@revoked * {HOST_KEY.export_public_key().decode()}"
        )
        with pytest.raises(HostKeyRefused, match="Host key is revoked"):
            await connect(replace(to, host_keys=host_keys))
    file.write_text(f"@cert-authority * {AUTHORITY.export_public_key().decode()}")
    async with serving(server_host_keys=[(HOST_KEY, foreign)]) as to:
        with pytest.raises(HostKeyRefused, match="certificate is not accepted: "):
            await connect(replace(to, host_keys=host_keys))
