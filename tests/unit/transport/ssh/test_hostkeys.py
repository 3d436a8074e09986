"""A host is the right one if it shows a key that is known of it; what is known is read as ssh reads it."""

from __future__ import annotations

import logging
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from airflow_provider.runtime.transport.ssh.errors import HostKeyRefused, SshRefused
from airflow_provider.runtime.transport.ssh.hostkeys import HostKeyCheck, public_text
from airflow_provider.runtime.transport.ssh.target import HostKeys, SshTarget

ED25519, OTHER = (asyncssh.generate_private_key("ssh-ed25519").convert_to_public() for _ in range(2))
ECDSA = asyncssh.generate_private_key("ecdsa-sha2-nistp384").convert_to_public()
RSA = asyncssh.generate_private_key("ssh-rsa", key_size=2048).convert_to_public()

TARGET = SshTarget(name="one", host="One.example.com", user="me")


def line(host: str, key: asyncssh.SSHKey, marker: str = "") -> str:
    return f"{marker} {host} {public_text(key)} a remark\n".lstrip()


@pytest.fixture
def check(tmp_path: Path):
    def check(content: str, target: SshTarget = TARGET, **policy: object) -> HostKeyCheck:
        path = tmp_path / "known_hosts"
        path.write_text(content)
        host_keys = HostKeys(known_hosts=(str(path), str(tmp_path / "missing")))
        return HostKeyCheck(replace(target, host_keys=replace(host_keys, **policy)))

    return check


