"""SkyPilot in a virtualenv of its own: it and Airflow cannot share one, and nothing of it may be imported here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("skypilot==0.14.1", "grpcio==1.85.3", "protobuf==7.36.2")
"""SkyPilot names no versions of the last two, and behaviour on the wire hangs on them."""

_ENVIRONMENT = REPOSITORY / "build" / "skypilot"
_READY = _ENVIRONMENT / "ready"


def peer_python() -> Path:
    """Return the interpreter that can import SkyPilot; make its virtualenv first unless it is there.

    Safe to call from several test runs at once: one of them makes it, the others wait.

    Raises:
        RuntimeError: the packages cannot be installed; says what the installer said.
    """
    python = _ENVIRONMENT / "bin" / "python"
    wanted = "\n".join((*PACKAGES, f"{sys.version_info.major}.{sys.version_info.minor}"))
    _ENVIRONMENT.parent.mkdir(exist_ok=True)
    with open(_ENVIRONMENT.parent / "skypilot.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_READY.exists() and _READY.read_text() == wanted):
            shutil.rmtree(_ENVIRONMENT, ignore_errors=True)
            for command in _commands(python):
                _run(command)
            _READY.write_text(wanted)
    return python


def _commands(python: Path) -> list[list[str]]:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is not None:
        return [
            [uv, "venv", "--quiet", "--python", sys.executable, str(_ENVIRONMENT)],
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *PACKAGES],
        ]
    return [
        [sys.executable, "-m", "venv", str(_ENVIRONMENT)],
        [str(python), "-m", "pip", "install", "--quiet", "--compile", *PACKAGES],
    ]


def _run(command: list[str]) -> None:
    # An activated virtualenv, or one that the caller runs in, is not the one meant.
    variables = {
        name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}
    }
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    print(peer_python())
