"""Which algorithms we offer to a host: all that asyncssh offers, but the quick ones first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import asyncssh

from airflow_provider.runtime.transport.ssh.errors import SshRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.transport.ssh.target import SshTarget

_QUICK_EXCHANGES = ("curve25519-sha256", "curve25519-sha256@libssh.org")
_QUICK_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


@dataclass(frozen=True)
class Algorithms:
    """Names of algorithms, each list in the order of preference."""

    exchanges: tuple[str, ...]
    ciphers: tuple[str, ...]
    macs: tuple[str, ...]
    signatures: tuple[str, ...]


def algorithms_for(target: SshTarget) -> Algorithms:
    """Return what is offered to a target.

    Raises:
        SshRefused: it has disabled all algorithms of one sort.
    """
    offered = _offered()
    disabled = set(target.disabled_algorithms)

    def left(sort: str, names: tuple[str, ...]) -> tuple[str, ...]:
        kept = tuple(name for name in names if name not in disabled)
        if not kept:
            raise SshRefused(f"{target}: every algorithm for {sort} is disabled: {', '.join(names)}")
        return kept

    return Algorithms(
        exchanges=left("key exchanges", offered.exchanges),
        ciphers=left("encryption", offered.ciphers),
        macs=left("MACs", offered.macs),
        signatures=left("signatures", offered.signatures),
    )


@lru_cache(maxsize=1)
def _offered() -> Algorithms:
    defaults = asyncssh.SSHClientConnectionOptions(config=None, client_keys=None)
    exchanges = [name for name in _names(defaults.kex_algs) if not name.startswith("gss-")]
    return Algorithms(
        exchanges=tuple(dict.fromkeys((*_QUICK_EXCHANGES, *exchanges))),
        ciphers=tuple(dict.fromkeys((*_QUICK_CIPHERS, *_names(defaults.encryption_algs)))),
        macs=tuple(_names(defaults.mac_algs)),
        signatures=tuple(dict.fromkeys(_names(defaults.signature_algs))),
    )


def _names(algorithms: Sequence[bytes]) -> list[str]:
    return [name.decode() for name in algorithms]
