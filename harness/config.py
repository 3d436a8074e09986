"""The settings that make an Airflow small, quiet, private and quick."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path


def free_port() -> int:
    """Return a loopback TCP port that is free at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def airflow_env(home: Path, dags_folder: Path, *, quick: bool, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the processes of one Airflow.

    Args:
        home: AIRFLOW_HOME: configuration, SQLite database, logs.
        dags_folder: where the DAG files are.
        quick: look for new DAG files and for tasks to start more often than a production set-up would.
        extra: more variables; they win.
    """
    api = free_port()
    base_url = f"http://127.0.0.1:{api}"
    settings = {
        "CORE__DAGS_FOLDER": str(dags_folder),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "4",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        # The button in the form of a connection, which Airflow leaves out unless told otherwise.
        "CORE__TEST_CONNECTION": "Enabled",
        "CORE__EXECUTION_API_SERVER_URL": f"{base_url}/execution/",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(api),
        "API__BASE_URL": base_url,
        "API__WORKERS": "1",
        # One secret for all components: each would otherwise make up its own and refuse the others' tokens.
        "API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
        "LOGGING__COLORED_CONSOLE_LOG": "False",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    if quick:
        settings |= {
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "1",
            # A changed file is parsed at once all the same; parsing unchanged ones costs a second each.
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            # Each loop of the scheduler costs some 30 ms of processor time, also when there is nothing to do.
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
        }
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env |= {f"AIRFLOW__{name}": value for name, value in settings.items()}
    env |= {
        "AIRFLOW_HOME": str(home),
        # `python`, `bash` and `airflow` in tasks are those of this virtualenv.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        # Airflow renames its processes; without this, that overwrites the environment by which we find them.
        "SPT_NOENV": "1",
        "NO_COLOR": "1",
    }
    # Without bytecode every process would compile all of Airflow again.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env | dict(extra)
