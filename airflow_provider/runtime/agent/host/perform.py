"""Each operation on this machine: from its arguments to its answer."""

from __future__ import annotations

import math
import os
import platform
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from airflow_provider.runtime.agent import node
from airflow_provider.runtime.agent.host import agents
from airflow_provider.runtime.agent.host.clusters import Cluster, ClusterGone, Clusters, Wish
from airflow_provider.runtime.agent.host.hostlease import DIRECTORY, Held, HostLease
from airflow_provider.runtime.agent.jobs.placement import Demand, Node, misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.agent.host.operations import (
        Device,
        DownAnswer,
        Facts,
        FactsArguments,
        Found,
        Holder,
        NameArguments,
        Place,
        ProbeAnswer,
        ProbeArguments,
        RestartAnswer,
        Taken,
        Up,
        UpAnswer,
        UpArguments,
    )

DEFAULT_BASE = "~/.managed-jobs"
DEFAULT_START_SECONDS = 40.0
_LONGEST_NAME = 200


def _facts(arguments: Mapping[str, object]) -> Facts:
    said = cast("FactsArguments", arguments)
    base, lease = _base(said), _lease(said)
    here = node.detect()
    held = lease.read()
    return {
        "hostname": socket.gethostname(),
        "boot_id": node.boot_id(),
        "python": platform.python_version(),
        "cpus": here.cpus,
        "memory": here.memory,
        "devices": _devices(here),
        "disk_free": shutil.disk_usage(_existing(base)).free,
        "holder": None if held is None else _holder(held),
    }


def _up(arguments: Mapping[str, object]) -> UpAnswer:
    said = cast("UpArguments", arguments)
    wish = _wish(said)
    here = node.detect()
    asked = said.get("demand")
    if asked is not None:
        demand = Demand(
            cpus=float(asked.get("cpus", 0.0)),
            memory=float(asked.get("memory", 0.0)),
            accelerators={str(model): float(count) for model, count in asked.get("accelerators", {}).items()},
        )
        reason = misfit(here, demand, "the host")
        if reason is not None:
            return {"status": "misfit", "reason": reason}
    made = Clusters(_base(said), _lease(said)).up(wish)
    return _served(made, here) if isinstance(made, Cluster) else _taken(made)


def _restart(arguments: Mapping[str, object]) -> RestartAnswer:
    said = cast("UpArguments", arguments)
    try:
        found = Clusters(_base(said), _lease(said)).restart(_wish(said))
    except ClusterGone as gone:
        return {"status": "gone", "reason": str(gone)}
    return _served(found, node.detect()) if isinstance(found, Cluster) else _taken(found)


def _find(arguments: Mapping[str, object]) -> Found:
    said = cast("NameArguments", arguments)
    clusters = Clusters(_base(said), _lease(said))
    record, root = clusters.find(_name(said)), clusters.root(_name(said))
    return {
        "present": record is not None,
        "instance": None if record is None else record.instance,
        "root": str(root),
        "socket": str(root / agents.SOCKET),
        "boot_id": node.boot_id(),
    }


def _probe(arguments: Mapping[str, object]) -> ProbeAnswer:
    said = cast("ProbeArguments", arguments)
    state = Clusters(_base(said), _lease(said)).probe(_name(said), said.get("instance"))
    return {
        "boot_id": node.boot_id(),
        "present": not state.reason,
        "reason": state.reason,
        "instance": None if state.record is None else state.record.instance,
        "lease": "none" if state.held is None else "ours" if state.ours else "other",
        "holder": None if state.held is None else _holder(state.held),
        "agent": state.agent,
        "pid": state.pid,
        "runtime": None if state.record is None else state.record.runtime,
    }


def _down(arguments: Mapping[str, object]) -> DownAnswer:
    said = cast("ProbeArguments", arguments)
    found, kept = Clusters(_base(said), _lease(said)).down(_name(said), said.get("instance"))
    return {"found": found, "kept": kept}


PERFORM: Mapping[str, Callable[[Mapping[str, object]], object]] = {
    "facts": _facts,
    "up": _up,
    "restart": _restart,
    "find": _find,
    "probe": _probe,
    "down": _down,
}


def _base(said: Place) -> Path:
    base = Path(said.get("base", DEFAULT_BASE)).expanduser()
    if not base.is_absolute():
        raise ValueError(f"base is {str(base)!r}: an absolute path, or one that begins with ~, is needed")
    return base


def _lease(said: Place) -> HostLease:
    directory = Path(said.get("lease_directory", DIRECTORY))
    if not directory.is_absolute():
        raise ValueError(f"lease_directory is {str(directory)!r}: an absolute path is needed")
    return HostLease(directory)


def _name(said: NameArguments) -> str:
    return _words("name", said["name"])


def _wish(said: UpArguments) -> Wish:
    wish = Wish(
        name=_name(said),
        instance=_words("instance", said["instance"]),
        site=said["site"],
        lease_seconds=float(said["lease_seconds"]),
        runtime=said["runtime"],
        python=said.get("python", sys.executable),
        start_seconds=float(said.get("start_seconds", DEFAULT_START_SECONDS)),
    )
    for field in ("lease_seconds", "start_seconds"):
        if not 0 < getattr(wish, field) < math.inf:
            raise ValueError(f"{field} is {getattr(wish, field)}: a positive number is needed")
    return wish


def _words(field: str, text: object) -> str:
    """Return a name that is shown to people and compared exactly."""
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise ValueError(f"{field} is {text!r}: 1 to {_LONGEST_NAME} printable characters are needed")
    return text


def _existing(path: Path) -> Path:
    return path if os.path.lexists(path) else _existing(path.parent)


def _served(cluster: Cluster, here: Node) -> Up:
    return {
        "status": "up",
        "name": cluster.record.name,
        "instance": cluster.record.instance,
        "root": str(cluster.root),
        "socket": str(cluster.root / agents.SOCKET),
        "boot_id": cluster.record.boot_id,
        "adopted": cluster.adopted,
        "cpus": here.cpus,
        "memory": here.memory,
        "devices": _devices(here),
    }


def _taken(held: Held) -> Taken:
    return {"status": "taken", "holder": _holder(held)}


def _holder(held: Held) -> Holder:
    return {
        "cluster": held.claim.cluster,
        "instance": held.claim.instance,
        "site": held.claim.site,
        "account": held.account,
        "seconds_left": held.seconds_left,
    }


def _devices(here: Node) -> list[Device]:
    return [{"name": device.name, "model": device.model} for device in here.devices]
