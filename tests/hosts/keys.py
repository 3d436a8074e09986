"""Keys of clients and hosts."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.machine import LabError, command

_SIZES = {"rsa": 2048, "ecdsa": 256}


@dataclass(frozen=True, kw_only=True)
class Key:
    """A private key in a file; the public one lies beside it. ``passphrase`` is empty unless it is encrypted."""

    path: Path
    passphrase: str = ""

    @property
    def public(self) -> str:
        """The public key as `authorized_keys` and `known_hosts` want it: type and key, no comment."""
        return " ".join(self.path.with_name(self.path.name + ".pub").read_text().split()[:2])


@dataclass(frozen=True, kw_only=True)
class ClientKeys:
    """What clients prove themselves with: one of each kind; hosts let in those that they were told of."""

    ed25519: Key
    ecdsa: Key
    rsa: Key
    encrypted: Key
    """An ed25519 key with a passphrase."""
    stranger: Key
    """A good key that no host lets in."""

    @classmethod
    def make(cls, directory: Path) -> ClientKeys:
        """Make all keys in a folder."""
        directory.mkdir(mode=0o700)
        kinds = {"ed25519": "ed25519", "ecdsa": "ecdsa", "rsa": "rsa"}
        kinds |= {"encrypted": "ed25519", "stranger": "ed25519"}
        keys = {
            name: Key(path=directory / name, passphrase="open sesame" if name == "encrypted" else "")
            for name in kinds
        }
        generate({key.path: kinds[name] for name, key in keys.items()}, keys["encrypted"])
        return cls(**keys)

    @property
    def welcome(self) -> list[Key]:
        """The keys that a host lets in unless told otherwise."""
        return [self.ed25519, self.ecdsa, self.rsa, self.encrypted]


def generate(wanted: dict[Path, str], encrypted: Key | None = None) -> None:
    """Make private keys of given types in files that do not exist, at the same time.

    Raises:
        LabError: a key cannot be made; with the reason.
    """
    running = []
    for path, kind in wanted.items():
        passphrase = encrypted.passphrase if encrypted and encrypted.path == path else ""
        words = [command("ssh-keygen"), "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
        words += ["-b", str(_SIZES[kind])] if kind in _SIZES else []
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.append(process)
    said = [(process.communicate()[0], process.returncode) for process in running]
    if failed := [text for text, code in said if code != 0]:
        raise LabError(f"ssh-keygen: {' '.join(failed)}")
