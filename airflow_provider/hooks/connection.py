"""What a ``managed_cluster`` connection says, checked."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider import settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.infra.local import LocalInfra

DEFAULT_LEASE_SECONDS = 3600.0
DEFAULT_UNREACHABLE_SECONDS = 600.0

_KEYS = ("infra", "root", "lease_seconds", "unreachable_timeout")


@dataclass(frozen=True)
class ClusterSettings:
    """Where clusters come from.

    Attributes:
        infra: Kind of infra; this version has ``local``.
        root: Folder of local clusters; by default ``managed_jobs/clusters`` below ``AIRFLOW_HOME``.
        lease_seconds: How long a cluster lives without hearing from a controller.
        unreachable_timeout: Seconds without contact after which a cluster counts as lost.
    """

    infra: str
    root: Path
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    unreachable_timeout: float = DEFAULT_UNREACHABLE_SECONDS

    @classmethod
    def from_extra(cls, conn_id: str, extra: Mapping[str, object]) -> ClusterSettings:
        """Read the extra field of a connection.

        Raises:
            ValueError: a key or value is not acceptable; the text names connection, key and remedy.
        """
        for key in extra:
            if key not in _KEYS:
                close = get_close_matches(key, _KEYS, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_KEYS)}"
                raise ValueError(f"connection {conn_id}: unknown key {key!r} in extra; {hint}")
        infra = extra.get("infra") or "local"
        if infra != "local":
            raise ValueError(
                f"connection {conn_id}: infra {infra!r} is not supported yet (this version has: local)"
            )
        root = extra.get("root")
        return cls(
            infra="local",
            root=Path(str(root)).expanduser() if root else settings.home() / "clusters",
            lease_seconds=_seconds(conn_id, extra, "lease_seconds", DEFAULT_LEASE_SECONDS),
            unreachable_timeout=_seconds(conn_id, extra, "unreachable_timeout", DEFAULT_UNREACHABLE_SECONDS),
        )

    def make_infra(self) -> LocalInfra:
        """Return the infra that these settings describe."""
        from airflow_provider.runtime.infra.local import LocalInfra

        return LocalInfra(self.root, lease_seconds=self.lease_seconds)


def _seconds(conn_id: str, extra: Mapping[str, object], key: str, default: float) -> float:
    value = extra.get(key)
    if value is None or value == "":
        return default
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"connection {conn_id}: {key} is {value!r}; it must be a positive number of seconds")
    return seconds
