"""How user text meets bash: the script files, and the note about commands that failed unseen."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_KEPT_FAILURES = 20

# bash reads this file (BASH_ENV) before the user's script, which stays a file of its own, byte for byte: no layer of
# ours quotes or expands user text. The ERR trap only notes failures; it changes neither exit codes nor control flow.
_PROLOGUE = """unset BASH_ENV
__managed_jobs_failures=0
__managed_jobs_failed() {{
  if [ "$__managed_jobs_failures" -lt {kept} ]; then
    __managed_jobs_failures=$((__managed_jobs_failures + 1))
    printf '%s\\t%s\\t%s\\n' "$1" "$2" "${{3%%$'\\n'*}}" >> {failures}
  fi
}}
trap '__managed_jobs_failed "$?" "$LINENO" "$BASH_COMMAND"' ERR
"""


def write_script(directory: Path, name: str, text: str, failures: Path) -> tuple[Path, Path]:
    """Write ``text`` as script ``name`` and the prologue beside it; return both paths."""
    script = directory / f"{name}.sh"
    script.write_bytes(text.encode("utf-8", "surrogateescape"))
    script.chmod(0o600)
    prologue = directory / f"{name}.prologue"
    prologue.write_text(_PROLOGUE.format(kept=_KEPT_FAILURES, failures=shlex.quote(str(failures))))
    return script, prologue


def unseen_failures(failures: Path) -> str | None:
    """Return a warning about commands that failed in a script that ended with 0, None when there were none.

    Shell semantics are bash's own: without ``set -e`` the exit code of the last command decides. A crash in the middle
    would pass for success without a word.
    """
    try:
        lines = failures.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    listed = []
    for line in lines:
        code, number, command = line.split("\t", 2)
        listed.append(f"line {number}: `{command}` exited with {code}")
    count = f"{len(lines)} or more commands" if len(lines) >= _KEPT_FAILURES else f"{len(lines)} command(s)"
    return (
        f"warning: {count} failed, but the script went on and ended with 0 ({'; '.join(listed[:3])}). "
        "Begin the script with `set -e` to stop at the first failure."
    )
