"""Names of jobs as parts of paths."""

from __future__ import annotations

import hashlib
import re

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST = 60


def safe_name(name: str) -> str:
    """Return a name that is one harmless part of a path: ASCII, short, no leading dash or dot.

    Names that had to be changed end in a hash of the whole name, so different names stay different.
    """
    safe = _UNSAFE.sub("-", name).strip("-.")
    if safe and safe == name and len(safe) <= _LONGEST:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{safe[: _LONGEST - 9].rstrip('-.')}-{digest}".lstrip("-")
