"""Finding the packages that the agent needs for the Python of a host: in a folder of wheels, or among our own."""

from __future__ import annotations

import csv
import platform as this_machine
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from airflow_provider.runtime.infra.ssh.platforms import Platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUIREMENTS = ("grpcio>=1.67", "protobuf>=6.31.1,<8")
"""What the agent imports beside the standard library; the same versions as this distribution itself requires."""

# Of a .dist-info directory: what is only about how a package was brought to a place.
_LEFT_OUT = frozenset(["RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s"])


class PackagesMissing(Exception):
    """No packages are to be had for a host; the text says which, and what to do.

    Args:
        cause: What is missing, where.
        remedy: What somebody has to do.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}: {remedy}")
        self.cause = cause
        self.remedy = remedy


class Package(Protocol):
    """A package that can be sent to a host."""

    name: str
    version: Version
    build: str
    """What tells it from others of the same version: the tags that it was built for."""
    requires: list[Requirement]
    size: int
    """Bytes that its files take when unpacked."""

    def members(self) -> Iterator[tuple[str, bytes]]:
        """Return path and content of its files, as they lie in a directory that Python imports from.

        Raises:
            PackagesMissing: it cannot be read.
        """
        ...


class WheelFile:
    """A package in a file.

    Args:
        path: The file.

    Raises:
        PackagesMissing: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        name, self.version, _, _ = parse_wheel_filename(path.name)
        self.name = str(name)
        try:
            with zipfile.ZipFile(path) as archive:
                self.size = sum(entry.file_size for entry in archive.infolist())
                self.build = _build(self._information(archive, "WHEEL"))
                self.requires = _requires(self._information(archive, "METADATA"))
        except (OSError, zipfile.BadZipFile, InvalidRequirement, LookupError) as error:
            raise self._damaged(error) from error

    def members(self) -> Iterator[tuple[str, bytes]]:
        """See Package."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                for entry in archive.infolist():
                    place = self._place(entry)
                    if place is not None:
                        yield place, archive.read(entry)
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise self._damaged(error) from error

    def _place(self, entry: zipfile.ZipInfo) -> str | None:
        """Return where a member belongs, None when it does not."""
        parts = PurePosixPath(entry.filename).parts
        if entry.is_dir() or not parts:
            return None
        if parts[0] == "/" or ".." in parts or "\\" in entry.filename:
            raise self._damaged(f"member {entry.filename!r} leads out of it")
        if parts[0].endswith(".data"):  # scripts, headers and the like are for people
            if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
                return None
            parts = parts[2:]
        return None if _is_left_out(parts) else "/".join(parts)

    def _information(self, archive: zipfile.ZipFile, name: str) -> str:
        paths = [n for n in archive.namelist() if n.endswith(f".dist-info/{name}") and n.count("/") == 1]
        if not paths:
            raise LookupError(f"it has no {name}")
        return archive.read(paths[0]).decode("utf-8", "replace")

    def _damaged(self, reason: object) -> PackagesMissing:
        return PackagesMissing(
            f"wheelhouse: {self._path} cannot be used ({reason})", "download it again or remove it"
        )


class InstalledPackage:
    """A package as it is installed in the environment of this process.

    Args:
        distribution: What is known of it.
        files: Its files, by their path in the environment.
        build: Its tags.
    """

    def __init__(self, distribution: metadata.Distribution, files: dict[str, Path], build: str) -> None:
        self.name = str(canonicalize_name(distribution.metadata["Name"]))
        self.version = Version(distribution.version)
        self.requires = [Requirement(line) for line in distribution.requires or ()]
        self.build = build
        self._files = files
        self.size = sum(path.stat().st_size for path in files.values())

    def members(self) -> Iterator[tuple[str, bytes]]:
        """See Package."""
        for name, path in self._files.items():
            try:
                yield name, path.read_bytes()
            except OSError as error:
                raise PackagesMissing(
                    f"{path} cannot be read ({error.strerror})", "install it again"
                ) from error


class Source(Protocol):
    """Where packages may be found."""

    def find(self, requirement: Requirement) -> Package | None:
        """Return the best package that meets a requirement on the host, None when there is none.

        Raises:
            PackagesMissing: what would be the best cannot be read.
        """
        ...


class Wheelhouse:
    """A folder of wheels.

    Args:
        folder: Where they are; ``~`` is the home of this process.
        platform: What they are for.

    Raises:
        PackagesMissing: there is no such folder.
    """

    def __init__(self, folder: str, platform: Platform) -> None:
        tags = platform.tags(built_here=True)
        self._rank = {tag: rank for rank, tag in enumerate(tags)}
        try:
            self._wheels = sorted(Path(folder).expanduser().glob("*.whl"))
            exists = Path(folder).expanduser().is_dir()
        except (OSError, RuntimeError) as error:
            raise PackagesMissing(
                f"wheelhouse {folder} cannot be read ({error})", "name another folder"
            ) from error
        if not exists:
            raise PackagesMissing(
                f"wheelhouse {folder} is not a directory on {this_machine.node()}",
                "it has to be there on every machine that runs Airflow's workers and triggerers",
            )

    def find(self, requirement: Requirement) -> Package | None:
        """See Source."""
        wanted = canonicalize_name(requirement.name)
        best: tuple[Version, int, tuple[int, str], Path] | None = None
        for path in self._wheels:
            try:
                name, version, build, tags = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue  # what else lies in the folder is not ours to judge
            ranks = [self._rank[tag] for tag in tags if tag in self._rank]
            if name != wanted or not ranks or not requirement.specifier.contains(version, prereleases=False):
                continue
            candidate = (version, -min(ranks), build or (0, ""), path)
            if best is None or candidate > best:
                best = candidate
        return None if best is None else WheelFile(best[3])


class OwnPackages:
    """What is installed in the environment of this process.

    Args:
        platform: What it is wanted for.
    """

    def __init__(self, platform: Platform) -> None:
        own = Platform.own()
        as_new = platform.libc == own.libc and platform.libc_version >= own.libc_version
        self._tags = frozenset(platform.tags(built_here=as_new))

    def find(self, requirement: Requirement) -> Package | None:
        """See Source."""
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            return None
        wheel = distribution.read_text("WHEEL")
        if wheel is None or not requirement.specifier.contains(distribution.version, prereleases=True):
            return None
        build = _build(wheel)
        files = _complete_files(distribution)
        if files is None or not any(tag in self._tags for text in build.split() for tag in parse_tag(text)):
            return None
        return InstalledPackage(distribution, files, build)


def resolve(source: Source, requirements: Iterable[str], platform: Platform) -> list[Package]:
    """Return packages that meet the requirements, and those that they need, sorted by name.

    Raises:
        LookupError: the source lacks something; the argument is the requirement.
        PackagesMissing: the source cannot be read.
    """
    environment = platform.environment()
    found: dict[str, Package] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        known = found.get(canonicalize_name(requirement.name))
        if known is None:
            known = source.find(requirement)
            if known is None:
                raise LookupError(_without_marker(requirement))
            found[known.name] = known
            waiting += known.requires
        elif not requirement.specifier.contains(known.version, prereleases=True):
            raise LookupError(_without_marker(requirement))
    return [found[name] for name in sorted(found)]


def own_versions(requirements: Iterable[str]) -> list[str]:
    """Return the requirements narrowed to the versions that are installed here: those that are tried out together."""
    narrowed = []
    for text in requirements:
        try:
            narrowed.append(f"{Requirement(text).name}=={metadata.version(Requirement(text).name)}")
        except metadata.PackageNotFoundError:
            narrowed.append(text)
    return narrowed


def _complete_files(distribution: metadata.Distribution) -> dict[str, Path] | None:
    """Return the files of an installed package that its users need, None unless all are there."""
    files = {}
    # Not `distribution.files`: where the package importlib_metadata is loaded, it leaves out what is missing.
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if len(row) != 3:
            return None
        name, _, size = row
        file = PurePosixPath(name)
        if ".." in file.parts or "__pycache__" in file.parts or _is_left_out(file.parts):
            continue
        if file.suffix == ".pth" and len(file.parts) == 1:
            return None  # an editable installation, or something else that works in this environment only
        path = Path(str(distribution.locate_file(name)))
        try:
            if not path.is_file() or (size and path.stat().st_size != int(size)):
                return None
        except (OSError, ValueError):
            return None
        files[file.as_posix()] = path
    return files or None


def _is_left_out(parts: tuple[str, ...]) -> bool:
    return parts[0].endswith(".dist-info") and parts[-1] in _LEFT_OUT


def _build(wheel: str) -> str:
    return " ".join(sorted(HeaderParser().parsestr(wheel).get_all("Tag", [])))


def _requires(information: str) -> list[Requirement]:
    return [Requirement(line) for line in HeaderParser().parsestr(information).get_all("Requires-Dist", [])]


def _without_marker(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"
