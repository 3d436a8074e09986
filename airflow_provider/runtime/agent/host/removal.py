"""Taking a cluster off a host: its processes, what it brought to the home directory, its own directory.

Every step may be repeated: whoever finds a removal that was begun finishes it.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.driver.delivered import remove_delivered
from airflow_provider.runtime.agent.host.problem import HostProblem
from airflow_provider.runtime.agent.process.sweep import end_cluster
from airflow_provider.runtime.agent.trees import remove_tree

if TYPE_CHECKING:
    from pathlib import Path

_KILL_LIMIT_SECONDS = 30.0
_HEX = "[0-9a-f]"


def remove_cluster(root: Path, *, grace: float) -> list[str]:
    """End and remove everything of the cluster at ``root``; one that is not there is no error.

    Nothing may make another one at the same place meanwhile.

    Args:
        root: The cluster's directory, which its processes carry as their marker.
        grace: Seconds between SIGTERM and SIGKILL for its processes; 0 kills at once.

    Returns:
        What of the files that were brought to the home directory could not be removed, and why.

    Raises:
        HostProblem: processes or files of it are left.
    """
    with suppress(FileNotFoundError):
        # Away from its name first: from here on nobody takes what is left for a cluster.
        root.rename(root.with_name(f".removed-{root.name}-{secrets.token_hex(16)}"))
    kept = finish_removals(root, grace=grace)
    if os.path.lexists(root):  # one of its processes was about to write
        _remove(root)
    return kept


def finish_removals(root: Path, *, grace: float = 0.0) -> list[str]:
    """End what still runs of the cluster at ``root`` and remove what is left of removals that others began.

    Returns:
        As ``remove_cluster`` does.

    Raises:
        HostProblem: processes or files of it are left.
    """
    end_processes(root, grace=grace)
    kept: list[str] = []
    for remains in _remains(root):
        kept += remove_delivered(remains)
        _remove(remains)
    return kept


def removing(root: Path) -> bool:
    """Return whether a removal of the cluster was begun and not finished."""
    return bool(_remains(root))


def unfinished(clusters: Path) -> list[tuple[Path, Path]]:
    """Return what is left of all removals that were begun in a directory of clusters, each with the cluster's place."""
    return [
        (remains, clusters / remains.name.split("-")[1])
        for remains in clusters.glob(f".removed-*-{_HEX * 32}")
    ]


def end_processes(root: Path, *, grace: float) -> None:
    """End all processes of the cluster but the calling one.

    Raises:
        HostProblem: some cannot be ended.
    """
    left = end_cluster(str(root), grace=grace, limit=grace + _KILL_LIMIT_SECONDS)
    if left:
        pids = ", ".join(str(pid) for pid in sorted(process.pid for process in left))
        raise HostProblem(
            f"processes {pids} of the cluster cannot be killed",
            "they wait for a device or a file system: reboot the host, or wait and try again",
        )


def _remains(root: Path) -> list[Path]:
    return list(root.parent.glob(f".removed-{root.name}-{_HEX * 32}"))


def _remove(directory: Path) -> None:
    try:
        remove_tree(directory)
    except OSError as error:
        raise HostProblem(
            f"{directory} cannot be removed: {error}", "remove it by hand, as root if need be"
        ) from error
