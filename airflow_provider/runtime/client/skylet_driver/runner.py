"""Running setup and run, and ending whatever they leave."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.client.skylet_driver.claim import state_directory
from airflow_provider.runtime.client.skylet_driver.output import Log
from airflow_provider.runtime.client.skylet_driver.processes import JOB_MARKER, descendants, sweep

if TYPE_CHECKING:
    from typing import Any

_LOGIN_SECONDS = 30.0
_LINGER_SECONDS = 1.0
_DRAIN_SECONDS = 1.0
_MAX_OUTPUT_BYTES = 64 * 1024

# What the user's ~/.bashrc gives, also below a guard that lets only interactive shells through.
_LOGIN = """
command -v conda >/dev/null 2>&1 || for d in ~/miniconda3 ~/miniforge3 ~/anaconda3 /opt/conda; do
  if [ -f "$d/etc/profile.d/conda.sh" ]; then . "$d/etc/profile.d/conda.sh"; break; fi
done >/dev/null 2>&1
builtin declare -f >&{functions}
builtin shopt -p extglob >&{functions} || :
command env -0 >&{variables}
"""

# Functions may hold patterns that bash can read only with extglob; the user's own setting comes afterwards. What bash
# cannot read all the same costs that function and those after it, and says nothing in the job's log.
_PROLOGUE = """unset BASH_ENV
shopt -s extglob
. {functions} >/dev/null 2>&1
builtin shopt {setting} extglob
"""


class _Cancelled(Exception):
    pass


class _Failed(Exception):
    def __init__(self, status: str, reason: str, code: int) -> None:
        super().__init__(reason)
        self.status, self.reason, self.code = status, reason, code


class Runner:
    """Runs one job; tells its way by lines of JSON through the descriptor ``tell``."""

    def __init__(self, order: dict[str, Any], tell: int) -> None:
        self._order = order
        self._tell = tell
        self._log = Log(Path(order["log"]).expanduser())
        self._workdir = Path("~/sky_workdir").expanduser()
        self._started = 0.0
        self._ended: dict[int, int] = {}
        self._cancelled = False
        self._out, self._in = os.pipe()
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._cancel)

    def _cancel(self, number: int, frame: object) -> None:
        self._cancelled = True

    def run(self) -> dict[str, Any]:
        """Run the job, end all that it left, and return the last word on it."""
        directory = Path(tempfile.mkdtemp(prefix="job-", dir=state_directory()))
        end: dict[str, Any]
        try:
            end = self._stages(directory)
        except _Cancelled:
            end = {"status": "CANCELLED", "reason": "told to end (SIGTERM)", "exit_codes": []}
        except _Failed as failed:
            end = {"status": failed.status, "reason": failed.reason, "exit_codes": [failed.code]}
        except Exception as error:
            reason = f"the job's driver failed: {type(error).__name__}: {error}"
            end = {"status": "FAILED_DRIVER", "reason": reason, "exit_codes": []}
        left = sweep(descendants, grace=self._order["grace_seconds"], wait=self._step)
        self._drain()
        if left:
            self._log.say("some processes of the job could not be killed")
        self._log.finish()
        shutil.rmtree(directory, ignore_errors=True)
        if self._log.lost:
            end["reason"] = (
                f"{end['reason']}; the disk did not take {self._log.lost} bytes of the log".lstrip("; ")
            )
        return {**end, "started_at": self._started, "ended_at": time.time(), "log_size": self._log.size}

    def _stages(self, directory: Path) -> dict[str, Any]:
        self._workdir.mkdir(parents=True, exist_ok=True)
        result = directory / "output.json"
        if self._order["setup"]:
            self._say_status("SETTING_UP")
            self._stage("setup", "FAILED_SETUP", directory, result)
        self._started = time.time()
        self._say_status("RUNNING")
        if self._order["run"]:
            self._stage("run", "FAILED", directory, result)
        deadline = time.monotonic() + _LINGER_SECONDS
        while not self._cancelled and descendants() and time.monotonic() < deadline:
            self._step(0.05)  # what the script left in the background may finish by itself
        return {"status": "SUCCEEDED", "reason": "", "exit_codes": [0], "output": _output(result)}

    def _stage(self, name: str, failed: str, directory: Path, result: Path) -> None:
        variables, functions = self._login()
        script, prologue = directory / f"{name}.sh", directory / f"{name}.prologue"
        file = directory / f"{name}.functions"
        script.write_bytes(self._order[name].encode("utf-8", "surrogateescape"))
        file.write_bytes(functions)
        kept = functions.endswith(b"\nshopt -s extglob\n")
        prologue.write_text(
            _PROLOGUE.format(functions=shlex.quote(str(file)), setting="-s" if kept else "-u")
        )
        variables.update(self._order["variables"])
        variables.update(
            {
                "TASK_OUTPUT_FILE": str(result),
                "PYTHONUNBUFFERED": "1",
                "SKYPILOT_INTERNAL_JOB_ID": str(self._order["job_id"]),
                "PWD": str(self._workdir),
                # bash expands the value as in double quotes.
                "BASH_ENV": re.sub(r'([\\$`"])', r"\\\1", str(prologue)),
                JOB_MARKER: self._order["marker"],
            }
        )
        pid = self._bash(script, variables)
        while pid not in self._ended:
            self._step(self._order["idle_seconds"], idle=True)
            if self._cancelled:
                raise _Cancelled
        status = self._ended.pop(pid)
        if status != 0:
            by_signal = os.WIFSIGNALED(status)
            code = 128 + os.WTERMSIG(status) if by_signal else os.WEXITSTATUS(status)
            how = f"was killed by signal {os.WTERMSIG(status)}" if by_signal else "failed"
            raise _Failed(failed, f"{name} {how} (exit code {code})", code)

    def _bash(self, script: Path, variables: dict[str, str]) -> int:
        try:
            os.chdir(self._workdir)
            return os.posix_spawn(
                "/bin/bash",
                ["/bin/bash", str(script)],
                variables,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self._in, 1),
                    (os.POSIX_SPAWN_DUP2, self._in, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError as error:
            raise _Failed("FAILED_SETUP", f"cannot start bash: {error}", 127) from error
        finally:
            os.chdir("/")

    def _login(self) -> tuple[dict[str, str], bytes]:
        """Return the variables of the user's shells, without the skylet's own, and their functions and extglob setting.

        The setting is the last line of the functions.
        """
        variables = dict(os.environ)
        own = variables.pop("VIRTUAL_ENV", None)
        if own:
            parts = variables.get("PATH", "").split(":")
            variables["PATH"] = ":".join(part for part in parts if part != f"{own}/bin")
        variables.pop("RAY_RAYLET_PID", None)
        if not Path("~/.bashrc").expanduser().exists():
            return variables, b""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as functions:
            shell = subprocess.Popen(
                [
                    "/bin/bash",
                    "-i",
                    "-c",
                    _LOGIN.format(functions=functions.fileno(), variables=given.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**variables, JOB_MARKER: self._order["marker"]},
                pass_fds=[given.fileno(), functions.fileno()],
                start_new_session=True,
            )
            deadline = time.monotonic() + _LOGIN_SECONDS
            while shell.pid not in self._ended and time.monotonic() < deadline:
                self._step(0.2)
                if self._cancelled:
                    raise _Cancelled
            shell.returncode = self._ended.pop(shell.pid, -1)  # collected here, not by its own wait
            given.seek(0)
            functions.seek(0)
            pairs = [item.split("=", 1) for item in os.fsdecode(given.read()).split("\0") if "=" in item]
            if not pairs:
                sweep(descendants, grace=0.0, wait=self._step)
                self._log.say("~/.bashrc fails, hangs or starts another shell: the job runs without it")
                return variables, b""
            return dict(pairs), functions.read()

    def _say_status(self, status: str) -> None:
        say(self._tell, {"status": status})

    def _step(self, seconds: float, *, idle: bool = False) -> None:
        """Wait until something happens, so long at most; take output and collect what ended."""
        ready = select.select([self._out, self._woken], [], [], seconds)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._out in ready:
            self._log.feed(os.read(self._out, 1 << 16))
        elif idle and not ready:
            self._log.idle()
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._ended[pid] = status

    def _drain(self) -> None:
        """Take what is left in the pipe; something that cannot be killed may keep it open."""
        os.close(self._in)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            if select.select([self._out], [], [], 0.1)[0]:
                data = os.read(self._out, 1 << 16)
                if not data:
                    return
                self._log.feed(data)


def say(tell: int, word: dict[str, Any]) -> None:
    """Write one line of JSON, all of it: a signal may cut a write short that waits for its reader.

    Raises:
        BrokenPipeError: nobody reads.
    """
    data = json.dumps(word).encode() + b"\n"
    while data:
        data = data[os.write(tell, data) :]


def _output(path: Path) -> str | None:
    """Return the JSON that the job wrote: a job whose result would be lost has not succeeded."""
    try:
        # Not blocking: the job may have left a FIFO there.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            data = file.read(_MAX_OUTPUT_BYTES + 1)
        if len(data) > _MAX_OUTPUT_BYTES:
            raise ValueError(f"it has more than {_MAX_OUTPUT_BYTES} bytes")
        text = data.decode()
        json.loads(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _Failed("FAILED", f"TASK_OUTPUT_FILE does not hold valid JSON: {error}", 0) from error
    return text
