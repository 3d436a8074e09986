"""A task's log: every line, once, in order, whatever the job prints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from harness.managed import ManagedJobs
from tests.e2e.conftest import Run

StartDag = Callable[..., Run]

VALUE = "a b'c\"d`e$f\\g\nline2 ünï"
HERE_DOCUMENT = "'single' \"double\" `tick` $HOME \\n %s {{braces}} !bang\n"


def test_80000_lines_in_13_seconds_are_all_in_the_task_log_once_and_in_order(
    run_dag: StartDag, managed_jobs: ManagedJobs
) -> None:
    run = run_dag(
        """
        managed_job(tasks=[{"name": "chatty", "workdir": "code", "run": "python print_lines.py"}], name="lines")
        """,
        files={
            "code/print_lines.py": """
import time
begin = time.monotonic()
for number in range(80_000):
    print(f"line {number:05} {'x' * 88}")
    ahead = number * 13 / 80_000 - (time.monotonic() - begin)
    if ahead > 0.05:
        time.sleep(ahead)
"""
        },
    )

    run.succeed()

    records = run.log("lines.chatty")
    numbers = [
        int(number)
        for record in records
        for number in re.findall(r"^line (\d+) ", record.event, re.MULTILINE)
    ]
    assert numbers == list(range(80_000))
    assert len(records) < 20_000, "lines that come fast share a record"
    assert managed_jobs.wait_until_clean(5) == []


def test_k19_k60_k71_odd_bytes_quotes_and_a_last_line_without_its_newline_arrive(run_dag: StartDag) -> None:
    run = run_dag(
        r"""
        managed_job(HERE / "odd.yaml", workdir=str(HERE / "it's a dir"))
        """,
        files={
            "it's a dir/some file.txt": "from a path with a space and an apostrophe\n",
            "odd.yaml": r"""
name: odd
envs: {V: "a b'c\"d`e$f\\g\nline2 ünï"}
run: |
  cat "some file.txt"
  cat <<'EOF' > "$HOME/k60 dir.txt"
  'single' "double" `tick` $HOME \n %s {{braces}} !bang
  EOF
  printf '%s' "$V" | sha256sum; sha256sum < "$HOME/k60 dir.txt"; awk '{print $1}' <<< "x y"
  printf 'bytes \200\377\000 raw\n'
  printf 'progress 1\rprogress 2\rprogress 3\n'
  printf 'no-newline-end'
""",
        },
    )

    run.succeed()

    log = run.log_text("odd.odd")
    assert "from a path with a space and an apostrophe" in log
    assert hashlib.sha256(VALUE.encode()).hexdigest() in log
    assert hashlib.sha256(HERE_DOCUMENT.encode()).hexdigest() in log
    assert "\nx\n" in log
    assert "bytes \ufffd\ufffd\\x00 raw" in log
    assert "progress 3" in log
    assert "progress 1" not in log
    assert "no-newline-end" in log
