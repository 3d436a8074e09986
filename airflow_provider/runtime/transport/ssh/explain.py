"""What a failure of asyncssh's means, in words and in our errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

from airflow_provider.runtime.transport.ssh.errors import SshError, SshRefused, SshUnreachable

if TYPE_CHECKING:
    from airflow_provider.runtime.transport.ssh.hostkeys import HostKeyCheck
    from airflow_provider.runtime.transport.ssh.login import Client
    from airflow_provider.runtime.transport.ssh.target import SshTarget


def explain(target: SshTarget, client: Client, check: HostKeyCheck, error: Exception) -> SshError:
    """Return the error to raise for a failed attempt."""
    reason = str(error) or type(error).__name__
    if isinstance(error, asyncssh.ChannelOpenError):
        return _not_let_through(target, error)
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return check.explain(reason)
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return SshRefused(f"{target}: it has no algorithm in common with us: {reason}")
    if isinstance(error, asyncssh.PermissionDenied):
        return SshRefused(f"{target}: it does not let us in. {_tried(target, client)}")
    if isinstance(error, (asyncssh.ConnectionLost, OSError)):
        return SshUnreachable(f"{target}: {_closed(client)}{_unless_plain(reason)}")
    if isinstance(error, asyncssh.DisconnectError):
        if not client.greeted:
            return SshRefused(f"{target}: what answers there is no SSH server of today: {reason}")
        # A server that has had enough of us calls that a protocol error.
        if client.phase == "logging in" and not isinstance(error, asyncssh.MACError):
            return SshRefused(f"{target}: it has ended the login: {reason}. {_tried(target, client)}")
        return SshUnreachable(f"{target}: the connection broke while {client.phase}: {reason}")
    return SshRefused(f"{target}: {reason}")


def _not_let_through(target: SshTarget, error: asyncssh.ChannelOpenError) -> SshError:
    if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
        return SshRefused(
            f"{target}: the jump host {target.jump} does not let us through ({error.reason}): "
            "its sshd needs AllowTcpForwarding yes, and PermitOpen for this host if that is set"
        )
    return SshUnreachable(f"{target}: it is not reached from the jump host {target.jump}: {error.reason}")


def _tried(target: SshTarget, client: Client) -> str:
    if client.tried:
        said = f"Refused: {'; '.join(client.tried)}."
    elif target.identities or target.password or target.use_agent:
        said = "It takes none of the keys and passwords that were given."
    else:
        said = "No key and no password was given."
    if client.methods:
        said += f" It takes: {', '.join(client.methods)}."
    if "publickey" in client.methods and target.identities:
        said += f" For a key, its public half must be in ~/.ssh/authorized_keys of {target.user} there."
    return said


def _closed(client: Client) -> str:
    if not client.greeted and client.has_proxy:
        return "the proxy command ended, or closed its output, before the host greeted"
    if not client.greeted:
        return (
            "it closed the connection before it greeted. Too many connections may be starting there at once "
            "(MaxStartups of its sshd), it may turn our address away, or it is no SSH server"
        )
    return f"it closed the connection while {client.phase}"


def _unless_plain(reason: str) -> str:
    return "" if reason == "Connection lost" else f" ({reason})"
