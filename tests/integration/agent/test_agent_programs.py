"""QueueJob: what the program that comes with it may be, where it is kept, and what it gets of the node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.agent.jobs_wire import (
    FAILED,
    FAILED_SETUP,
    PENDING,
    REPORT,
    RUNNING,
    SETTING_UP,
    SUCCEEDED,
    Wire,
    finished,
    refusal,
)
from tests.integration.clusters import Cluster


@pytest.fixture
def wire(cluster: Cluster) -> Wire:
    return Wire(cluster)


@pytest.fixture
def gpus(node_with_gpus: Cluster) -> Wire:
    return Wire(node_with_gpus)


def files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file() or path.is_symlink()}


# ---- how a program ends


async def test_the_exit_code_decides(wire: Wire) -> None:
    good, bad = await wire.program("print('good')"), await wire.program("import sys; sys.exit(42)")
    assert await wire.tail(good) == (finished("SUCCEEDED", "good\n"), 0)
    assert await wire.tail(bad) == (finished("FAILED"), 100)
    assert [await wire.exit_codes(good), await wire.exit_codes(bad)] == [[0], [42]]


async def test_what_a_program_cannot_be_understood_is_a_failure_with_its_words(wire: Wire) -> None:
    text, code = await wire.tail(await wire.program("this is no python"))
    assert code == 100
    assert "SyntaxError" in text


async def test_a_program_reports_its_stages_and_its_end(wire: Wire, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job_id = await wire.program(
        REPORT + f"report(status='SETTING_UP')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "report(status='FAILED_SETUP', exit_codes=[0, 3], reason='no space left')"
    )
    await wire.until(job_id, SETTING_UP)
    go.touch()
    assert await wire.ended(job_id) == FAILED_SETUP
    assert await wire.exit_codes(job_id) == [0, 3]
    assert (await wire.tail(job_id)).exit_code == 100


# ---- where it comes from


async def test_a_program_that_was_brought_over_by_other_means_runs(wire: Wire) -> None:
    path = wire.cluster.directory / "brought.py"
    path.write_text("print('x' * 200_000)")
    added = await wire.add()
    await wire.queue(added, None, script_path=str(path))
    assert (await wire.tail(added.job_id)).text == finished("SUCCEEDED", "x" * 200_000 + "\n")
    assert path.exists()
    path.unlink()


async def test_a_program_that_is_not_there_is_told_and_can_be_brought(wire: Wire) -> None:
    path = wire.cluster.directory / "later.py"
    added = await wire.add()
    code, words = await refusal(wire.queue(added, None, script_path=str(path)))
    assert code == "FAILED_PRECONDITION"
    assert f"{str(path)!r}, and no program came with the request: there is no such file" in words
    path.write_text("")
    await wire.queue(added, None, script_path=str(path))
    assert await wire.ended(added.job_id) == SUCCEEDED
    path.unlink()


@pytest.mark.parametrize(
    "script_path",
    [
        "",
        "/etc/passwd",
        "~/../../../../../../etc/passwd",
        "{root}/../../../../../../../../etc/passwd",
        "{root}/link",
        "agent.log",
        "../agent/agent.log",
        "{root}/\0",
        "{root}/" + "x" * 5000,
        "{root}/loop",
        "~nobody/x",
    ],
)
async def test_i3_18_a_program_from_elsewhere_is_refused(wire: Wire, script_path: str) -> None:
    root = wire.cluster.directory
    (root / "link").symlink_to("/etc/passwd")
    (root / "loop").symlink_to("loop")
    try:
        added = await wire.add()
        code, words = await refusal(
            wire.queue(added, None, script_path=script_path.format(root=root) if script_path else "")
        )
        assert code == "INVALID_ARGUMENT"
        assert words.startswith("script_path is ")
        assert len(words) < 1000
        assert not (root / "jobs" / str(added.job_id)).exists()
    finally:
        (root / "link").unlink()
        (root / "loop").unlink()


async def test_i3_18_a_program_is_written_nowhere_but_into_its_jobs_directory(
    wire: Wire, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    paths = [str(target), f"{wire.cluster.directory}/jobs/../target", "/root/../" + str(target).lstrip("/")]
    known = files(tmp_path)
    for path in paths:
        added = await wire.add()
        await wire.queue(added, "print('ran')", script_path=path)
        assert (await wire.tail(added.job_id)).text == finished("SUCCEEDED", "ran\n")
    assert files(tmp_path) == known
    assert not (wire.cluster.directory / "target").exists()


async def test_a_log_directory_of_somebody_else_is_refused(wire: Wire, tmp_path: Path) -> None:
    first, second = await wire.add(), await wire.add()
    for directory in (first.log_dir, str(tmp_path), "~/sky_logs/x", second.log_dir + "/../x", "\0"):
        code, words = await refusal(wire.queue(second, "", remote_log_dir=directory))
        assert (code, words) == (
            "INVALID_ARGUMENT",
            f"remote_log_dir is {directory!r}, the log directory of the job is {second.log_dir!r}",
        )
    await wire.queue(second, "", remote_log_dir="")
    assert await wire.ended(second.job_id) == SUCCEEDED


async def test_a_job_of_a_controller_cannot_be_queued_again_by_others(wire: Wire) -> None:
    job_id = await wire.cluster.start("echo ready; sleep 600")
    (info,) = await wire.jobs(all_jobs=False)
    added = type(await wire.add())(job_id=job_id, log_dir=info.log_path)
    assert await refusal(wire.queue(added, "")) == (
        "INVALID_ARGUMENT",
        f"job_id is {job_id}, which is no job of AddJob",
    )
    assert await wire.cancel(job_id) == [job_id]


@pytest.mark.parametrize(
    "name",
    [
        "../../../../tmp/escape",
        "..",
        "/etc/passwd",
        "Größe.campaña_🚀",
        "a" * 300,
        "-x",
        "x-",
        "",
        "a\0b",
        "a b\nc",
        "con",
        "\u202e\u200b",
        "*?[]$(reboot)",
    ],
)
async def test_k42_whatever_a_job_is_called_its_logs_stay_where_logs_belong(wire: Wire, name: str) -> None:
    added = await wire.add(name)
    logs = Path(added.log_dir)
    assert logs.parent == wire.cluster.directory / "sky_logs"
    assert logs.name.isascii()
    assert len(logs.name) < 100
    await wire.queue(added, "print('ran')")
    assert (await wire.tail(added.job_id)).text == finished("SUCCEEDED", "ran\n")
    assert (logs / "run.log").read_text() == "ran\n"
    assert (await wire.job(added.job_id)).job_name == name


async def test_a_job_without_a_name_has_a_dash(wire: Wire) -> None:
    added = await wire.add(None)
    assert (await wire.job(added.job_id)).job_name == "-"
    await wire.queue(added, "")
    assert await wire.ended(added.job_id) == SUCCEEDED


# ---- what it gets of the node

SHOW = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.mark.parametrize(
    ("resources", "devices"),
    [
        ("1x[CPU:0.5]", 0),
        ("1x[V100:1]", 1),
        ("1x[V100:4]", 4),
        ("1x[V100:0.5]", 1),
        ("1x[V100:2][Spot]", 2),
        ("", 0),
        ("what a person would write", 0),
    ],
)
async def test_the_words_for_resources_decide_which_devices_a_job_has(
    gpus: Wire, resources: str, devices: int
) -> None:
    text = (await gpus.tail(await gpus.program(SHOW, resources=resources))).text.splitlines()[0]
    assert len(set(filter(None, text.split(",")))) == devices


async def test_the_words_for_resources_decide_what_runs_at_once(gpus: Wire) -> None:
    whole = await gpus.running(resources="1x[CPU:2]")
    waits = await gpus.program("", resources="1x[CPU:1]")
    again = await gpus.program("", resources="1x[CPU:1+]")
    time_limit = time.monotonic() + 0.3
    while time.monotonic() < time_limit:
        assert await gpus.status(waits) == PENDING
    assert [await gpus.status(job_id) for job_id in (whole, waits, again)] == [RUNNING, PENDING, PENDING]
    assert await gpus.cancel(whole) == [whole]
    assert [await gpus.ended(job_id) for job_id in (waits, again)] == [SUCCEEDED, SUCCEEDED]


@pytest.mark.parametrize("resources", ["1x[CPU:3]", "1x[V100:5]", "1x[A100:1]"])
async def test_what_the_node_never_has_is_refused_with_the_reason(gpus: Wire, resources: str) -> None:
    code, words = await refusal(gpus.add(resources=resources))
    assert code == "INVALID_ARGUMENT"
    assert "can never run on this node" in words


@pytest.mark.parametrize(
    "resources",
    [
        "1x[CPU:nan]",
        "1x[CPU:-5]",
        "1x[CPU:inf]",
        "1x[V100:nan]",
        "1x[V100:1e400]",
        "1x[V100:-1]",
        "1x[V100:1.5]",
    ],
)
async def test_numbers_that_mean_nothing_are_refused(wire: Wire, resources: str) -> None:
    code, words = await refusal(wire.add(resources=resources))
    assert code == "INVALID_ARGUMENT"
    assert words.startswith(f"resources_str is {resources!r}: ")


# ---- the environment of a program


async def test_a_program_finds_what_the_agent_was_started_with_and_its_own_directory(wire: Wire) -> None:
    program = (
        "import os; mode = os.stat(__file__).st_mode & 0o777; "
        "print(os.getcwd(), os.environ['SKYPILOT_INTERNAL_JOB_ID'], oct(mode), flush=True)"
    )
    job_id = await wire.program(program)
    home = wire.cluster.directory / "jobs" / str(job_id) / "home"
    assert (await wire.tail(job_id)).text == finished("SUCCEEDED", f"{home}/sky_workdir {job_id} 0o600\n")


async def test_a_program_of_many_megabytes_runs(wire: Wire) -> None:
    program = f"text = {'y' * (6 << 20)!r}\nprint(len(text))"
    assert (await wire.tail(await wire.program(program))).text == finished("SUCCEEDED", f"{6 << 20}\n")


async def test_a_program_that_fails_does_not_stop_the_next_one(wire: Wire) -> None:
    ids = [await wire.program(f"import sys; sys.exit({number % 2})") for number in range(6)]
    assert [await wire.ended(job_id) for job_id in ids] == [SUCCEEDED, FAILED] * 3
