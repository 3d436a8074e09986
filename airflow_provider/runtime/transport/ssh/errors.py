"""Why a host cannot be talked to over SSH. Every text names the host, what is wrong and, where we know it, the remedy."""

from __future__ import annotations


class SshError(Exception):
    """The host cannot be talked to over SSH."""


class SshUnreachable(SshError):
    """Nothing answers, or the connection broke: says nothing about the host. Trying again may help."""


class SshRefused(SshError):
    """The host answers, and it will not let us in or we do not trust it: trying again at once is no use."""


class HostKeyRefused(SshRefused):
    """The host proved itself with a key that is not trusted; the text shows its fingerprint and the expected ones."""


class BadKey(SshRefused):
    """A private key that we were given cannot be used. Found before anything is sent; never shows the key."""


class BadConfig(SshRefused):
    """An OpenSSH configuration file cannot be used; the text names the file, the line and what is wrong."""
