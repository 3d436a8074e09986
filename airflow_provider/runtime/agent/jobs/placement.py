"""Which jobs fit on the node together: pure arithmetic, no I/O.

Capacities are promises between jobs, not limits that the kernel enforces, as with SkyPilot's placement.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEFAULT_CPUS = 0.5
"""CPUs of a job that asks for none, as SkyPilot counts them."""

_SLACK = 1e-6
"""Sums of fractions miss whole numbers by a little."""


@dataclass(frozen=True)
class Demand:
    """What one job takes of the node. ``memory`` in GiB; ``accelerators``: count by model, fractions share a device."""

    cpus: float = DEFAULT_CPUS
    memory: float = 0.0
    accelerators: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Device:
    """An accelerator: what ``CUDA_VISIBLE_DEVICES`` calls it, and its model."""

    name: str
    model: str


@dataclass(frozen=True)
class Node:
    """What the node has to give. ``memory`` in GiB."""

    cpus: float
    memory: float
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True)
class Share:
    """What a placed job has: CPUs, GiB, and of each device (by name) a part from 0 to 1."""

    cpus: float
    memory: float
    devices: Mapping[str, float] = field(default_factory=dict)


def demand_of_words(resources: str) -> Demand:
    """Return the demand that SkyPilot's words for a task's resources mean: ``1x[CPU:0.5]``, ``2x[V100:4][Spot]``.

    They are made for people: what cannot be understood asks for nothing special.
    """
    _, _, inside = resources.partition("[")
    cpus, accelerators = DEFAULT_CPUS, dict[str, float]()
    for part in inside.partition("]")[0].split(","):
        name, _, amount = part.strip().rpartition(":")
        try:
            number = float(amount.rstrip("+ "))
        except ValueError:
            continue
        if name == "CPU":
            cpus = number
        elif name:
            accelerators[name] = number
    return Demand(cpus=cpus, accelerators=accelerators)


def unsound(demand: Demand) -> str | None:
    """Return what is wrong with a demand that means nothing on any node, None when it is sound."""
    numbers = {"cpus": demand.cpus, "memory": demand.memory}
    numbers |= {f"accelerators[{model!r}]": count for model, count in demand.accelerators.items()}
    for name, number in numbers.items():
        if not 0 <= number < math.inf:
            return f"{name} is {number}: a number from 0 on is needed"
    for model, count in demand.accelerators.items():
        if count > 1 and count != int(count):
            return f"accelerators[{model!r}] is {count:g}: more than one device are whole devices"
    return None


def misfit(node: Node, demand: Demand, where: str = "the node") -> str | None:
    """Return why the job can never run on the node, None when it can."""
    if demand.cpus > node.cpus + _SLACK:
        return f"cpus: {demand.cpus:g} wanted, {where} has {node.cpus:g}"
    if demand.memory > node.memory + _SLACK:
        return f"memory: {demand.memory:g} GiB wanted, {where} has {node.memory:.1f} GiB"
    if place(node, (), demand) is None:
        wanted = ", ".join(f"{model}:{count:g}" for model, count in demand.accelerators.items())
        present = ", ".join(device.model for device in node.devices) or "no NVIDIA GPU"
        return f"accelerators: {wanted} wanted, {where} has {present}"
    return None


def place(node: Node, taken: Iterable[Share], demand: Demand) -> Share | None:
    """Return the job's share beside those that are taken, None when it does not fit now."""
    cpus, memory = node.cpus, node.memory
    used: Counter[str] = Counter()
    for share in taken:
        cpus -= share.cpus
        memory -= share.memory
        used.update(share.devices)
    if demand.cpus > cpus + _SLACK or demand.memory > memory + _SLACK:
        return None
    devices: dict[str, float] = {}
    for model, count in demand.accelerators.items():
        fitting = [device for device in node.devices if matches(model, device.model)]
        chosen = _devices(fitting, Counter(used) + Counter(devices), count)
        if chosen is None:
            return None
        for name, part in chosen.items():
            devices[name] = devices.get(name, 0.0) + part
    return Share(demand.cpus, demand.memory, devices)


def matches(wanted: str, model: str) -> bool:
    """Return whether a device of ``model`` (the driver's long name) is what a task calls ``wanted``.

    "A100-80GB" is "NVIDIA A100-SXM4-80GB", and "RTX4090" is "NVIDIA GeForce RTX 4090".
    """
    asked, there = _words(wanted), _words(model)
    return bool(asked) and (set(asked) <= set(there) or "".join(asked) in "".join(there))


def _words(name: str) -> list[str]:
    return "".join(character if character.isalnum() else " " for character in name.lower()).split()


def _devices(devices: Sequence[Device], used: Mapping[str, float], count: float) -> dict[str, float] | None:
    if count < 1:
        # The fullest that still has room: whole devices stay free for those who need them.
        for device in sorted(devices, key=lambda device: -used.get(device.name, 0.0)):
            if used.get(device.name, 0.0) + count <= 1 + _SLACK:
                return {device.name: count} if count else {}
        return None if count else {}
    free = [device.name for device in devices if used.get(device.name, 0.0) <= _SLACK]
    whole = int(count)
    return dict.fromkeys(free[:whole], 1.0) if len(free) >= whole else None
