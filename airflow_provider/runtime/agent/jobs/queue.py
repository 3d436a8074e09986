"""The order in which waiting jobs start: by id, and by what fits. Pure.

A job that does not fit lets younger ones pass, so that the node is used, but only a bounded number of times: then all
behind it wait until it has started, and it cannot starve.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.jobs.placement import Demand, Node, Share, place

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_OVERTAKEN = 16
"""How many younger jobs may start while one waits for room."""

LOOK_AHEAD = 64
"""How many jobs behind the first one without room are tried: a long queue costs no more than a short one."""


class Queue:
    """Jobs that wait for room on the node, and the shares of those that have it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._order: list[int] = []
        self._demands: dict[int, Demand] = {}
        self._overtaken: dict[int, int] = {}
        self._shares: dict[int, Share] = {}

    def add(self, job_id: int, demand: Demand) -> None:
        """Let a job wait."""
        if job_id not in self._demands:
            insort(self._order, job_id)
        self._demands[job_id] = demand

    def adopt(self, job_id: int, share: Share) -> None:
        """Take note of a job that runs already."""
        self._shares[job_id] = share

    def remove(self, job_id: int) -> None:
        """Forget a job: it waits no longer, and what it had is free."""
        if self._demands.pop(job_id, None) is not None:
            self._order.remove(job_id)
            self._overtaken.pop(job_id, None)
        self._shares.pop(job_id, None)

    def shares(self) -> Collection[Share]:
        """Return what is taken."""
        return self._shares.values()

    def start(self) -> list[tuple[int, Share]]:
        """Return the jobs that start now with their shares; from here on those are taken."""
        started: list[tuple[int, Share]] = []
        passed: list[int] = []
        for job_id in self._order:
            if len(passed) > LOOK_AHEAD or any(self._starves(older) for older in passed):
                break
            share = place(self.node, self._shares.values(), self._demands[job_id])
            if share is None:
                passed.append(job_id)
                continue
            started.append((job_id, share))
            self._shares[job_id] = share
            for older in passed:
                self._overtaken[older] = self._overtaken.get(older, 0) + 1
        for job_id, _ in started:
            del self._demands[job_id]
            self._overtaken.pop(job_id, None)
        if started:
            self._order = [job_id for job_id in self._order if job_id in self._demands]
        return started

    def _starves(self, job_id: int) -> bool:
        return self._overtaken.get(job_id, 0) >= MAX_OVERTAKEN
