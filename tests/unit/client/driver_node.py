"""A node without SkyPilot: its job library is made up, the driver programs are real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from airflow_provider.runtime.client import JobRequest
from airflow_provider.runtime.client.skylet_program import janitor_program, marker, program
from airflow_provider.runtime.client.skylet_rows import row
from airflow_provider.runtime.wire import jobs_pb2 as pb

JANITOR = 100
"""The id of janitors: whoever has it or a higher one has another row than the jobs."""

# The parts that the program uses, with a file for the database. DELAY is how long importing SkyPilot takes.
JOB_LIB = """
import enum, json, os, pathlib, time
time.sleep(float(os.environ.get("DELAY", "0")))
ROW = pathlib.Path.home() / "row.json"
JANITOR = 100
class JobStatus(enum.Enum):
    PENDING, SETTING_UP, RUNNING, FAILED_DRIVER, SUCCEEDED, FAILED, FAILED_SETUP, CANCELLED = (
        "PENDING", "SETTING_UP", "RUNNING", "FAILED_DRIVER", "SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED")
    def is_terminal(self):
        return self.value not in ("PENDING", "SETTING_UP", "RUNNING")
def _file(job_id):
    return ROW if job_id < JANITOR else ROW.with_name("janitor.json")
def _row(job_id):
    file = _file(job_id)
    return json.loads(file.read_text()) if file.exists() else {"status": "PENDING", "told": []}
def _change(job_id, **fields):
    row = _row(job_id)
    row["told"].append(fields)
    row.update(fields)
    new = _file(job_id).with_suffix(".new")
    new.write_text(json.dumps(row))
    new.rename(_file(job_id))
def get_status(job_id):
    return JobStatus(_row(job_id)["status"])
get_status_no_lock = get_status
def set_status(job_id, status):
    _change(job_id, status=status.value)
def _set_status_no_lock(job_id, status):
    if status.value == "FAILED_SETUP" and get_status(job_id).is_terminal():
        return  # as SkyPilot's setter does
    set_status(job_id, status)
def set_job_started(job_id):
    _change(job_id, status="RUNNING")
def set_exit_codes(job_id, codes):
    _change(job_id, exit_codes=codes)
def update_job_metadata(job_id, updates):
    _change(job_id, metadata=updates)
def _get_lock_path(job_id):
    return str(ROW) + ".lock"
class scheduler:
    def schedule_step():
        pass
"""
FILELOCK = """
import contextlib
@contextlib.contextmanager
def FileLock(path):
    yield
"""


class Node:
    """A home on which programs run as a skylet starts them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        library = home / "library"
        (library / "sky" / "skylet").mkdir(parents=True)
        (library / "sky" / "__init__.py").touch()
        (library / "sky" / "skylet" / "__init__.py").touch()
        (library / "sky" / "skylet" / "job_lib.py").write_text(JOB_LIB)
        (library / "sky" / "skylet" / "autostop_lib.py").write_text("def set_last_active_time_to_now(): pass")
        (library / "filelock.py").write_text(FILELOCK)
        self.set_status("PENDING")
        self.started: list[subprocess.Popen[bytes]] = []
        self._markers: set[str] = set()

    def set_status(self, status: str) -> None:
        (self.home / "row.json").write_text(json.dumps({"status": status, "told": []}))

    def start(
        self,
        run: str,
        *,
        setup: str = "",
        key: str = "key",
        job_id: int = 1,
        delay: float = 0,
        **fields: object,
    ) -> subprocess.Popen[bytes]:
        """Start the program of a job."""
        envs = fields.pop("envs", {})
        key = f"{key} {self.home}"
        self._markers.add(marker(key))
        text = program(
            key=key,
            marker=marker(key),
            job_id=job_id,
            log=str(self.home / f"log-{job_id}" / "run.log"),
            metadata={"key": key},
            job=JobRequest(name="j", setup=setup, run=run, envs=envs, secrets={}, grace_seconds=0.5),  # type: ignore[arg-type]
            idle_seconds=float(str(fields.pop("idle_seconds", 30))),
        )
        return self._start(text, delay)

    def clean_up(self, *, key: str = "key", job_id: int = 1) -> subprocess.Popen[bytes]:
        """Start the program that cleans up after a job."""
        fields = {"key": f"{key} {self.home}", "generation": 3, "grace_seconds": 0.5}
        info = pb.JobInfo(
            job_id=job_id, metadata=json.dumps({"managed_jobs": fields}), status=pb.JOB_STATUS_CANCELLED
        )
        text = janitor_program(
            job=row(info),
            log=str(self.home / f"log-{job_id}" / "run.log"),
            janitor_id=JANITOR,
            janitor_metadata={"janitor_of": job_id},
        )
        return self._start(text, 0)

    def _start(self, text: str, delay: float) -> subprocess.Popen[bytes]:
        file = self.home / f"program-{len(self.started)}"
        file.write_text(text)
        started = subprocess.Popen(
            [sys.executable, "-u", str(file)],
            cwd=self.home,
            env={
                "HOME": str(self.home),
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(self.home / "library"),
                "DELAY": str(delay),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(started)
        return started

    def run(self, run: str, **fields: object) -> int:
        """Run a program to its end and return its exit code."""
        started = self.start(run, **fields)  # type: ignore[arg-type]
        said = started.communicate(timeout=60)[0]
        assert said == b"", said
        return started.returncode

    def log(self, job_id: int = 1) -> str:
        file = self.home / f"log-{job_id}" / "run.log"
        return file.read_bytes().decode() if file.exists() else ""

    @property
    def row(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.home / "row.json").read_text())
        return found

    @property
    def janitor(self) -> dict[str, object]:
        file = self.home / "janitor.json"
        found: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
        return found

    @property
    def end(self) -> dict[str, object]:
        found: dict[str, object] = self.row["metadata"]["managed_jobs"]["end"]  # type: ignore[index, call-overload]
        return found

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what}; the log: {self.log()}"
            time.sleep(0.01)

    def below(self) -> list[psutil.Process]:
        """Return the live processes of the jobs."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("MANAGED_JOBS_JOB") in self._markers
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found
