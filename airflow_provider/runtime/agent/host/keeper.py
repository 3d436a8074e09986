"""Keeping the host for the cluster as long as its agent serves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.host.clusters import read_record
from airflow_provider.runtime.agent.host.hostlease import Claim
from airflow_provider.runtime.agent.host.problem import HostProblem
from airflow_provider.runtime.agent.waiting import happens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_provider.runtime.agent.host.hostlease import Held, HostLease

log = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 60.0
_PARTS = 3
"""How often the lease is renewed in its own length."""


class HostKeeper:
    """Renews the host's lease, from its making until it is closed. Belongs to one event loop.

    Where the lease is over and somebody else has the host, which takes an agent that was frozen for long, the host is
    lost for good.

    Args:
        lease: The host's lease; None: nobody leases the host, and it is never lost.
        root: The cluster's directory.
        instance: The cluster's identity.
        seconds: Returns for how long to keep the host from now on.
        on_lost: Called once, with the reason, when somebody else has the host.

    Attributes:
        lost: Who has the host, in words; empty as long as it is the cluster's.
    """

    def __init__(
        self,
        lease: HostLease | None,
        *,
        root: Path,
        instance: str,
        seconds: Callable[[], float],
        on_lost: Callable[[str], None],
    ) -> None:
        self._root = root
        self._instance = instance
        self._seconds = seconds
        self._closing = asyncio.Event()
        self._on_lost = on_lost
        self.lost = ""
        self._work = None if lease is None else asyncio.create_task(self._keep(lease))

    async def close(self) -> None:
        """Renew no more; what is being renewed is waited for."""
        self._closing.set()
        if self._work is not None:
            await self._work

    async def _keep(self, lease: HostLease) -> None:
        while not self._closing.is_set():
            try:
                held = await asyncio.to_thread(self._renew, lease)
            except (HostProblem, OSError) as error:
                log.error("the host's lease is not renewed: %s", error)
            else:
                if held is not None:
                    self.lost = (
                        f"the host's lease was over and {held.claim.site} has the host now "
                        f"(cluster {held.claim.cluster} of account {held.account})"
                    )
                    self._on_lost(self.lost)
                    return
            await happens(self._closing, min(self._seconds() / _PARTS, _LONGEST_PAUSE_SECONDS))

    def _renew(self, lease: HostLease) -> Held | None:
        record = read_record(self._root)
        if record is None or record.instance != self._instance:
            return None  # removed by hand or being removed: nothing to keep the host for
        return lease.take(Claim(record.name, self._instance, record.site, str(self._root)), self._seconds())
