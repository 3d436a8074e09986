"""One measured figure, and the table of all of them."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """What the same measurement gives with somebody else's program, in the figure's unit.

    Attributes:
        value: The figure.
        unfinished: The measurement was ended before the peer was: it is worse than ``value``.
        name: Which program; empty: SkyPilot's agent.
    """

    value: float
    unfinished: bool = False
    name: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure beside what was asked for.

    Attributes:
        what: What was measured.
        value: The figure in ``unit``.
        limit: What it must stay below, or reach where more is better; None: nothing was asked for.
        unit: Unit of both.
        how: How it was measured, in a few words.
        peer: The same with another program; None: that was not measured, or there is no such thing in it.
        more_is_better: Whether the limit is to be reached instead of not exceeded.
    """

    what: str
    value: float
    limit: float | None
    unit: str
    how: str
    peer: Peer | None = None
    more_is_better: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is what was asked for."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.more_is_better else self.value <= self.limit

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer's it is: below 1 it is worse."""
        if self.peer is None:
            return None
        better, worse = self.peer.value, self.value
        if self.more_is_better:
            better, worse = worse, better
        if worse == 0:
            return math.inf if better else 1.0
        return better / worse


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table."""
    rows = ["| what | measured | limit | met | peer | ratio | how |", "|---|---|---|---|---|---|---|"]
    rows += [
        f"| {figure.what} | {figure.value:.3g} {figure.unit} | {_limit(figure)} | {_met(figure)} "
        f"| {_peer(figure)} | {_ratio(figure)} | {figure.how} |"
        for figure in figures
    ]
    return "\n".join(rows)


def machine() -> str:
    """Return what the figures were measured on."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _limit(figure: Figure) -> str:
    if figure.limit is None:
        return ""
    return f"{'≥' if figure.more_is_better else '≤'} {figure.limit:g} {figure.unit}"


def _met(figure: Figure) -> str:
    if figure.limit is None:
        return ""
    return "yes" if figure.met else "**no**"


def _peer(figure: Figure) -> str:
    if figure.peer is None:
        return ""
    worse = "<" if figure.more_is_better else ">"
    name = f" ({figure.peer.name})" if figure.peer.name else ""
    return f"{f'{worse} ' if figure.peer.unfinished else ''}{figure.peer.value:.3g} {figure.unit}{name}"


def _ratio(figure: Figure) -> str:
    if figure.peer is None or figure.ratio is None:
        return ""
    if math.isinf(figure.ratio):
        return "∞"
    return f"{'> ' if figure.peer.unfinished else ''}{figure.ratio:.3g}"
