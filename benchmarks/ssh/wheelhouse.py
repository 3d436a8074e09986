"""A folder of wheels for hosts without a way to a package index, out of what is installed here."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

_PACKAGES = ("grpcio", "protobuf", "typing_extensions")
"""All that the agent needs beside Python; the last is what grpcio needs itself."""


def make(directory: Path) -> Path:
    """Return the folder, made and filled.

    ``pip download`` gives the same files; packing the installed ones again needs no network.
    """
    directory.mkdir()
    for name in _PACKAGES:
        _pack(metadata.distribution(name), name, directory)
    return directory


def _pack(package: metadata.Distribution, name: str, directory: Path) -> None:
    with zipfile.ZipFile(
        directory / f"{name}-{package.version}-{_tag(package)}.whl", "w", zipfile.ZIP_DEFLATED
    ) as wheel:
        for path in package.files or ():
            # Neither what the installer compiled nor what it put elsewhere, such as commands.
            if path.suffix != ".pyc" and ".." not in path.parts:
                wheel.write(str(path.locate()), str(path))


def _tag(package: metadata.Distribution) -> str:
    """Return the wheel's tag: of each of its three parts all that its own tags name, as in the name of the original."""
    said = package.read_text("WHEEL") or ""
    tags = [line.partition(": ")[2].split("-") for line in said.splitlines() if line.startswith("Tag: ")]
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
