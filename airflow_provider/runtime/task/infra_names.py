"""Where nodes may come from: one spelling for every way to write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from airflow_provider.runtime.task.fields import Field

KNOWN_INFRAS = frozenset(
    {
        "local",
        "ssh",
        "slurm",
        "skypilot",
        "kubernetes",
        "aws",
        "azure",
        "cudo",
        "do",
        "fluidstack",
        "gcp",
        "hyperbolic",
        "ibm",
        "lambda",
        "mithril",
        "nebius",
        "oci",
        "paperspace",
        "primeintellect",
        "runpod",
        "scp",
        "seeweb",
        "shadeform",
        "vast",
        "verda",
        "vsphere",
        "yotta",
    }
)
"""Names that a definition may use; whether one is available here is for the infras themselves to say."""

_ALIASES = {"k8s": "kubernetes"}
_PART = re.compile(r"[a-zA-Z0-9_.@:-]+|\*")
_FORMS = (
    "Write <infra>, <infra>/<region>, <infra>/<region>/<zone>, kubernetes/<context> or ssh/<pool>[/<zone>]"
)


def read_infra(field: Field) -> str | None:
    """The canonical form of ``infra``; ``*``, for any, is left out at the end; "" where nothing is left."""
    text = field.text()
    if text is None:
        return None
    first, *rest = text.strip().split("/")
    name = _known_name(first, field)
    if name is None:
        return None
    if not all(_PART.fullmatch(part) for part in rest):
        field.problem("not a valid infra", _FORMS)
        return None
    # The name of a Kubernetes context may hold slashes.
    most = {"kubernetes": None, "local": 0, "ssh": 2}.get(name, 2)
    if most is not None and len(rest) > most:
        field.problem("the infra has too many parts", _FORMS)
        return None
    return _canonical([name, *rest])


def read_cloud(field: Field) -> str | None:
    """The canonical name of the old ``cloud`` field."""
    text = field.text()
    return None if text is None else _known_name(text.strip(), field)


def read_place(field: Field) -> str | None:
    """The name of a region or zone."""
    text = field.text()
    if text is not None and not _PART.fullmatch(text.strip()):
        field.problem("not a valid name of a region or zone", "Use letters, digits, ., _ and -")
        return None
    return None if text is None else text.strip()


def combined_infra(values: Mapping[str, str], fields: Mapping[str, Field]) -> str | None:
    """One infra out of ``infra`` or ``cloud``, ``region`` and ``zone``; None for any."""
    old = [name for name in ("cloud", "region", "zone") if name in values]
    if "infra" not in values:
        return _canonical([values.get(name, "*") for name in ("cloud", "region", "zone")]) or None
    if old:
        fields[old[0]].problem(
            f"infra cannot be combined with {', '.join(old)}", "Write all of it in infra: cloud/region/zone"
        )
    return values["infra"] or None


def _canonical(parts: list[str]) -> str:
    while parts and parts[-1] == "*":
        parts.pop()
    return "/".join(parts)


def _known_name(text: str, field: Field) -> str | None:
    name = _ALIASES.get(text.lower(), text.lower())
    if name == "*" or name in KNOWN_INFRAS:
        return name
    matches = get_close_matches(name, sorted(KNOWN_INFRAS), n=1)
    field.problem(
        "unknown infra",
        f"Did you mean {matches[0]}?" if matches else f"Use one of {', '.join(sorted(KNOWN_INFRAS))}",
    )
    return None
