"""Installs a runtime that comes as a packed tar on standard input, complete or not at all.

Sent together with ``contact.py``, and after its answer was good: with Python 3.10 or newer.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from airflow_provider.runtime.infra.ssh.on_host.contact import (
        Answer,
        Order,
        _is_complete,
        _mark,
        _measure,
    )

_STALE_SECONDS = 3600.0
"""After so long an installation that is not complete was given up."""

_TRY_SECONDS = 120.0
_CHUNK = 1 << 20

_IMPORT_ALL = "import sys;sys.path.insert(0,sys.argv[1]);[__import__(name) for name in sys.argv[2:]]"


def main(arguments: "Order") -> "Answer":
    """Install the runtime and return where it is."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # whoever ends us wants no remains
    home = Path(arguments["base"], "runtime")
    runtime = home / arguments["runtime"]
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        _remove_stale(home)
        partial = Path(tempfile.mkdtemp(prefix=f".{runtime.name}.", dir=home))
        try:
            problem = _fill(partial, arguments)
            if problem is not None:
                return problem
            _mark(str(partial), _measure(str(partial)))
            _put(partial, runtime)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        return {
            "problem": f"the runtime cannot be written to {home}: {error.strerror or error}",
            "remedy": "free some space there, or name another place with `base` in the pool",
        }
    return {"ok": {"runtime": str(runtime)}}


def _remove_stale(home: Path) -> None:
    for path in home.glob(".*"):
        try:
            stale = path.lstat().st_mtime < time.time() - _STALE_SECONDS
        except OSError:
            continue  # somebody else was faster
        if stale:
            shutil.rmtree(path, ignore_errors=True)


def _fill(partial: Path, arguments: "Order") -> "Answer | None":
    """Bring everything of a runtime to a directory; return a problem, if any."""
    try:
        _unpack(partial)
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        return _cut_short(error)
    if _measure(str(partial)) != [arguments["files"], arguments["bytes"]]:
        return _cut_short("parts are missing")
    if arguments["requirements"]:
        problem = _install_from_index(partial, arguments["requirements"], arguments["seconds"])
        if problem is not None:
            return problem
    return _try(partial, arguments["modules"])


def _cut_short(reason: object) -> "Answer":
    return {
        "problem": f"the runtime arrived incomplete ({reason})",
        "remedy": "it is sent again by the next try",
    }


def _unpack(partial: Path) -> None:
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as tar:
        for member in tar:
            parts = member.name.split("/")
            source = tar.extractfile(member) if member.isreg() else None
            if source is None or not {"", ".", ".."}.isdisjoint(parts):
                raise ValueError(f"member {member.name!r}")
            path = partial.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with source, path.open("xb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK)


def _install_from_index(partial: Path, wanted: "list[list[str]]", seconds: float) -> "Answer | None":
    """Have pip bring packages; return a problem, if any. Tries each list of requirements in turn."""
    scratch = partial / ".scratch"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--no-cache-dir",
        "--no-compile",
    ]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--target", str(partial)]
    # What the account's settings of pip may say otherwise, and cannot be meant for this.
    settings = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "TMPDIR": str(scratch)}
    deadline = time.monotonic() + seconds
    said = ""
    for requirements in wanted:
        scratch.mkdir()
        try:
            code, said = _run([*command, *requirements], scratch, settings, deadline - time.monotonic())
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if code == 0:
            return None
        if "No module named pip" in said:
            return {
                "problem": f"{sys.executable} has no pip to install {' '.join(requirements)} with",
                "remedy": "install it (on Debian and Ubuntu: the package python3-pip)",
                "lasting": True,
            }
        if "No matching distribution" not in said and "Could not find a version" not in said:
            break
    return {
        "problem": f"pip cannot install {' '.join(wanted[0])}: {said}",
        "remedy": "make the package index reachable from the host",
    }


def _try(partial: Path, modules: "list[str]") -> "Answer | None":
    """Load everything once, which compiles it too; return a problem, if any."""
    command = [sys.executable, "-I", "-S", "-c", _IMPORT_ALL, str(partial), *modules]
    code, said = _run(command, partial, {}, _TRY_SECONDS)
    if code == 0:
        return None
    return {
        "problem": f"the runtime does not start with {sys.executable}: {said}",
        "remedy": "name another interpreter with `python` in the pool, or another place with `base`",
        "lasting": True,
    }


def _run(command: "list[str]", folder: Path, settings: "dict[str, str]", seconds: float) -> "tuple[int, str]":
    """Run a program and return its exit code and the last lines that it printed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **settings},
            timeout=max(seconds, 1.0),
        )
    except subprocess.TimeoutExpired:
        return -1, "it took too long"
    lines = [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    return done.returncode, " | ".join(lines[-6:])[-900:]


def _put(partial: Path, runtime: Path) -> None:
    """Give a complete runtime its name, unless another process has just done so."""
    for _ in range(3):
        try:
            partial.rename(runtime)
            return
        except OSError:
            if not runtime.is_dir():
                raise
        if _is_complete(str(runtime)):
            return
        aside = partial.with_name(f"{partial.name}.broken")
        runtime.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{runtime} is being replaced by others all the time")
