"""Packages for a host's Python: which wheels suit it, where they come from, and what is said when there are none."""

from __future__ import annotations

import os
import shlex
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import importlib_metadata  # noqa: F401 - once loaded, as by Airflow, it finds packages in the stdlib's place
import pytest
from packaging.requirements import Requirement
from packaging.tags import sys_tags

from airflow_provider.runtime.infra.ssh.platforms import Platform
from airflow_provider.runtime.infra.ssh.wheels import (
    REQUIREMENTS,
    OwnPackages,
    PackagesMissing,
    WheelFile,
    Wheelhouse,
    own_versions,
    resolve,
)
from tests.unit.infra.ssh.made_wheels import make_wheel, wheel_of_installed

OURS = Platform.own()
OLD = Platform(python=(3, 10), abiflags="", machine="x86_64", libc="glibc", libc_version=(2, 17))
ALPINE = replace(OLD, libc="musl", libc_version=(1, 2))
ARM = replace(OLD, python=(3, 12), machine="aarch64", libc_version=(2, 36))

GRPC = ["grpcio>=1.67"]


def found(folder: Path, platform: Platform, requirement: str = "grpcio>=1.67") -> str | None:
    package = Wheelhouse(str(folder), platform).find(Requirement(requirement))
    return None if package is None else f"{package.version} {package.build}"


def test_the_agent_requires_what_this_distribution_does() -> None:
    project = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    assert [text for text in REQUIREMENTS if f'    "{text}",\n' not in project] == []


def test_what_suits_this_machine_is_what_packaging_says_suits_it() -> None:
    assert [str(tag) for tag in OURS.tags(built_here=True)] == [str(tag) for tag in sys_tags()]


@pytest.mark.parametrize(
    ("platform", "tag", "suits"),
    [
        (OLD, "cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        (OLD, "cp310-cp310-manylinux1_x86_64", True),
        (OLD, "cp310-cp310-manylinux2014_x86_64", True),
        (OLD, "cp310-cp310-manylinux_2_28_x86_64", False),
        (OLD, "cp311-cp311-manylinux2014_x86_64", False),
        (OLD, "cp38-abi3-manylinux2014_x86_64", True),
        (OLD, "cp311-abi3-manylinux2014_x86_64", False),
        (OLD, "py3-none-any", True),
        (OLD, "cp310-cp310-manylinux2014_aarch64", False),
        (OLD, "cp310-cp310-musllinux_1_1_x86_64", False),
        (OLD, "cp310-cp310-macosx_11_0_universal2", False),
        (OLD, "cp310-cp310-linux_x86_64", True),
        (ALPINE, "cp310-cp310-musllinux_1_1_x86_64", True),
        (ALPINE, "cp310-cp310-musllinux_1_2_x86_64", True),
        (ALPINE, "cp310-cp310-musllinux_1_3_x86_64", False),
        (ALPINE, "cp310-cp310-manylinux2014_x86_64", False),
        (ARM, "cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64", True),
        (replace(ARM, python=(3, 13), abiflags="t"), "cp313-cp313t-manylinux2014_aarch64", True),
        (replace(ARM, python=(3, 13), abiflags="t"), "cp313-cp313-manylinux2014_aarch64", False),
        (replace(ARM, python=(3, 13), abiflags="t"), "cp310-abi3-manylinux2014_aarch64", False),
    ],
)
def test_a_wheel_suits_some_hosts(tmp_path: Path, platform: Platform, tag: str, suits: bool) -> None:
    make_wheel(tmp_path, "grpcio", "1.70.0", tag)
    assert (found(tmp_path, platform) is not None) is suits


def test_the_newest_wheel_that_suits_is_taken_and_of_equals_the_closest(tmp_path: Path) -> None:
    make_wheel(tmp_path, "grpcio", "1.66.0", "py3-none-any")  # too old
    make_wheel(tmp_path, "grpcio", "1.80.0", "cp311-cp311-manylinux2014_x86_64")  # for another Python
    make_wheel(tmp_path, "grpcio", "1.9.0", "py3-none-any")
    make_wheel(tmp_path, "grpcio", "2.0.0rc1", "py3-none-any")  # not released
    make_wheel(tmp_path, "grpcio", "1.70.0", "py3-none-any")
    make_wheel(tmp_path, "grpcio", "1.70.0", "cp310-cp310-manylinux2014_x86_64")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "not-a-wheel.whl").touch()
    assert found(tmp_path, OLD) == "1.70.0 cp310-cp310-manylinux2014_x86_64"


