"""What this Airflow calls itself to others that use the same hosts."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from airflow.sdk import conf

_NOBODY_ELSE_KNOWS = frozenset({"", "localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - compared with only


def site_name() -> str:
    """Return the host and port of Airflow's base URL; where that is not known to others, the name of this host."""
    url = urlsplit(conf.get("api", "base_url", fallback=""))
    if (url.hostname or "") in _NOBODY_ELSE_KNOWS:
        return socket.gethostname()
    return url.netloc.rpartition("@")[2]
