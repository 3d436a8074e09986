"""What a user's interactive shells have, for scripts that are not interactive.

conda, nvm, pyenv and many more are set up in ``~/.bashrc``, which returns at once in shells that are not interactive.
SkyPilot therefore runs user text in ``bash -i``, and so lets everything that this file prints, asks or starts into the
job. Here an interactive bash reads the file beforehand, by itself: its exported variables and its functions are kept,
all else is dropped. A file that hangs, fails or starts another shell costs the job nothing but this environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from airflow_provider.runtime.agent.process import processes

LIMIT_VARIABLE = "MANAGED_JOBS_BASHRC_SECONDS"
"""Environment variable of the agent: how long ``~/.bashrc`` may take."""

_LIMIT_SECONDS = 30.0

# Aliases and functions of the user's do not reach into this: it is parsed before they exist, and names builtins.
# Whatever becomes of the shell but for `exec`, the trap or the last line keeps what was set up to then. A trap of the
# user's own, which would for instance end an agent that the job needs, does not run.
_RC = r"""__managed_jobs_keep() {{
  builtin trap - EXIT DEBUG ERR RETURN
  builtin set +eufx
  builtin local IFS=$'\n' __managed_jobs_name
  builtin unset -f __managed_jobs_keep
  {{
    for __managed_jobs_name in $(builtin compgen -e); do
      [[ -n ${{!__managed_jobs_name+x}} ]] || builtin continue
      builtin printf '%s=%s\0' "$__managed_jobs_name" "${{!__managed_jobs_name}}"
    done
    builtin printf '\0'
    builtin declare -f
    builtin declare -Fx
    builtin shopt -p extglob
    builtin printf '\0'
  }} >| {kept}
  builtin exit 0
}}
builtin trap __managed_jobs_keep EXIT
. "$HOME/.bashrc"
__managed_jobs_keep
"""

# About the shell that read the file, not about the user.
_OF_THE_SHELL = frozenset(
    {
        "_",
        "BASHOPTS",
        "BASH_ENV",
        "COLUMNS",
        "HOME",
        "IFS",
        "LINES",
        "OLDPWD",
        "PS1",
        "PWD",
        "SHELLOPTS",
        "SHLVL",
    }
)

_CONDA_HOMES = ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "miniconda", "anaconda", "conda")


class Login(NamedTuple):
    """What the user's interactive shells have."""

    variables: dict[str, str]
    """The whole environment."""
    functions: str = ""
    """The definitions of all functions, to be read with extended patterns on; the last line sets these as they were."""
    conda: Path | None = None
    """What defines the ``conda`` function where the user's own files do not."""


def limit() -> float:
    """Return how many seconds ``~/.bashrc`` may take."""
    try:
        return max(0.0, float(os.environ.get(LIMIT_VARIABLE, _LIMIT_SECONDS)))
    except ValueError:
        return _LIMIT_SECONDS


def exists(home: Path) -> bool:
    """Return whether there is anything to read."""
    return os.path.isfile(home / ".bashrc")  # noqa: PTH113 - half the time, and before every job's first line


def command(directory: Path, keep: int) -> list[str]:
    """Return the command that reads ``~/.bashrc`` and writes what it sets to the descriptor ``keep`` of this process.

    The descriptor is opened by path and not handed down: what the file starts in the background must not have it.
    """
    rc = directory / "login.rc"
    rc.write_bytes(os.fsencode(_RC.format(kept=f"/proc/{os.getpid()}/fd/{keep}")))
    return ["/bin/bash", "--rcfile", str(rc), "-i", "-c", ":"]


def parse(data: bytes, environment: dict[str, str]) -> Login | None:
    """Return what the command wrote; None when it did not come to its end.

    Args:
        data: What the command wrote.
        environment: The environment that the command had: what is in it for the sake of the shell comes from here.
    """
    variables, middle, functions = data.partition(b"\0\0")
    if not middle or not functions.endswith(b"\0"):
        return None
    kept = {}
    for entry in variables.decode("utf-8", "surrogateescape").split("\0"):
        name, _, value = entry.partition("=")
        if name not in _OF_THE_SHELL:
            kept[name] = value
    for name in (*_OF_THE_SHELL, processes.JOB_MARKER, processes.CLUSTER_MARKER):
        kept.pop(name, None)
        if name in environment:
            kept[name] = environment[name]
    return Login(kept, functions[:-1].decode("utf-8", "surrogateescape"))


def with_conda(login: Login, home: Path) -> Login:
    """Return ``login`` with a ``conda`` function if there is an installation and no such function."""
    if "\nconda ()" in f"\n{login.functions}":
        return login
    homes = [home / name for name in _CONDA_HOMES] + [Path("/opt", name) for name in _CONDA_HOMES]
    for folder in login.variables.get("PATH", "").split(":"):
        program = os.path.join(folder, "conda")  # noqa: PTH118 - as above
        if os.access(program, os.X_OK):
            homes.insert(0, Path(program).resolve().parents[1])
            break
    for root in homes:
        script = root / "etc" / "profile.d" / "conda.sh"
        if os.access(script, os.R_OK):
            return login._replace(conda=script)
    return login
