"""Ending whatever a job left running: its control group, what carries its marker, and all that descends from those."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.process import cgroup, children, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider.runtime.agent.process.cgroup import Group
    from airflow_provider.runtime.agent.process.processes import Process

_EMPTY_SECONDS = 1.0


def end_job(
    marker: str, *, grace: float, limit: float, hurry: Callable[[], bool] = lambda: False
) -> set[Process]:
    """End all of a job that has no driver any more; blocks for up to ``limit`` seconds.

    Args:
        marker: The job's marker.
        grace: Seconds between SIGTERM and SIGKILL; 0 kills at once.
        limit: Seconds after which to give up.
        hurry: Once it is true, what is left of ``grace`` is not waited for.

    Returns:
        What is still alive; empty when everything is gone.
    """
    group = cgroup.find(marker)
    groups = [group] if group else []
    left = processes.end(
        lambda: _members([], processes.JOB_MARKER, marker, groups),
        grace=grace,
        limit=limit,
        kill=lambda: _kill(groups),
        hurry=hurry,
    )
    if not left:
        _remove(groups)
    return left


def end_cluster(cluster: str, *, grace: float, limit: float) -> set[Process]:
    """End all of a cluster, its agent too; blocks for up to ``limit`` seconds.

    Args:
        cluster: The value of the cluster's marker, with which the markers of its jobs begin.
        grace: Seconds between SIGTERM and SIGKILL; 0 kills at once.
        limit: Seconds after which to give up.

    Returns:
        What is still alive; empty when everything is gone.
    """
    groups: list[Group] = []

    def find() -> set[Process]:
        groups[:] = cgroup.of_cluster(cluster)  # a driver that still runs may make more
        return _members([], processes.CLUSTER_MARKER, cluster, groups)

    left = processes.end(find, grace=grace, limit=limit, kill=lambda: _kill(groups))
    if not left:
        _remove(groups)
    return left


def end_own_job(marker: str, group: Group | None, *, grace: float, limit: float) -> set[Process]:
    """End all of the job whose driver this process is: everything left of the job is its child or becomes it.

    Args:
        marker: The job's marker.
        group: The job's control group, if it has one.
        grace: Seconds between SIGTERM and SIGKILL; 0 kills at once.
        limit: Seconds after which to give up.

    Returns:
        What is still alive; empty when everything is gone.
    """
    groups = [group] if group else []
    ended: set[Process] = set()

    def reap() -> bool:
        ended.clear()
        # A chain of processes that each fork and exit is too fast for a look at the process table, but each of them
        # ends as a child of ours, and what it leaves behind is in the same process group.
        left = children.reap_all(lambda pid: ended.update(filter(None, [processes.fallen(pid)])))
        return left or any(group.populated() for group in groups)

    left = processes.end(
        lambda: _members([os.getpid()], processes.JOB_MARKER, marker, groups) | ended,
        grace=grace,
        limit=limit,
        reap=reap,
        kill=lambda: _kill(groups),
        hurry=children.hurried,
    )
    if not left:
        _remove(groups)
    return left


def _members(roots: Iterable[int], marker: str, value: str, groups: list[Group]) -> set[Process]:
    found = processes.members(roots, marker, value)
    for group in groups:
        known = {process.pid for process in found}
        found |= {process for process in group.processes() if process.pid not in known}
    return found


def _kill(groups: list[Group]) -> None:
    for group in groups:
        group.kill()


def _remove(groups: list[Group]) -> None:
    for group in groups:
        # A process is in its group for a moment after its end.
        group.wait_until_empty(_EMPTY_SECONDS)
        group.remove()
