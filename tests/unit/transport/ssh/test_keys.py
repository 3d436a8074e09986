"""Private keys work however they were pasted, or it is said what is wrong with them; never what is in them."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider.runtime.transport.ssh.errors import BadKey
from airflow_provider.runtime.transport.ssh.keys import LoadedKey, load_identity
from airflow_provider.runtime.transport.ssh.target import Identity

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen (openssh-client)")

SOURCE = "connection gpu, private_key"
PLAIN, SECRET, UNICODE = "", "open sesame", "Öffne dich, 芝麻"

KINDS = {
    "rsa-pem": ("rsa", "2048", "PEM"),
    "rsa-openssh": ("rsa", "2048", "RFC4716"),
    "rsa-pkcs8": ("rsa", "2048", "PKCS8"),
    "ecdsa-256": ("ecdsa", "256", "RFC4716"),
    "ecdsa-521": ("ecdsa", "521", "RFC4716"),
    "ecdsa-pem": ("ecdsa", "256", "PEM"),
    "ed25519": ("ed25519", "256", "RFC4716"),
}
"""Type, bits, and format; the one that ssh-keygen calls RFC4716 is OpenSSH's own."""


class Made:
    """A key pair in a file, made by ssh-keygen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.public = path.with_name(path.name + ".pub").read_text()

    @property
    def fingerprint(self) -> str:
        return keygen("-l", "-f", f"{self.path}.pub").split()[1]


def keygen(*words: str) -> str:
    done = subprocess.run(["ssh-keygen", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    folder = tmp_path_factory.mktemp("keys")
    made: dict[tuple[str, str], Made] = {}

    def make(kind: str, passphrase: str = PLAIN) -> Made:
        if (kind, passphrase) not in made:
            algorithm, bits, form = KINDS[kind]
            plain, path = folder / f"{algorithm}-{bits}", folder / f"{len(made)}"
            if not plain.exists():
                keygen("-q", "-t", algorithm, "-b", bits, "-N", "", "-C", "somebody", "-f", str(plain))
            shutil.copy(plain, path)
            shutil.copy(f"{plain}.pub", f"{path}.pub")
            # One round of hashing: these passphrases guard nothing, and decrypting is slow by design.
            keygen("-q", "-p", "-P", "", "-N", passphrase, "-m", form, "-a", "1", "-f", str(path))
            made[kind, passphrase] = Made(path)
        return made[kind, passphrase]

    return make


def load(text: str | None = None, *, path: Path | None = None, **more: str | None) -> LoadedKey:
    return load_identity(Identity(SOURCE, text=text, path=str(path) if path else None, **more))


def refusal(text: str | None = None, *, path: Path | None = None, **more: str | None) -> str:
    """Return why a key is refused, having made sure that nothing of it is shown."""
    with pytest.raises(BadKey) as caught:
        load(text, path=path, **more)
    said = str(caught.value)
    assert said.startswith(SOURCE)
    shown = "".join(traceback.format_exception(caught.value))
    content = (
        text if text is not None else path.read_text(errors="replace") if path and path.is_file() else ""
    )
    for line in content.replace("\\n", "\n").split():
        assert len(line) < 20 or line not in shown
    return said


# Every type, with and without a passphrase, pasted and in a file.


@pytest.mark.parametrize("where", ["inline", "file"])
@pytest.mark.parametrize("passphrase", [PLAIN, SECRET, UNICODE], ids=["none", "secret", "unicode"])
@pytest.mark.parametrize("kind", KINDS)
def test_k62_the_right_passphrase_opens_it(make, kind: str, passphrase: str, where: str) -> None:
    made = make(kind, passphrase)
    place = {"text": made.text} if where == "inline" else {"path": made.path}
    assert load(**place, passphrase=passphrase).fingerprint == made.fingerprint


@pytest.mark.parametrize("where", ["inline", "file"])
@pytest.mark.parametrize("passphrase", [SECRET, UNICODE], ids=["secret", "unicode"])
@pytest.mark.parametrize("kind", KINDS)
def test_k62_another_passphrase_does_not(make, kind: str, passphrase: str, where: str) -> None:
    made = make(kind, passphrase)
    place = {"text": made.text} if where == "inline" else {"path": made.path}
    assert "wrong passphrase" in refusal(**place, passphrase="nonsense")
    assert "passphrase missing" in refusal(**place)
    assert "passphrase missing" in refusal(**place, passphrase="")


@pytest.mark.parametrize("kind", KINDS)
def test_a_passphrase_that_is_not_needed_does_no_harm(make, kind: str) -> None:
    made = make(kind)
    assert load(made.text, passphrase=SECRET).fingerprint == made.fingerprint


# What forms and variables do to a key.

MANGLED = {
    "as it is": lambda text: text,
    "escaped newlines": lambda text: text.replace("\n", r"\n"),
    "doubly escaped newlines": lambda text: text.replace("\n", r"\\n"),
    "escaped four times": lambda text: text.replace("\n", r"\\\\n"),
    "escaped Windows newlines": lambda text: text.replace("\n", r"\r\n"),
    "Windows newlines": lambda text: text.replace("\n", "\r\n"),
    "old Mac newlines": lambda text: text.replace("\n", "\r"),
    "spaces for newlines": lambda text: text.replace("\n", " "),
    "tabs for newlines": lambda text: text.replace("\n", "\t"),
    "no newline at the end": lambda text: text.rstrip("\n"),
    "no newline at all": lambda text: text.replace("\n", ""),
    "backslash before newlines": lambda text: text.replace("\n", "\\\n"),
    "both newlines and escapes": lambda text: text.replace("\n", "\\n\n"),
    "quotes": lambda text: f'"{text}"',
    "quotes inside quotes": lambda text: "'\"" + text.replace("\n", r"\n") + "\"'",
    "blanks around": lambda text: f"\n  {text}\n\t ",
    "indented": lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
    "byte order mark": lambda text: "\ufeff" + text,
    "text around": lambda text: f"my key:\n{text}\nend of file\n",
    "empty lines": lambda text: text.replace("\n", "\n\n"),
}


@pytest.mark.parametrize("form", MANGLED)
@pytest.mark.parametrize("kind", ["ed25519", "rsa-pem"])
@pytest.mark.parametrize("passphrase", [PLAIN, SECRET], ids=["open", "encrypted"])
def test_k40_a_mangled_key_is_put_right(make, kind: str, passphrase: str, form: str) -> None:
    made = make(kind, passphrase)
    assert load(MANGLED[form](made.text), passphrase=passphrase).fingerprint == made.fingerprint


def middle_removed(text: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[:2], *lines[-1:]])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda made: "", "empty"),
        (lambda made: " \n", "empty"),
        (lambda made: str(made.path), "looks like a file path"),
        (lambda made: "~/.ssh/id_ed25519", "looks like a file path"),
        (lambda made: "id_rsa", "looks like a file path"),
        (lambda made: r"C:\Users\me\key", "looks like a file path"),
        (lambda made: made.public, "this is a public key"),
        (lambda made: " ".join(made.public.split()[:2]), "this is a public key"),
        (lambda made: keygen("-e", "-f", str(made.path)), "this is a public key"),
        (lambda made: keygen("-e", "-m", "PKCS8", "-f", str(made.path)), "this is a public key"),
        (
            lambda made: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
            "this is a certificate",
        ),
        (lambda made: "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n", "puttygen key.ppk"),
        (lambda made: "\n".join(made.text.splitlines()[:-1]), "cut short"),
        (lambda made: made.text[:100], "cut short"),
        (lambda made: middle_removed(made.text), "damaged or cut short"),
        (lambda made: made.text.replace("\nM", "\n*").replace("\nb", "\n*"), "damaged"),
        (lambda made: "".join(made.text.splitlines()[1:-1]), "first and last line"),
        (lambda made: "correct horse, battery & staple", "no private key"),
    ],
)
@pytest.mark.parametrize("kind", ["ecdsa-256", "rsa-pem"])
def test_k40_what_is_no_private_key_is_named(
    make, kind: str, wrong: Callable[[Made], str], said: str
) -> None:
    assert said in refusal(wrong(make(kind)))


def test_k62_types_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    assert "unsupported type sk-ssh-ed25519@openssh.com" in refusal(hardware_key())
    dsa = tmp_path / "dsa"
    made = subprocess.run(["ssh-keygen", "-q", "-t", "dsa", "-N", "", "-f", str(dsa)], capture_output=True)
    if made.returncode == 0:  # OpenSSH 10 knows it no more
        assert "unsupported type ssh-dss" in refusal(path=dsa)


def hardware_key() -> str:
    """Return a private key file as ``ssh-keygen -t ed25519-sk`` writes it: the secret is in the token."""

    def string(data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + data

    public = string(b"sk-ssh-ed25519@openssh.com") + string(bytes(range(32))) + string(b"ssh:")
    private = struct.pack(">II", 7, 7) + public + b"\x01" + string(b"handle") + string(b"") + string(b"token")
    private += bytes(range(1, 1 + -len(private) % 8))
    blob = b"openssh-key-v1\0" + string(b"none") + string(b"none") + string(b"") + struct.pack(">I", 1)
    blob += string(public) + string(private)
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{base64.b64encode(blob).decode()}\n-----END OPENSSH PRIVATE KEY-----\n"


# Files.


def test_k99_what_is_wrong_with_a_file_is_said(make, tmp_path: Path) -> None:
    assert "no such file" in refusal(path=tmp_path / "missing")
    assert "cannot be read: Is a directory" in refusal(path=tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    binary.chmod(0o600)
    assert "not text" in refusal(path=binary)
    open_to_all = tmp_path / "open"
    shutil.copy(make("ed25519").path, open_to_all)
    open_to_all.chmod(0o644)
    assert f"mode 0644). Do: chmod 600 {open_to_all}" in refusal(path=open_to_all)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_mounted_secret_of_another_account_may_be_readable_as_for_ssh(make, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    shutil.copy(make("ed25519").path, mounted)
    os.chown(mounted, 12345, 0)
    mounted.chmod(0o440)
    assert load(path=mounted).fingerprint == make("ed25519").fingerprint


def test_the_home_of_the_process_is_meant_by_a_tilde(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(make("ed25519").path, tmp_path / "key")
    assert load(path=Path("~/key")).fingerprint == make("ed25519").fingerprint


def test_neither_text_nor_file_is_an_error() -> None:
    assert "there is no private key" in refusal()


def test_k50_loading_leaves_no_files(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    load(make("rsa-openssh", SECRET).text, passphrase=SECRET)
    assert list(tmp_path.iterdir()) == []


def test_a_key_shows_nothing_of_itself(make) -> None:
    made = make("ed25519", SECRET)
    identity = Identity(SOURCE, text=made.text, passphrase=SECRET, certificate="secret certificate")
    loaded = load(made.text, passphrase=SECRET)
    for shown in (repr(identity), repr(loaded), str(loaded)):
        assert SECRET not in shown
        assert "secret certificate" not in shown
        assert not any(line in shown for line in made.text.splitlines())
    assert str(loaded) == f"{SOURCE} (ssh-ed25519 {made.fingerprint})"


# Certificates.


@pytest.fixture(scope="session")
def certificate(make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the certificate of a key, signed by ssh-keygen."""

    def certificate(kind: str, passphrase: str = PLAIN) -> str:
        public = tmp_path_factory.mktemp("certified") / "key.pub"
        public.write_text(make(kind, passphrase).public)
        keygen("-q", "-s", str(make("ecdsa-521").path), "-I", "who", "-n", "root", str(public))
        return (public.parent / "key-cert.pub").read_text()

    return certificate


@pytest.mark.parametrize("passphrase", [PLAIN, SECRET], ids=["open", "encrypted"])
@pytest.mark.parametrize("kind", ["ed25519", "rsa-pem", "ecdsa-256"])
def test_a_certificate_is_offered_before_its_bare_key(make, certificate, kind: str, passphrase: str) -> None:
    text = certificate(kind, passphrase)
    loaded = load(make(kind, passphrase).text, passphrase=passphrase, certificate=text)
    bare = loaded.kind
    assert [pair.get_algorithm() for pair in loaded.pairs()] == [f"{bare}-cert-v01@openssh.com", bare]
    assert [pair.get_algorithm() for pair in load(make("ed25519").text).pairs()] == ["ssh-ed25519"]


def test_a_wrong_certificate_is_refused(make, certificate) -> None:
    other = certificate("ecdsa-256")
    assert "certificate belongs to another key" in refusal(make("ed25519").text, certificate=other)
    assert "OpenSSH's format" in refusal(make("ed25519").text, certificate="nonsense")
    assert "OpenSSH's format" in refusal(make("ed25519").text, certificate=make("ed25519").public)
    assert "this is a certificate" in refusal(other)
