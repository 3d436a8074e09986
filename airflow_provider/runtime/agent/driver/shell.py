"""How user text meets bash: the script files, and the note about commands that failed unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider.runtime.agent.driver.login import Login

_KEPT_FAILURES = 20

# bash reads this file (BASH_ENV) before the user's script, which stays a file of its own, byte for byte: no layer of
# ours quotes or expands user text. The ERR trap only notes failures; it changes neither exit codes nor control flow,
# and what `set -x` would show of it goes nowhere.
_PROLOGUE = """unset BASH_ENV
{preparation}__managed_jobs_failures=0
__managed_jobs_failed() {{
  if [ "$__managed_jobs_failures" -lt {kept} ] && [ "$BASH_SUBSHELL" -eq 0 ]; then
    __managed_jobs_failures=$((__managed_jobs_failures + 1))
    printf '%s\\t%s\\t%s\\n' "$1" "$2" "${{3%%$'\\n'*}}" >> {failures}
  fi
  : "$4"
}}
trap '{{ __managed_jobs_failed "$?" "$LINENO" "$BASH_COMMAND" "$_"; }} 2>/dev/null' ERR
"""

# Functions may hold patterns that bash can read only with this option; the file's end sets it as the user has it.
_FUNCTIONS = """shopt -s extglob
. {file} >/dev/null 2>&1
"""

_CONDA = """. {file} >/dev/null 2>&1
"""

# What bash would have done with the user's own BASH_ENV.
_USERS_OWN = """export BASH_ENV={file}
if [ -r "$BASH_ENV" ]; then . "$BASH_ENV"; fi
"""


def write_script(
    directory: Path,
    name: str,
    text: str,
    failures: Path,
    *,
    bash_env: str | None = None,
    login: Login | None = None,
) -> tuple[Path, str]:
    """Write ``text`` as script ``name`` and the prologue beside it; return the script and the ``BASH_ENV`` to run it with.

    Args:
        directory: Where to write.
        name: ``setup`` or ``run``.
        text: The user's script.
        failures: File in which the script's failed commands are noted.
        bash_env: The user's own ``BASH_ENV``.
        login: What the user's interactive shells have beside variables.
    """
    script = directory / f"{name}.sh"
    write_text(script, text)
    preparation = ""
    if login is not None and login.functions:
        functions = directory / f"{name}.functions"
        write_text(functions, login.functions)
        preparation += _FUNCTIONS.format(file=_quoted(str(functions)))
    if login is not None and login.conda is not None:
        preparation += _CONDA.format(file=_quoted(str(login.conda)))
    lines = _PROLOGUE.format(preparation=preparation, kept=_KEPT_FAILURES, failures=_quoted(str(failures)))
    if bash_env:
        lines += _USERS_OWN.format(file=_quoted(bash_env))
    prologue = directory / f"{name}.prologue"
    write_text(prologue, lines)
    # bash expands the value as in double quotes.
    escaped = "".join(f"\\{letter}" if letter in '\\$`"' else letter for letter in str(prologue))
    return script, escaped


def write_text(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    path.chmod(0o600)


def unseen_failures(failures: Path) -> str | None:
    """Return a warning about commands that failed in a script that ended with 0, None when there were none.

    Shell semantics are bash's own: without ``set -e`` the exit code of the last command decides. A crash in the middle
    would pass for success without a word.
    """
    try:
        lines = failures.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError:
        return None
    found = [line.split("\t", 2) for line in lines if line.count("\t") >= 2]
    if not found:
        return None
    listed = [f"line {number}: `{command.strip()}` exited with {code}" for code, number, command in found[:3]]
    count = f"{len(found)} or more commands" if len(found) >= _KEPT_FAILURES else f"{len(found)} command(s)"
    return (
        f"warning: {count} failed, but the script went on and ended with 0 ({'; '.join(listed)}). "
        "Begin the script with `set -e` to stop at the first failure."
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"
