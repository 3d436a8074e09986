"""The Python of a host, as far as packages care: which wheels work with it, and how they are asked for."""

from __future__ import annotations

import platform as this_machine
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OLD_MANYLINUX = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLDEST_GLIBC_MINOR = 5


@dataclass(frozen=True)
class Platform:
    """A Python on a machine, as far as wheels care.

    Attributes:
        python: Major and minor version of the CPython.
        abiflags: What ``sys.abiflags`` says: ``t`` for one without the global lock.
        machine: ``x86_64``, ``aarch64``, ...
        libc: ``glibc`` or ``musl``.
        libc_version: Its major and minor version.
    """

    python: tuple[int, int]
    abiflags: str
    machine: str
    libc: str
    libc_version: tuple[int, int]

    def __str__(self) -> str:
        version = ".".join(map(str, self.python))
        libc_version = ".".join(map(str, self.libc_version))
        return f"CPython {version}{self.abiflags}, {self.machine}, {self.libc} {libc_version}"

    @classmethod
    def own(cls) -> Platform:
        """Return that of this process."""
        libc, version = this_machine.libc_ver()
        return cls(
            python=_two(this_machine.python_version()),
            abiflags=sys.abiflags,
            machine=this_machine.machine(),
            libc=libc or "musl",
            libc_version=_two(version or "1.0"),
        )

    def tags(self, *, built_here: bool) -> list[Tag]:
        """Return the tags of the wheels that work there, the best first.

        Args:
            built_here: Whether wheels that were built for one machine (``linux_...``) count: they need a C library as
                new as the one that they were built with.
        """
        interpreter = f"cp{self.python[0]}{self.python[1]}"
        platforms = [*([f"linux_{self.machine}"] if built_here else []), *self._platforms()]
        return [
            *cpython_tags(self.python, [interpreter + self.abiflags], platforms),
            *compatible_tags(self.python, interpreter, platforms),
        ]

    def _platforms(self) -> Iterator[str]:
        major, minor = self.libc_version
        if self.libc == "musl":
            yield from (f"musllinux_{major}_{older}_{self.machine}" for older in range(minor, -1, -1))
            return
        for older in range(minor, _OLDEST_GLIBC_MINOR - 1, -1):
            yield f"manylinux_{major}_{older}_{self.machine}"
            if (major, older) in _OLD_MANYLINUX:
                yield f"{_OLD_MANYLINUX[major, older]}_{self.machine}"

    def environment(self) -> dict[str, str]:
        """Return what the markers of requirements are evaluated with."""
        version = ".".join(map(str, self.python))
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
            "extra": "",
        }

    def download_command(self, folder: str, requirements: Iterable[str]) -> str:
        """Return the command that brings the wheels for it to a folder."""
        words = ["python3 -m pip download --only-binary=:all: --implementation cp"]
        words.append(f"--python-version {self.python[0]}.{self.python[1]}")
        words.append(f"--abi cp{self.python[0]}{self.python[1]}{self.abiflags} --abi abi3 --abi none")
        if self.libc == "musl":
            names = [
                f"musllinux_{self.libc_version[0]}_{minor}"
                for minor in (2, 1)
                if minor <= self.libc_version[1]
            ]
        else:
            names = [f"manylinux_2_{minor}" for minor in (28, 17) if minor <= self.libc_version[1]] + [
                "manylinux2014"
            ]
        words += [f"--platform {name}_{self.machine}" for name in names]
        return " ".join([*words, f"--dest '{folder}'", *requirements])


def _two(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
