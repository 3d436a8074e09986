"""Private keys as people have them: pasted into a form, escaped in a variable, or in a file.

Whatever is wrong with a key is said in words, and the key itself never is. Nothing is written anywhere.
"""

from __future__ import annotations

import os
import re
import stat
import textwrap
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from airflow_provider.runtime.transport.ssh.errors import BadKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.transport.ssh.target import Identity

_PRIVATE = re.compile(
    r"-----\s*BEGIN\s+(?P<label>(?:[A-Z0-9]+\s+)*PRIVATE\s+KEY)\s*-----(?P<body>.*?)"
    r"-----\s*END\s+(?:[A-Z0-9]+\s+)*PRIVATE\s+KEY\s*-----",
    re.DOTALL,
)
_PRIVATE_BEGINS = re.compile(r"BEGIN\s+(?:[A-Z0-9]+\s+)*PRIVATE\s+KEY")
# The headers of an encrypted key in the old format, which must stay apart from the key when newlines were lost.
_HEADERS = re.compile(
    r"\s*Proc-Type:\s*4,ENCRYPTED\s*DEK-Info:\s*(DES-[A-Z0-9-]+,[0-9A-Fa-f]{16}|[A-Z0-9-]+,[0-9A-Fa-f]{32})\s*"
)
_PUBLIC = re.compile(r"\A\S*\s*(?:ssh-|ecdsa-sha2-|sk-(?:ssh|ecdsa)-)[\w.@-]+\s+AAAA")
_PATH = re.compile(r"\A(?:~|\.{0,2}/|[A-Za-z]:\\|file:)?[\w.@ /\\-]{1,255}\Z")
_BARE_KEY = re.compile(r"\A(?:b3BlbnNzaC1rZXkt|MI[A-P])[A-Za-z0-9+/=\s]{60,}\Z")

_WHOLE = "Paste the private key whole, from -----BEGIN to the end of the -----END line"
_NEW_KEY = "Make a new key: ssh-keygen -t ed25519"


@dataclass(frozen=True)
class LoadedKey:
    """A private key that is ready to log in with.

    Attributes:
        source: Where it is from, for messages.
        key: The key, decrypted.
        certificate: Its OpenSSH certificate.
    """

    source: str
    key: asyncssh.SSHKey = field(repr=False)
    certificate: asyncssh.SSHCertificate | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """The type: ``ssh-ed25519``."""
        return self.key.get_algorithm()

    @property
    def fingerprint(self) -> str:
        """``SHA256:...``, as ``ssh-keygen -l`` and the log of sshd show it."""
        return self.key.get_fingerprint()

    def pairs(self) -> Sequence[asyncssh.SSHKeyPair]:
        """Return what is offered to a server, in order: the certificate if there is one, then the bare key."""
        certificates = [self.certificate] if self.certificate else []
        return asyncssh.load_keypairs([self.key], certlist=certificates)

    def __str__(self) -> str:
        return f"{self.source} ({self.kind} {self.fingerprint})"


def load_identity(identity: Identity) -> LoadedKey:
    """Read, repair and decrypt a private key. May take a tenth of a second: keep it away from an event loop.

    Keys that a form or a variable has mangled are put right: escaped or lost newlines, Windows line ends, quotes.

    Raises:
        BadKey: the key cannot be used; says which one, why, and the remedy.
    """
    source = identity.source
    text = identity.text
    if text is None and identity.path is not None:
        path = Path(identity.path).expanduser()
        source = f"{source}, file {path}"
        text = _read(source, path)
    if text is None:
        raise BadKey(f"{source}: there is no private key")
    with _loading:
        key = _load(source, text, identity.passphrase or None)
    certificate = None
    if identity.certificate:
        certificate = _load_certificate(source, identity.certificate, key)
    return LoadedKey(source, key, certificate)


def normalise(source: str, text: str) -> str:
    """Return a private key in the form that its format asks for.

    Raises:
        BadKey: it is no private key; says what it looks like.
    """
    text = text.replace("\ufeff", "")
    # No format of keys has a backslash in it: any number of them before `n` or `r` was meant as a line's end.
    text = re.sub(r"\\+(?:r(?:\\+n)?|n)", "\n", text).replace("\\\n", "\n")
    text = text.strip().strip("\"'`").strip()
    found = _PRIVATE.search(text)
    if found is None:
        raise BadKey(f"{source}: {_what_instead(text)}")
    label = " ".join(found["label"].split())
    body, headers = found["body"], ""
    if encrypted := _HEADERS.match(body):
        headers = f"Proc-Type: 4,ENCRYPTED\nDEK-Info: {encrypted[1]}\n\n"
        body = body[encrypted.end() :]
    body = "".join(body.split())
    if not re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", body):
        raise BadKey(
            f"{source}: the private key is damaged: between its first and last line is no base64. {_WHOLE}"
        )
    lines = "\n".join(textwrap.wrap(body, 64))
    return f"-----BEGIN {label}-----\n{headers}{lines}\n-----END {label}-----\n"


