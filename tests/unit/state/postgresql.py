"""A PostgreSQL server of our own for the tests, where its programs are installed."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    installed = shutil.which("initdb")
    return Path(installed).resolve().parent if installed else None


def available() -> bool:
    """Say whether a server can be started and talked to."""
    may_start = os.getuid() != 0 or bool(_user())
    return may_start and _programs() is not None and importlib.util.find_spec("psycopg2") is not None


def _user() -> str | None:
    """Return the user that the server runs as: it refuses to run as root."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a fresh server on a unix socket; ``{name}`` in it stands for a database's name."""
    programs = _programs()
    assert programs is not None
    # Not below pytest's own directory, which only its user can enter.
    home = Path(tempfile.mkdtemp(prefix="managed-jobs-pg-"))
    user = _user() if os.getuid() == 0 else None
    if user:
        shutil.chown(home, user)

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=user, cwd=home, timeout=60)

    try:
        run("initdb", "-D", f"{home}/data", "-U", "test", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-k {home} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
        run("pg_ctl", "-D", f"{home}/data", "-w", "-l", f"{home}/log", "-o", options, "start")
        try:
            yield f"postgresql+psycopg2://test@/{{name}}?host={home}"
        finally:
            run("pg_ctl", "-D", f"{home}/data", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home)
