"""Wheels made for tests: of nothing, or out of what is installed here."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

from packaging.tags import parse_tag

FILES = {"{name}/__init__.py": "made = True\n"}


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    tag: str = "py3-none-any",
    *,
    requires: tuple[str, ...] = (),
    files: dict[str, str] | None = None,
) -> Path:
    """Make a small wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    information = f"{name}-{version}.dist-info"
    tags = "".join(f"Tag: {each}\n" for each in sorted(map(str, parse_tag(tag))))
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    content = {place.format(name=name): text for place, text in (FILES if files is None else files).items()}
    content |= {
        f"{information}/WHEEL": f"Wheel-Version: 1.0\n{tags}",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}",
        f"{information}/RECORD": "",
    }
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in content.items():
            archive.writestr(place, text)
    return path


def wheel_of_installed(folder: Path, name: str) -> Path:
    """Make the wheel that an installed package came from."""
    folder.mkdir(parents=True, exist_ok=True)
    distribution = metadata.distribution(name)
    wheel = distribution.read_text("WHEEL")
    assert wheel is not None
    tags = [line.partition(": ")[2].split("-") for line in wheel.splitlines() if line.startswith("Tag: ")]
    tag = "-".join(".".join(sorted({parts[index] for parts in tags})) for index in range(3))
    path = folder / f"{distribution.metadata['Name'].replace('-', '_')}-{distribution.version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                archive.write(str(file.locate()), file.as_posix())
    return path