def _what_instead(text: str) -> str:
    """Say what a text is that is no private key."""
    if not text:
        return "the private key is empty"
    if text.startswith("PuTTY-User-Key-File"):
        return (
            "this is a key of PuTTY (.ppk), which OpenSSH does not know. "
            "Convert it: puttygen key.ppk -O private-openssh -o key"
        )
    if _PRIVATE_BEGINS.search(text):
        return f"the private key is cut short: its last line (-----END ...) is missing. {_WHOLE}"
    if "-cert-v01@openssh.com" in text or "BEGIN CERTIFICATE" in text:
        return "this is a certificate, not a private key. Give the private key that it belongs to"
    if _PUBLIC.search(text) or "PUBLIC KEY" in text:
        return "this is a public key. Give the private key that it belongs to (the file without .pub)"
    if _BARE_KEY.match(text):
        return f"the first and last line of the private key (-----BEGIN ... and -----END ...) are missing. {_WHOLE}"
    if _PATH.match(text):
        return "this looks like a file path, and the text of a private key is asked for. Paste the file's content"
    return f"this is no private key: it has no line -----BEGIN ... PRIVATE KEY-----. {_WHOLE}"


def _read(source: str, path: Path) -> str:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            # As ssh does it: a key of ours that others can read is not used; a mounted secret of root's may be.
            if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise BadKey(f"{source}: others can read it (mode {mode:04o}). Do: chmod 600 {path}")
            return file.read().decode("ascii")
    except FileNotFoundError:
        raise BadKey(f"{source}: there is no such file on this machine") from None
    except OSError as error:
        raise BadKey(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BadKey(f"{source}: this is no private key in OpenSSH's or PEM format: it is not text") from None


_loading = threading.Lock()
"""Many connections that begin at once with one key decrypt it once, and do not take all processors for that."""


@lru_cache(maxsize=256)
def _load(source: str, text: str, passphrase: str | None) -> asyncssh.SSHKey:
    """Return the key; kept in memory, since decrypting is slow by design and every reconnect would pay for it."""
    pem = normalise(source, text)
    try:
        key = asyncssh.import_private_key(pem)
    except asyncssh.KeyImportError as error:
        if not str(error).startswith("Passphrase"):
            raise BadKey(f"{source}: {_reason(str(error))}") from None
        if passphrase is None:
            raise BadKey(f"{source}: passphrase missing: the private key is encrypted") from None
        key = _decrypt(source, pem, passphrase)
    kind = key.get_algorithm()
    if kind.startswith(("sk-", "webauthn-")):
        raise BadKey(
            f"{source}: unsupported type {kind}: the key is in a hardware token, which somebody must touch. "
            "Use a key without one, such as ssh-keygen -t ed25519 makes"
        )
    if kind == "ssh-dss":
        raise BadKey(f"{source}: unsupported type {kind} (DSA): no current sshd accepts it. {_NEW_KEY}")
    return key


def _decrypt(source: str, pem: str, passphrase: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(pem, passphrase)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        text = str(error)
    if "bcrypt" in text or "cipher" in text or "Unknown" in text or "encryption params" in text:
        raise BadKey(f"{source}: the private key cannot be decrypted: {text}")
    # A wrong passphrase yields noise, and so any complaint about the content means the same.
    raise BadKey(f"{source}: wrong passphrase (or the private key is damaged)")


def _reason(text: str) -> str:
    if "Unknown" in text or "Unrecognized" in text or "Unsupported" in text:
        return f"unsupported type of private key ({text}). {_NEW_KEY}"
    return f"the private key is damaged or cut short ({text}). {_WHOLE}"


def _load_certificate(source: str, text: str, key: asyncssh.SSHKey) -> asyncssh.SSHCertificate:
    try:
        certificate = asyncssh.import_certificate(" ".join(text.strip().strip("\"'").split()))
    except asyncssh.KeyImportError:
        raise BadKey(
            f"{source}: its certificate is none in OpenSSH's format (one line, ssh-...-cert-v01@openssh.com AAAA...)"
        ) from None
    try:
        asyncssh.load_keypairs([(key, certificate)])
    except ValueError:
        raise BadKey(f"{source}: its certificate belongs to another key") from None
    return certificate
