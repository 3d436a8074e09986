"""A task's local files, packed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.files.archive import pack
from airflow_provider.runtime.state import FileTreeRef

if TYPE_CHECKING:
    from airflow_provider.runtime.files.archive import Archive
    from airflow_provider.runtime.task import TaskSpec


def pack_files(spec: TaskSpec, scratch: str) -> list[tuple[Archive, FileTreeRef]]:
    """Pack the task's local files into ``scratch``; equal trees become one archive.

    Raises:
        PackError: something cannot be packed.
    """
    sources = dict(spec.file_mounts)
    if spec.workdir is not None:
        sources = {"~/sky_workdir": spec.workdir, **sources}
    packed = []
    for destination, source in sources.items():
        archive = pack(Path(source), Path(scratch))
        packed.append((archive, FileTreeRef(archive.digest, archive.size, archive.kind, destination)))
    return packed
