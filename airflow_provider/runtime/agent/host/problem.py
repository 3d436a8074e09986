"""What keeps a host from being used: told to people, so it comes with what to do about it."""

from __future__ import annotations


class HostProblem(Exception):
    """An operation cannot be done on this host.

    Args:
        cause: What is wrong, with the path or the value.
        remedy: What somebody has to do.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy
