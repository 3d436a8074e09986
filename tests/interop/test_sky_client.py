"""SkyPilot's own client against our agent: every call of the table, made and read by SkyPilot's own code."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agents import Agent
from tests.interop.peer import Skylet

SCRIPT = Path(__file__).parent / "scripts" / "sky_client.py"
_SECONDS = 100


class Outcomes:
    """What became of the scenarios, and where the agent had its files."""

    def __init__(self, root: Path, found: dict[str, dict[str, object]]) -> None:
        self.root = root
        self._found = found

    def __getitem__(self, scenario: str) -> object:
        outcome = self._found[scenario]
        assert "error" not in outcome, outcome["error"]
        return outcome["value"]


async def _drive(home: Path) -> Outcomes:
    root, peer = home / "cluster", home / "peer"
    root.mkdir()
    peer.mkdir()
    agent = Agent(root)
    try:
        await agent.start()
        printed = await asyncio.to_thread(
            Skylet(peer).run,  # its virtualenv and home; no skylet runs
            SCRIPT.read_text(encoding="utf-8"),
            [str(root / "agent" / "agent.sock")],
            timeout=_SECONDS,
        )
    finally:
        await agent.close()
        agent.end()
    return Outcomes(root, json.loads(printed.splitlines()[-1]))


@pytest.fixture(scope="module")
def sky() -> Iterator[Outcomes]:
    """One process for all: importing SkyPilot takes seconds."""
    home = Path(tempfile.mkdtemp(prefix="sky-client-"))  # short: the path of a socket has 107 bytes at most
    try:
        yield asyncio.run(_drive(home))
    finally:
        shutil.rmtree(home)


FINISHED = "Job finished (status: {}).\n"
LOG = "one\ntwo\nthree\n" + FINISHED.format("SUCCEEDED")


def test_a_cluster_that_has_had_no_job_yet(sky: Outcomes) -> None:
    assert sky["nothing_yet"] == [{}, [], {}, ["Job not found: this cluster has had no job yet\n", 102]]


def test_a_job_is_added_queued_followed_and_shown(sky: Outcomes) -> None:
    good = sky["good"]
    assert isinstance(good, dict)
    job = good.pop("job")
    assert good == {
        "text": LOG,
        "code": 0,
        "status": "SUCCEEDED",
        "end of log": ["three\n" + FINISHED.format("SUCCEEDED"), 0],
        "middle of log": ["two\n" + FINISHED.format("SUCCEEDED"), 0],
        "latest": [LOG, 0],
        "metadata": {"1": {"git_commit": "abc"}},
    }
    assert (job["job_id"], job["job_name"], job["status"]) == (1, "a job", "SUCCEEDED")
    assert (job["resources"], job["metadata"]) == ("1x[CPU:0.5]", {"git_commit": "abc"})
    assert job["run_timestamp"].startswith("sky-")
    assert job["user_hash"]


def test_a_job_that_fails_has_its_exit_codes(sky: Outcomes) -> None:
    assert sky["bad"] == {
        "text": "oh\n" + FINISHED.format("FAILED"),
        "code": 100,
        "status": "FAILED",
        "exit codes": [3],
    }


def test_times_are_exact_where_the_wire_can_carry_them(sky: Outcomes) -> None:
    assert sky["times"] == {"in order": True, "near": [True, True]}


def test_i1_07_the_newest_job_or_a_named_one_is_cancelled(sky: Outcomes) -> None:
    assert sky["cancel"] == {
        "while it runs": ["", 0],
        "after the newest": ["RUNNING", "CANCELLED"],
        "after both": ["CANCELLED", "CANCELLED"],
        "log": ["up\n" + FINISHED.format("CANCELLED"), 103],
        "queue": [],
    }


def test_all_jobs_are_cancelled(sky: Outcomes) -> None:
    assert sky["cancel_all"] == {"queue": True, "statuses": ["CANCELLED"] * 3}


def test_jobs_of_a_cluster_that_was_stopped_have_failed(sky: Outcomes) -> None:
    assert sky["restart_of_a_stopped_cluster"] == ["RUNNING", "FAILED_DRIVER", True, 100]


def test_the_directories_of_logs_are_told(sky: Outcomes) -> None:
    found = sky["logs_to_download"]
    assert isinstance(found, dict)
    assert found["only"] is True
    assert Path(found["directory"]).parent == sky.root / "sky_logs"


def test_an_unknown_job_is_none_and_its_log_is_not_found(sky: Outcomes) -> None:
    assert sky["unknown"] == {"status": None, "log": ["Job not found: no job 987654 on this cluster\n", 102]}


def test_i1_04_a_job_that_is_queued_again_does_not_run_again(sky: Outcomes) -> None:
    assert sky["queued_twice"] == ["SUCCEEDED", ["once\n" + FINISHED.format("SUCCEEDED"), 0]]


def test_i1_08_what_is_not_found_is_neither_repeated_nor_tried_over_ssh(sky: Outcomes) -> None:
    assert sky["not_found"] == ["NOT_FOUND", "no job 987654 on this cluster"]


def test_autostop_is_set_and_cancelled(sky: Outcomes) -> None:
    assert sky["autostop"] == {
        "stored": [["test", 60, False], ["test", 30, True], ["test", -1, False]],
        "autostopping": False,
    }


def test_a_cluster_that_stops_says_so(sky: Outcomes) -> None:
    assert sky["autostopping"] is True


def test_managed_jobs_are_registered_shown_and_cancelled(sky: Outcomes) -> None:
    found = sky["managed_jobs"]
    assert isinstance(found, dict)
    assert found.pop("version") == found.pop("version wanted")
    task = ["PENDING", {"key": "value"}, True, "WAITING"]
    assert found == {
        "ids by name": True,
        "rows": [[0, "task-0", *task], [1, "task-1", *task]],
        "in order": True,
        "message": "Scheduled to be cancelled: job <id>.",
        "after": [["CANCELLED", True, "DONE"]] * 2,
        "exit code of its log": 103,
        "infra_match_applied": True,
    }


def test_services_are_not_implemented_as_skypilot_understands_it(sky: Outcomes) -> None:
    outcomes = sky["services"]
    assert isinstance(outcomes, dict)
    assert len(outcomes) == 6
    for name, outcome in outcomes.items():
        assert outcome.startswith("not implemented: ")
        assert f"{name}: this agent runs jobs" in outcome