def test_names_are_compared_as_package_indexes_do(tmp_path: Path) -> None:
    make_wheel(tmp_path, "typing_extensions", "4.16.0")
    assert found(tmp_path, OLD, "Typing.Extensions~=4.12") is not None


def test_what_packages_need_is_found_too_unless_it_is_for_others(tmp_path: Path) -> None:
    extras = (
        'absent ; python_version < "3.8"',
        'tools ; extra == "protobuf"',
        'winonly ; sys_platform == "win32"',
    )
    make_wheel(tmp_path, "grpcio", "1.85.0", requires=("typing-extensions~=4.12", *extras))
    make_wheel(tmp_path, "typing_extensions", "4.16.0", requires=("grpcio",))  # in a circle
    packages = resolve(Wheelhouse(str(tmp_path), OLD), GRPC, OLD)
    assert [package.name for package in packages] == ["grpcio", "typing-extensions"]
    (tmp_path / "typing_extensions-4.16.0-py3-none-any.whl").unlink()
    with pytest.raises(LookupError, match=r"typing-extensions~=4\.12"):
        resolve(Wheelhouse(str(tmp_path), OLD), GRPC, OLD)


def test_two_packages_that_disagree_about_a_third_are_not_sent(tmp_path: Path) -> None:
    make_wheel(tmp_path, "grpcio", "1.85.0", requires=("typing-extensions>=4.15",))
    make_wheel(tmp_path, "protobuf", "7.0.0", requires=("typing-extensions<4.15",))
    make_wheel(tmp_path, "typing_extensions", "4.14.0")
    make_wheel(tmp_path, "typing_extensions", "4.16.0")
    with pytest.raises(LookupError, match=r"typing-extensions[<>]"):
        resolve(Wheelhouse(str(tmp_path), OLD), REQUIREMENTS, OLD)


# What is in a wheel.


def test_only_what_python_imports_is_unpacked(tmp_path: Path) -> None:
    files = {
        "made/__init__.py": "a",
        "made-1.0.data/purelib/made/more.py": "b",
        "made-1.0.data/platlib/made/fast.so": "c",
        "made-1.0.data/scripts/made": "d",
        "made-1.0.data/headers/made.h": "e",
        "made-1.0.data/data/share/made.txt": "f",
    }
    path = make_wheel(tmp_path, "made", "1.0", files=files)
    names = dict(WheelFile(path).members())
    information = {"made-1.0.dist-info/WHEEL", "made-1.0.dist-info/METADATA"}
    assert set(names) == {"made/__init__.py", "made/more.py", "made/fast.so", *information}
    assert names["made/fast.so"] == b"c"


@pytest.mark.parametrize(
    "name", ["../evil.py", "/evil.py", "made/../../evil.py", "made-1.0.data/purelib/../../x.py"]
)
def test_a_wheel_with_a_member_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    wheel = WheelFile(make_wheel(tmp_path, "made", "1.0", files={name: ""}))
    with pytest.raises(PackagesMissing, match="leads out"):
        list(wheel.members())


@pytest.mark.parametrize("damage", ["cut", "empty", "nothing in it", "flipped"])
def test_a_damaged_wheel_is_named(tmp_path: Path, damage: str) -> None:
    path = make_wheel(tmp_path, "grpcio", "1.70.0", files={"grpc/__init__.py": "x" * 5000})
    content = path.read_bytes()
    if damage == "nothing in it":
        with zipfile.ZipFile(path, "w"):
            pass
    elif damage == "flipped":
        path.write_bytes(content.replace(b"x" * 4000, b"x" * 3999 + b"y"))
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")

    def read() -> None:
        for package in resolve(Wheelhouse(str(tmp_path), OLD), GRPC, OLD):
            list(package.members())

    with pytest.raises(PackagesMissing, match=r"grpcio-1\.70\.0-py3-none-any\.whl cannot be used"):
        read()


def test_a_wheelhouse_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackagesMissing, match="is not a directory") as caught:
        Wheelhouse(str(tmp_path / "no"), OLD)
    assert "workers and triggerers" in caught.value.remedy


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        (
            OLD,
            "--python-version 3.10 --abi cp310 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64",
        ),
        (ARM, "--python-version 3.12 --abi cp312 --platform manylinux_2_28_aarch64"),
        (ALPINE, "--python-version 3.10 --platform musllinux_1_2_x86_64 --platform musllinux_1_1_x86_64"),
        (replace(OLD, libc_version=(2, 36)), "--platform manylinux_2_28_x86_64"),
    ],
)
def test_the_command_that_fills_a_wheelhouse_names_the_hosts_python(platform: Platform, words: str) -> None:
    command = platform.download_command("/my wheels", own_versions(REQUIREMENTS))
    split = shlex.split(command)
    assert split[:5] == ["python3", "-m", "pip", "download", "--only-binary=:all:"]
    assert " ".join(split).count("--platform") >= 2
    for word in words.split():
        assert word in split
    assert split[-4:-2] == ["--dest", "/my wheels"]
    assert split[-2:] == [f"{name}=={metadata.version(name)}" for name in ("grpcio", "protobuf")]