def hashed(content: str, folder: Path) -> str:
    """Return lines with their hosts hashed, by ssh-keygen."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen (package openssh-client)")
    path = folder / "to_hash"
    path.write_text(content)
    subprocess.run(["ssh-keygen", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "example" not in path.read_text()
    return path.read_text()


def refusal(check: HostKeyCheck, key: asyncssh.SSHKey) -> str:
    assert not check.accepts(key)
    assert isinstance(check.refusal, HostKeyRefused)
    return str(check.refusal)


@pytest.mark.parametrize(
    "host",
    [
        "one.example.com",
        "*.example.com",
        "?ne.example.com",
        "a,one.example.com,b",
        "ONE.Example.com",
        "*,!two.example.com",
    ],
)
def test_a_known_key_is_accepted(check, host: str) -> None:
    assert check(line(host, ED25519)).accepts(ED25519)


def test_k64_hashed_names_are_found(check, tmp_path: Path) -> None:
    found = check(hashed(line("one.example.com", ED25519) + line("[one.example.com]:2222", OTHER), tmp_path))
    assert found.accepts(ED25519)
    assert not found.accepts(OTHER)
    with_port = check(hashed(line("[one.example.com]:2222", OTHER), tmp_path), replace(TARGET, port=2222))
    assert with_port.accepts(OTHER)


@pytest.mark.parametrize("host", ["two.example.com", "*,!one.example.com", "[one.example.com]:2222"])
def test_an_unknown_host_is_refused_with_the_way_out(check, host: str) -> None:
    found = check(line(host, ED25519))
    said = refusal(found, ED25519)
    assert said.startswith("one (me@One.example.com:22): ")
    assert f"ssh-ed25519 {ED25519.get_fingerprint()}" in said
    assert "no key of it is known" in said
    assert "(ssh-keyscan One.example.com >> " in said
    assert "host_key_policy: trust_first" in said


def test_a_changed_key_is_refused_with_both_fingerprints(check) -> None:
    for trust_first in (False, True):
        found = check(
            line("one.example.com", ED25519) + line("one.example.com", ECDSA), trust_first=trust_first
        )
        said = refusal(found, OTHER)
        shown, expected = said.split("; expected: ")
        assert OTHER.get_fingerprint() in shown
        assert ED25519.get_fingerprint() in expected
        assert ECDSA.get_fingerprint() in expected
        assert "known_hosts" in expected
        assert "If the host was rebuilt" in expected
        assert "ssh-keygen -R one.example.com" in expected


def test_k64_several_keys_of_one_host_are_all_good_and_asked_for_first(check) -> None:
    found = check(line("one.example.com", RSA) + line("one.example.com", ECDSA))
    assert found.accepts(RSA)
    assert found.accepts(ECDSA)
    assert found.algorithms[:4] == ["rsa-sha2-512", "rsa-sha2-256", "ssh-rsa", "ecdsa-sha2-nistp384"]
    # The others follow: a host that has changed shows what it has, and both fingerprints can be told.
    assert set(found.algorithms) > {"ssh-ed25519", "ecdsa-sha2-nistp256"}


def test_k64_a_port_belongs_to_the_name(check) -> None:
    target = replace(TARGET, port=2222)
    found = check(line("[one.example.com]:2222", ED25519) + line("one.example.com", OTHER), target)
    assert found.accepts(ED25519)
    assert "ssh-keygen -R '[one.example.com]:2222'" in refusal(found, OTHER)


def test_a_key_without_a_port_counts_on_another_port_if_it_fits_and_proves_nothing_if_not(check) -> None:
    target = replace(TARGET, port=2222)
    assert check(line("one.example.com", ED25519), target).accepts(ED25519)
    assert "without the port" in refusal(check(line("one.example.com", ED25519), target), OTHER)
    assert check(line("one.example.com", ED25519), target, trust_first=True).accepts(OTHER)


def test_an_alias_is_looked_up_instead_of_the_address(check) -> None:
    target = replace(TARGET, host="10.0.0.1", port=2222)
    assert check(line("the-alias", ED25519), target, alias="the-alias").accepts(ED25519)
    assert not check(line("10.0.0.1", ED25519), target, alias="the-alias").accepts(ED25519)


def test_pinned_keys_alone_count(check) -> None:
    found = check(line("one.example.com", ED25519), pinned=(public_text(OTHER), f"one {public_text(ECDSA)}"))
    assert found.accepts(OTHER)
    assert found.accepts(ECDSA)
    said = refusal(found, ED25519)
    assert f"{OTHER.get_fingerprint()} or " in said
    assert "pinned for this host" in said
    assert "(host_key)" in said
    assert found.algorithms[:2] == ["ssh-ed25519", "ecdsa-sha2-nistp384"]


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 AAAA", "SHA256:abc", "nonsense words"])
def test_a_pinned_key_that_is_none_is_named(check, text: str) -> None:
    with pytest.raises(SshRefused, match=r"one .*the pinned host key .* is no public key"):
        check("", pinned=(text,))


def test_trust_on_first_use_accepts_a_stranger_only(check) -> None:
    assert check("", trust_first=True).accepts(ED25519)
    assert not check(line("one.example.com", OTHER), trust_first=True).accepts(ED25519)
    assert not check(line("one.example.com", OTHER, "@cert-authority"), trust_first=True).accepts(ED25519)
    assert not check(line("*", ED25519, "@revoked"), trust_first=True).accepts(ED25519)


def test_without_verification_asyncssh_is_told_to_ask_for_nothing(check) -> None:
    assert check(line("one.example.com", OTHER), verify=False).known_hosts is None
    assert check("", verify=True).known_hosts == ([], [], [])


def test_a_revoked_key_is_refused_though_it_is_known(check) -> None:
    found = check(line("one.example.com", ED25519) + line("*", ED25519, "@revoked"))
    said = refusal(found, ED25519)
    assert "marked @revoked" in said
    assert ED25519.get_fingerprint() in said
    # A key in a certificate is looked for by asyncssh.
    assert found.known_hosts == ([], [], [ED25519])
    later = check(line("*", ED25519, "@revoked"))
    assert "Marked @revoked in" in str(later.explain("Host key is revoked for host one"))


def test_an_authority_is_asked_for_its_signature(check) -> None:
    found = check(line("*.example.com", ECDSA, "@cert-authority"))
    assert found.accepts_authority(ECDSA)
    assert found.algorithms[0].endswith("-cert-v01@openssh.com")
    assert not found.accepts_authority(OTHER)
    assert OTHER.get_fingerprint() in str(found.refusal)
    assert ECDSA.get_fingerprint() in str(found.refusal)
    assert "one signed by" in refusal(found, ED25519)
    # Elsewhere certificates are not asked for: a stranger may have signed them.
    assert not any("cert" in name for name in check(line("one.example.com", OTHER)).algorithms)


def test_disabled_algorithms_are_not_asked_for(check) -> None:
    content = line("one.example.com", RSA) + line("*", ECDSA, "@cert-authority")
    target = replace(TARGET, disabled_algorithms=("ssh-rsa", "ssh-ed25519"))
    names = check(content, target).algorithms
    assert names[:2] == ["rsa-sha2-512", "rsa-sha2-256"]
    assert not {"ssh-rsa", "ssh-ed25519", "ssh-rsa-cert-v01@openssh.com"} & set(names)
    everything = replace(TARGET, disabled_algorithms=tuple(check("").algorithms))
    with pytest.raises(SshRefused, match="every algorithm for host keys is disabled"):
        _ = check("", everything).algorithms


def test_lines_that_make_no_sense_are_passed_over_with_a_warning(
    check, caplog: pytest.LogCaptureFixture
) -> None:
    nonsense = (
        "# a remark\n\none-word\n@strange one.example.com ssh-ed25519 AAAA\n|1|bad|hash ssh-ed25519 AAAA\n"
    )
    nonsense += "one.example.com ssh-future AAAA\n"
    with caplog.at_level(logging.WARNING):
        assert check(nonsense + line("one.example.com", ED25519)).accepts(ED25519)
    assert "line 3 makes no sense" in caplog.text
    assert "line 4 makes no sense" in caplog.text


def test_a_file_that_cannot_be_read_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = HostKeys(known_hosts=(str(tmp_path),))
    assert not HostKeyCheck(replace(TARGET, host_keys=policy)).accepts(ED25519)
    assert f"{tmp_path} cannot be read" in caplog.text


def test_k64_files_are_read_and_never_written(check, tmp_path: Path) -> None:
    found = check("", trust_first=True)
    before = (tmp_path / "known_hosts").stat()
    assert found.accepts(ED25519)
    assert (tmp_path / "known_hosts").stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in tmp_path.iterdir()] == ["known_hosts"]
