"""The ``[managed_jobs]`` section of Airflow's configuration, and what it leads to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import conf

if TYPE_CHECKING:
    from airflow_provider.runtime.files.blobs import BlobStore
    from airflow_provider.runtime.state import StateStore

SECTION = "managed_jobs"


def home() -> Path:
    """Return the provider's folder below ``AIRFLOW_HOME``, where everything lies that has no other place."""
    return Path(os.path.expandvars(os.environ.get("AIRFLOW_HOME", "~/airflow"))).expanduser() / "managed_jobs"


def database_url(*, masked: bool = False) -> str:
    """Return the database URL of the state store; ``masked``: without its password, for messages."""
    url = conf.get(SECTION, "database_url", fallback="") or f"sqlite:///{home() / 'state.db'}"
    if masked:
        from sqlalchemy.engine import make_url

        return make_url(url).render_as_string(hide_password=True)
    return url


def state_store() -> StateStore:
    """Return the state store."""
    from airflow_provider.runtime.state import StateStore

    return StateStore.connect(database_url())


def blob_store() -> BlobStore:
    """Return the blob store."""
    from airflow_provider.runtime.files.blobs import BlobStore

    url = conf.get(SECTION, "blob_path", fallback="")
    if not url:
        return BlobStore.local(home() / "blobs")
    from airflow.sdk import ObjectStoragePath

    path = ObjectStoragePath(url)
    return BlobStore(path.fs, path.path)