# Our own packages.


def test_our_own_packages_suit_our_own_python() -> None:
    packages = resolve(OwnPackages(OURS), REQUIREMENTS, OURS)
    assert {"grpcio", "protobuf"} <= {package.name for package in packages}
    names = {name for package in packages for name, _ in package.members()}
    assert {"grpc/__init__.py", "google/protobuf/__init__.py"} <= names
    assert not [name for name in names if name.startswith("/") or ".." in name or "__pycache__" in name]


@pytest.mark.parametrize(
    "other",
    [
        replace(OURS, python=(OURS.python[0], OURS.python[1] + 1)),
        replace(OURS, machine="riscv64"),
        replace(OURS, libc="musl" if OURS.libc == "glibc" else "glibc"),
        replace(OURS, abiflags="t"),
        replace(OURS, libc_version=(2, 6)),
    ],
    ids=["python", "machine", "libc", "abi", "old-libc"],
)
def test_our_own_packages_do_not_suit_another(other: Platform) -> None:
    with pytest.raises(LookupError):
        resolve(OwnPackages(other), REQUIREMENTS, other)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where packages are installed, that Python imports from."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    return place


def put(place: Path, tag: str = "py3-none-any", *, record: str | None = None, wheel: bool = True) -> Path:
    """Install a package called made."""
    (place / "made").mkdir()
    (place / "made/__init__.py").write_text("a = 1\n")
    information = place / "made-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1.0\n")
    if wheel:
        (information / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
    lines = "made/__init__.py,,6\n../bin/made,,\nmade/__pycache__/x.pyc,,\nmade-1.0.dist-info/METADATA,,\n"
    (information / "RECORD").write_text(lines if record is None else record)
    return place / "made"


def test_an_installed_package_is_taken_without_scripts_and_compiled_files(installed: Path) -> None:
    put(installed)
    package = OwnPackages(OURS).find(Requirement("made"))
    assert package is not None
    assert dict(package.members()).keys() == {"made/__init__.py", "made-1.0.dist-info/METADATA"}
    assert OwnPackages(OURS).find(Requirement("made>1")) is None
    assert OwnPackages(OURS).find(Requirement("not-made-at-all")) is None


@pytest.mark.parametrize("fault", ["missing", "shorter", "editable", "no record", "not a wheel"])
def test_an_installed_package_that_is_not_complete_is_not_taken(installed: Path, fault: str) -> None:
    record = {"editable": "__editable__.made.pth,,\nmade-1.0.dist-info/METADATA,,\n", "no record": ""}.get(
        fault
    )
    module = put(installed, record=record, wheel=fault != "not a wheel") / "__init__.py"
    if fault == "missing":
        module.unlink()
    if fault == "shorter":
        module.write_text("")
    if fault == "editable":
        (installed / "__editable__.made.pth").write_text("/src")
    assert OwnPackages(OURS).find(Requirement("made")) is None


def test_a_package_that_was_built_here_is_not_taken_to_an_older_c_library(installed: Path) -> None:
    put(installed, f"cp{OURS.python[0]}{OURS.python[1]}-abi3-linux_{OURS.machine}")
    older = replace(OURS, libc_version=(OURS.libc_version[0], OURS.libc_version[1] - 1))
    newer = replace(OURS, libc_version=(OURS.libc_version[0], OURS.libc_version[1] + 1))
    made = Requirement("made")
    assert OwnPackages(OURS).find(made)
    assert OwnPackages(newer).find(made)
    assert OwnPackages(older).find(made) is None


def test_a_package_is_the_same_from_a_wheel_and_installed(tmp_path: Path) -> None:
    own = OwnPackages(OURS).find(Requirement("protobuf"))
    wheel = WheelFile(wheel_of_installed(tmp_path, "protobuf"))
    assert own is not None
    assert (wheel.name, wheel.version, wheel.build) == (own.name, own.version, own.build)
    assert dict(wheel.members()) == dict(own.members())
    assert os.listdir(tmp_path) == [Path(wheel_of_installed(tmp_path, "protobuf")).name]
