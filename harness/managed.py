"""Where an Airflow home keeps its managed jobs, and what is left of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.processes import describe, processes_of
from harness.waiting import poll

if TYPE_CHECKING:
    from airflow_provider.runtime.infra.local import LocalInfra
    from airflow_provider.runtime.state import StateStore


@dataclass(frozen=True)
class ManagedJobs:
    """The state store, local clusters and blob store below an AIRFLOW_HOME, all where they are by default."""

    home: Path

    @property
    def folder(self) -> Path:
        """The folder that holds all of it."""
        return self.home / "managed_jobs"

    @property
    def clusters(self) -> Path:
        """The folder with one folder per local cluster."""
        return self.folder / "clusters"

    @property
    def blobs(self) -> Path:
        """The folder of the blob store."""
        return self.folder / "blobs"

    def store(self) -> StateStore:
        """Open the state store."""
        # Imported late: the harness also runs an Airflow that has nothing to do with the provider.
        from airflow_provider.runtime.state import StateStore

        return StateStore.connect(f"sqlite:///{self.folder}/state.db")

    def infra(self) -> LocalInfra:
        """Return the infra whose clusters these are, for preempting one."""
        from airflow_provider.runtime.infra.local import LocalInfra

        return LocalInfra(root=self.clusters)

    def leftovers(self) -> list[str]:
        """Return what is left of finished tasks, one line each: processes, cluster folders, blobs."""
        left = [f"process{line}" for line in describe(processes_of(self.clusters)).splitlines()]
        if self.clusters.exists():
            left += [f"cluster folder {path}" for path in sorted(self.clusters.iterdir())]
        left += [f"blob {path}" for path in sorted(self.blobs.rglob("*")) if path.is_file()]
        return left

    def wait_until_clean(self, timeout: float) -> list[str]:
        """Wait up to `timeout` seconds for everything to be gone; return what is left then."""
        left: list[str] = []

        def clean() -> bool:
            left[:] = self.leftovers()
            return not left

        try:
            poll(clean, timeout=timeout, what="clusters to be gone")
        except TimeoutError:
            return left
        return []
