"""One measured figure, and the table of all of them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A figure beside what was asked for.

    Attributes:
        what: What was measured.
        value: The figure in ``unit``.
        limit: What it must stay below.
        unit: Unit of both.
        how: How it was measured, in a few words.
    """

    what: str
    value: float
    limit: float
    unit: str
    how: str

    @property
    def met(self) -> bool:
        """Whether the figure is what was asked for."""
        return self.value <= self.limit


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table."""
    rows = ["| what | measured | limit | met | how |", "|---|---|---|---|---|"]
    rows += [
        f"| {figure.what} | {figure.value:.3g} {figure.unit} | {figure.limit:g} {figure.unit} "
        f"| {'yes' if figure.met else '**no**'} | {figure.how} |"
        for figure in figures
    ]
    return "\n".join(rows)


def machine() -> str:
    """Return what the figures were measured on."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
