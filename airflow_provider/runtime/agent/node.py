"""What this node is: its capacity, its boot, how it does."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.agent.jobs.placement import Device, Node

if TYPE_CHECKING:
    from collections.abc import Mapping

NODE_FILE = "node.json"
"""In the agent's directory: what of the node is the agent's to give, where that is not all of it."""

_GIB = 1 << 30
_GPUS = Path("/proc/driver/nvidia/gpus")


class BadNodeFile(ValueError):
    """The file that names the agent's part of the node cannot be understood."""


def detect(environment: Mapping[str, str] = os.environ, gpus: Path = _GPUS) -> Node:
    """Return what this machine lets us use: CPUs of our affinity, memory, visible NVIDIA devices.

    Devices are in the order of their PCI addresses, which is CUDA's with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """
    models = [_model(information) for information in sorted(gpus.glob("*/information"))]
    devices = [Device(str(index), model) for index, model in enumerate(models)]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        devices = [device for device in devices if device.name in names]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return Node(float(len(os.sched_getaffinity(0))), memory, tuple(devices))


def _model(information: Path) -> str:
    for line in information.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model":
            return value.strip()
    return "unknown"


def load(directory: Path) -> Node:
    """Return the node as the file in ``directory`` describes it, the whole machine where there is none.

    The file holds JSON: ``{"cpus": 4, "memory": 16, "accelerators": {"V100": 2}}``; what it leaves out is detected.

    Raises:
        BadNodeFile: it cannot be understood.
    """
    whole = detect()
    file = directory / NODE_FILE
    try:
        said = json.loads(file.read_text())
        devices = whole.devices
        if "accelerators" in said:
            models = [model for model, count in said["accelerators"].items() for _ in range(int(count))]
            devices = tuple(Device(str(index), model) for index, model in enumerate(models))
        return Node(float(said.get("cpus", whole.cpus)), float(said.get("memory", whole.memory)), devices)
    except FileNotFoundError:
        return whole
    except (ValueError, TypeError, AttributeError) as error:
        raise BadNodeFile(f"{file}: {error}") from error


def boot_id() -> str:
    """Return the identity of this boot of the machine; nothing that ran survives its change."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def uptime() -> float:
    """Return the seconds since boot, time asleep among them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
