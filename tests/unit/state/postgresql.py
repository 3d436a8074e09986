"""A PostgreSQL server of our own for the tests, where its programs are installed."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
    """Yield the URL of the one database of a fresh server on a unix socket."""
    programs = _programs()
    assert programs is not None
    # Not below pytest's own directory, which only its user can enter.
    home = Path(tempfile.mkdtemp(prefix="managed-jobs-pg-"))
    user = _user() if os.getuid() == 0 else None
    if user:
        shutil.chown(home, user)

    as_user: dict[str, Any] = {"user": user, "cwd": home, "stdout": subprocess.DEVNULL}
    try:
        initdb = [f"{programs}/initdb", "-D", f"{home}/data", "-U", "test", "-A", "trust", "--no-sync"]
        subprocess.run([*initdb, "-E", "UTF8"], check=True, timeout=120, **as_user)
        options = ["-k", str(home), "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"]
        with open(home / "log", "wb") as log:
            postgres = [f"{programs}/postgres", "-D", f"{home}/data", *options]
            running = subprocess.Popen(postgres, stderr=log, **as_user)
        try:
            while subprocess.run([programs / "pg_isready", "-q", "-h", home], check=False).returncode:
                assert running.poll() is None, (home / "log").read_text()
                time.sleep(0.05)
            yield f"postgresql+psycopg2://test@/postgres?host={home}"
        finally:
            running.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            running.wait(60)
    finally:
        shutil.rmtree(home)
