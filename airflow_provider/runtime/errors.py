"""Errors that more than one layer speaks of."""

from __future__ import annotations


class Superseded(Exception):
    """Somebody with a later claim controls the task or job now; the caller must let go and change nothing."""
