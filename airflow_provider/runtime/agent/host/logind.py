"""Whether what a login starts lives on after the logout, and what it takes where it does not.

By default it does. Where systemd's logind says ``KillUserProcesses=yes``, all that belongs to a login session is killed
at its end; what runs in a scope of the user's own service manager is not, and that manager stays for users who linger.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from airflow_provider.runtime.agent.host.problem import HostProblem

_RUNNING = Path("run/systemd/system")
_LINGERS = Path("var/lib/systemd/linger")
_MAIN = Path("etc/systemd/logind.conf")
_MAINS = (_MAIN, Path("run/systemd/logind.conf"), Path("usr/lib/systemd/logind.conf"))
# Of two files of one name, the one in the first of these counts.
_DROP_INS = tuple(
    Path(above, "systemd/logind.conf.d") for above in ("etc", "run", "usr/local/lib", "usr/lib")
)
_LINE = re.compile(r"\s*(#?)\s*(KillUserProcesses|KillOnlyUsers|KillExcludeUsers)\s*=(.*)")
_YES = frozenset({"1", "yes", "y", "true", "t", "on"})
_SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--collect", "--")
_COMMAND_SECONDS = 20.0


def command_that_stays(system: Path = Path("/")) -> list[str]:
    """Return the words to put before a command so that what it starts survives the logout: mostly none.

    Args:
        system: The root of the file system.

    Raises:
        HostProblem: nothing that this account starts survives the logout.
    """
    user = pwd.getpwuid(os.geteuid()).pw_name
    if not (system / _RUNNING).is_dir() or not ends_with_the_session(user, system):
        return []
    if not (system / _LINGERS / user).exists():
        _linger(user)
    if shutil.which(_SCOPE[0]) is None:
        raise HostProblem(_cause(user), f"{_SCOPE[0]} is not installed; {_remedy(user)}")
    return list(_SCOPE)


def ends_with_the_session(user: str, system: Path = Path("/")) -> bool:
    """Return whether logind kills the user's processes at logout, as its configuration says."""
    said = _settings(system)
    if said.get("KillUserProcesses", "").lower() not in _YES:
        return False
    only, spared = said.get("KillOnlyUsers", "").split(), said.get("KillExcludeUsers", "root").split()
    return user not in spared and (not only or user in only)


def _settings(system: Path) -> dict[str, str]:
    drop_ins: dict[str, Path] = {}
    for folder in reversed(_DROP_INS):
        for file in (system / folder).glob("*.conf"):
            drop_ins[file.name] = file
    main = [file for name in _MAINS if (file := system / name).exists()][:1]
    said: dict[str, str] = {}
    for file in (*main, *(drop_ins[name] for name in sorted(drop_ins))):
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue  # what only root may read is not meant for others either
        for line in lines:
            found = _LINE.fullmatch(line)
            if found is None:
                continue
            comment, name, value = found.groups()
            if not comment:
                said[name] = value.strip()
            elif name == "KillUserProcesses":
                # Distributions ship the file with what was compiled in as comments.
                said.setdefault(name, value.strip())
    return said


def _linger(user: str) -> None:
    try:
        done = subprocess.run(
            ["loginctl", "enable-linger", user],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostProblem(f"{_cause(user)} (loginctl enable-linger: {error})", _remedy(user)) from error
    if done.returncode != 0:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        raise HostProblem(f"{_cause(user)} (loginctl enable-linger: {why})", _remedy(user))


def _cause(user: str) -> str:
    return f"logind kills all processes of {user} at logout (KillUserProcesses=yes)"


def _remedy(user: str) -> str:
    return (
        f"let an administrator run `loginctl enable-linger {user}`, or set KillUserProcesses=no in /{_MAIN} "
        "and restart systemd-logind"
    )
