"""The controller with real clusters: what a task does, and what becomes of it when things die."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.control import reconcile
from airflow_provider.runtime.control.events import Outcome
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.state import StateStore, StoreUnavailable, TaskRecord
from airflow_provider.runtime.task.spec import JobRecovery
from tests.integration.control.lab import Lab

CANCEL = Outcome(Status.CANCELLED, "a user cancelled")


async def test_a_task_runs_with_its_files_and_leaves_its_output(lab: Lab, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "greeting").write_text("hello from a file")
    record = await lab.run(
        "cat greeting; echo; echo $EPOCHS $TOKEN $SKYPILOT_TASK_ID; printf '{\"loss\": 1}' > $TASK_OUTPUT_FILE",
        files=source,
        setup="echo setting up",
        envs={"EPOCHS": "3"},
        secrets={"TOKEN": "variable:token"},
    )
    assert record.status is Status.SUCCEEDED
    assert record.output is not None
    assert json.loads(record.output) == {"loss": 1}
    assert lab.log.lines == ["setting up", "hello from a file", f"3 s3cret {record.task_ids()[0]}"]
    assert "s3cret" not in repr(lab.store.events(record.id))


async def test_k14_an_exit_code_fails_the_task_with_its_last_lines(lab: Lab) -> None:
    record = await lab.run("seq 100; echo the reason >&2; exit 3")
    outcome = record.state.outcome
    assert outcome is not None
    assert (record.status, outcome.exit_codes) == (Status.FAILED, (3,))
    assert outcome.reason == "run failed with exit code 3"
    assert outcome.last_lines[-2:] == ("100", "the reason")
    assert len(outcome.last_lines) == 20


async def test_k14_k71_a_signal_fails_the_task_and_what_was_printed_right_before_is_shown(lab: Lab) -> None:
    record = await lab.run("printf 'last words'; kill -9 $$")
    assert record.status is Status.FAILED
    assert record.recoveries == 0
    assert record.state.outcome is not None
    assert record.state.outcome.reason == "run was killed by SIGKILL (exit code 137)"
    assert lab.log.lines == ["last words"]


async def test_k14_a_setup_that_fails_has_its_own_status(lab: Lab) -> None:
    record = await lab.run("echo never", setup="echo broken; exit 4")
    assert record.status is Status.FAILED_SETUP
    assert lab.log.lines == ["broken"]


async def test_k71_a_line_of_a_quiet_job_is_shown_at_once_and_the_last_one_without_its_newline(
    lab: Lab, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    record = lab.intend(f"echo START; until [ -e {flag} ]; do sleep 0.05; done; printf no-newline-end")
    running = asyncio.create_task(lab.controller(record).run())
    await lab.log.seen("START")
    flag.touch()
    assert (await running).status is Status.SUCCEEDED
    assert lab.log.lines == ["START", "no-newline-end"]


async def test_k71_a_thousand_lines_and_a_quick_end_are_all_shown(lab: Lab) -> None:
    assert (await lab.run("seq 1000")).status is Status.SUCCEEDED
    assert lab.log.lines == [str(number) for number in range(1, 1001)]


async def test_k19_k71_characters_arrive_whole_and_raw_bytes_do_no_harm(lab: Lab) -> None:
    script = (
        "import sys; w=sys.stdout.buffer.write; [w('€'.encode()*999+b'\\n') for _ in range(300)]; "
        "w(b'\\x80\\xff\\x00 raw\\n'); w(b'no-newline-end')"
    )
    record = await lab.run(f'LANG=C python3 -c "{script}"')
    assert record.status is Status.SUCCEEDED
    assert lab.log.lines == ["€" * 999] * 300 + ["��\\x00 raw", "no-newline-end"]


async def test_eighty_thousand_lines_come_once_in_order_and_several_to_a_record(lab: Lab) -> None:
    pad = "x" * 92
    record = await lab.run(f"seq -f 'L%.0f {pad}' 80000")
    assert record.status is Status.SUCCEEDED
    assert lab.log.lines == [f"L{number} {pad}" for number in range(1, 80_001)]
    assert len(lab.log.records) < 4_000


async def test_two_hundred_megabytes_pass_through_little_memory(lab: Lab) -> None:
    lab.log.keep = False
    size = 200_000_000
    line = "y" * 99
    await lab.run("true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = lab.log.size
    record = await lab.run(f"yes {line} | head -c {size}")
    assert record.status is Status.SUCCEEDED
    assert lab.log.size - begin == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


async def _preempt_when(lab: Lab, record: TaskRecord, sign: str, **values: Any) -> TaskRecord:
    running = asyncio.create_task(lab.controller(record, **values).run())
    await lab.log.seen(sign)
    await asyncio.to_thread(lab.infra.preempt, record.cluster_name)
    return await asyncio.wait_for(running, 60)


WORK = "echo attempt-$TASK_ATTEMPT >> $EFFECTS; echo working; if [ $TASK_ATTEMPT = 1 ]; then sleep 600; fi"


@pytest.mark.parametrize("sign", ["is up", "── digits", "working"])
async def test_a_preempted_cluster_is_replaced_wherever_the_task_was(lab: Lab, sign: str) -> None:
    record = await _preempt_when(lab, lab.intend(WORK), sign)
    assert (record.status, record.recoveries, record.attempt) == (Status.SUCCEEDED, 1, 2)
    assert lab.side_effects() in (["attempt-2"], ["attempt-1", "attempt-2"])


async def test_a_cluster_preempted_while_it_starts_is_launched_again(lab: Lab) -> None:
    record = await _preempt_when(lab, lab.intend("echo done >> $EFFECTS"), "starting the agent")
    assert record.status is Status.SUCCEEDED
    assert lab.side_effects() == ["done"]


async def test_a_cluster_preempted_during_setup_is_replaced(lab: Lab) -> None:
    setup = "echo setting up; if [ $TASK_ATTEMPT = 1 ]; then sleep 600; fi"
    record = await _preempt_when(lab, lab.intend("echo done", setup=setup), "setting up")
    assert (record.status, record.recoveries, record.attempt) == (Status.SUCCEEDED, 1, 2)
    assert lab.log.lines == ["setting up", "setting up", "done"]


async def test_k32_the_id_is_the_same_over_recoveries_and_tries_and_the_attempts_are_counted(
    lab: Lab,
) -> None:
    script = "echo $SKYPILOT_TASK_ID $TASK_ATTEMPT; case $TASK_ATTEMPT in 1) sleep 600;; 2) exit 3;; esac"
    record = await _preempt_when(lab, lab.intend(script), "sky-managed-")
    assert (record.status, record.attempt) == (Status.FAILED, 2)
    record = await lab.controller(lab.next_try(record)).run()
    assert (record.status, record.attempt) == (Status.SUCCEEDED, 3)
    (task_id,) = record.task_ids()
    assert lab.log.lines == [f"{task_id} {attempt}" for attempt in (1, 2, 3)]
    headings = [line for line in lab.log.said if line.startswith("──")]
    assert [f"attempt {n}," in line for n, line in enumerate(headings, 1)] == [True] * 3


async def test_k32_a_recovery_restarts_only_its_stage_and_so_does_a_retry(lab: Lab, tmp_path: Path) -> None:
    stages = ("prepare", "train", "evaluate")
    checkpoint = tmp_path / "checkpoint"  # of a stage that finds it by its id
    scripts = {
        "prepare": "true",
        "train": f"""
            [ ! -e {checkpoint}-$SKYPILOT_TASK_ID ] || {{ echo resumed >> $EFFECTS; exit 0; }}
            touch {checkpoint}-$SKYPILOT_TASK_ID; echo half of it; sleep 600""",
        "evaluate": "[ $TASK_ATTEMPT = 2 ] || exit 3",
    }
    records = {
        name: lab.intend(
            f"echo {name}-$TASK_ATTEMPT >> $EFFECTS; {scripts[name]}",
            name=name,
            stages=stages,
            setup=f"echo $SKYPILOT_TASK_ID >> {tmp_path}/ids",
        )
        for name in stages
    }
    assert (await lab.controller(records["prepare"]).run()).status is Status.SUCCEEDED
    trained = await _preempt_when(lab, records["train"], "half of it")
    assert (trained.status, trained.recoveries) == (Status.SUCCEEDED, 1)
    failed = await lab.controller(records["evaluate"]).run()
    assert failed.status is Status.FAILED
    assert (await lab.controller(lab.next_try(failed)).run()).status is Status.SUCCEEDED
    assert lab.side_effects() == ["prepare-1", "train-1", "train-2", "resumed", "evaluate-1", "evaluate-2"]
    one, two, three = trained.task_ids()
    assert (tmp_path / "ids").read_text().split() == [one, two, two, three, three]


async def test_without_recovery_a_preempted_cluster_fails_the_task(lab: Lab) -> None:
    record = await _preempt_when(lab, lab.intend(WORK, recovery=JobRecovery("NONE")), "working")
    assert record.status is Status.FAILED
    assert record.state.outcome is not None
    assert "job_recovery is none" in record.state.outcome.reason


async def test_an_agent_that_is_killed_costs_the_job_nothing(lab: Lab, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    record = lab.intend(
        f"echo begun; until [ -e {flag} ]; do sleep 0.05; done; seq 1000; echo end >> $EFFECTS"
    )
    running = asyncio.create_task(lab.controller(record).run())
    await lab.log.seen("begun")
    lab.kill_agent(record)
    flag.touch()
    record = await asyncio.wait_for(running, 60)
    assert (record.status, record.attempt, record.recoveries) == (Status.SUCCEEDED, 1, 0)
    assert lab.log.lines == ["begun", *map(str, range(1, 1001))]
    assert lab.side_effects() == ["end"]


@pytest.mark.parametrize("sign", ["starting the agent", "is up", "── digits", "working"])
async def test_a_cancel_ends_the_task_wherever_it_was(lab: Lab, sign: str) -> None:
    controller = lab.controller(lab.intend(WORK))
    running = asyncio.create_task(controller.run())
    await lab.log.seen(sign)
    controller.stop(CANCEL)
    record = await asyncio.wait_for(running, 60)
    assert record.status is Status.CANCELLED
    assert record.recoveries == 0


async def test_a_cancelled_job_may_clean_up_and_its_last_words_are_shown(lab: Lab) -> None:
    controller = lab.controller(
        lab.intend("trap 'echo saving; exit 0' TERM; echo working; while :; do sleep 0.05; done")
    )
    running = asyncio.create_task(controller.run())
    await lab.log.seen("working")
    controller.stop(CANCEL)
    assert (await running).status is Status.CANCELLED
    assert lab.log.lines[0] == "working"
    assert "saving" in lab.log.lines


async def test_a_deadline_ends_a_job(lab: Lab) -> None:
    record = lab.intend("echo working; sleep 600", deadline=time.time() + 1.5)
    record = await asyncio.wait_for(lab.controller(record).run(), 60)
    assert record.status is Status.FAILED
    assert record.state.outcome is not None
    assert "execution_timeout" in record.state.outcome.reason


async def test_failures_are_restarted_within_the_budget(lab: Lab) -> None:
    record = await lab.run(
        "echo $TASK_ATTEMPT >> $EFFECTS; exit 1", recovery=JobRecovery(max_restarts_on_errors=1)
    )
    assert (record.status, record.state.restarts_on_errors) == (Status.FAILED, 1)
    assert lab.side_effects() == ["1", "2"]


async def test_exit_codes_that_ask_for_a_restart_get_one(lab: Lab) -> None:
    record = await lab.run(
        "[ $TASK_ATTEMPT = 3 ] || exit 75", recovery=JobRecovery(recover_on_exit_codes=(75,))
    )
    assert (record.status, record.attempt, record.state.restarts_on_errors) == (Status.SUCCEEDED, 3, 0)


async def test_a_new_controller_goes_on_with_the_job_that_runs(lab: Lab, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    record = lab.intend(
        f"echo one >> $EFFECTS; echo begun; until [ -e {flag} ]; do sleep 0.05; done; echo end"
    )
    running = asyncio.create_task(lab.controller(record).run())
    await lab.log.seen("begun")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    flag.touch()
    record = await lab.controller(lab.claim(record)).run()
    assert (record.status, record.attempt) == (Status.SUCCEEDED, 1)
    assert lab.side_effects() == ["one"]
    assert [line for line in lab.log.lines if line == "end"] == ["end"]


async def test_a_superseded_controller_lets_go_and_its_successor_finishes(lab: Lab, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    record = lab.intend(f"echo one >> $EFFECTS; echo begun; until [ -e {flag} ]; do sleep 0.05; done")
    first = asyncio.create_task(lab.controller(record).run())
    await lab.log.seen("begun")
    second = asyncio.create_task(lab.controller(lab.claim(record)).run())
    with pytest.raises(Superseded):
        await asyncio.wait_for(first, 60)
    assert lab.infra.clusters() == [record.cluster_name]
    flag.touch()
    assert (await asyncio.wait_for(second, 60)).status is Status.SUCCEEDED
    assert lab.side_effects() == ["one"]


async def test_a_cleared_task_ends_its_job_and_runs_anew(lab: Lab) -> None:
    record = lab.intend(WORK)
    first = asyncio.create_task(lab.controller(record).run())
    await lab.log.seen("working")
    first.cancel()
    await asyncio.wait({first})
    cleared = lab.store.intend(
        record.key,
        owner="try-2",
        max_tries=1,
        order=record.order,
        decide=lambda found: reconcile.reconcile(found, max_tries=1).state,
    )
    ended = await asyncio.wait_for(lab.controller(cleared).run(), 60)
    assert (ended.status, ended.attempt) == (Status.SUCCEEDED, 2)
    assert lab.side_effects() == ["attempt-1", "attempt-2"]


class Died(BaseException):
    """The process is gone."""


class DyingStore:
    """A store whose caller dies right after its ``k``-th transition; or that is away for the first calls."""

    def __init__(self, store: StateStore, *, k: int = -1, away: int = 0) -> None:
        self._store = store
        self._left = k
        self.away = away

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transition(self, record: TaskRecord, **values: Any) -> TaskRecord:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("connection refused")
        after = self._store.transition(record, **values)
        self._left -= 1
        if self._left == 0:
            raise Died
        return after


async def test_a_crash_after_any_transition_is_made_good(lab: Lab) -> None:
    """One run has seven transitions: launch, cluster, provisioned, submitted, started, ended, torn down."""

    async def crash_after(k: int) -> None:
        record = lab.intend(f"echo {k}-$TASK_ATTEMPT >> $EFFECTS; echo hello from {k}; sleep 0.5")
        with pytest.raises(Died):
            await lab.controller(record, store=DyingStore(lab.store, k=k)).run()
        record = await asyncio.wait_for(lab.controller(lab.claim(record)).run(), 60)
        assert (record.status, record.attempt) == (Status.SUCCEEDED, 1), k

    await asyncio.gather(*map(crash_after, range(1, 8)))
    assert sorted(lab.side_effects()) == [f"{k}-1" for k in range(1, 8)]
    assert set(lab.log.lines) == {f"hello from {k}" for k in range(1, 8)}


async def test_a_store_that_is_away_for_a_while_does_not_end_the_task(lab: Lab) -> None:
    store = DyingStore(lab.store, away=2)
    record = await lab.controller(lab.intend("echo hello"), store=store).run()
    assert (record.status, store.away) == (Status.SUCCEEDED, 0)


async def test_ten_tasks_leave_no_descriptor_open(lab: Lab, descriptors: Any) -> None:
    await lab.run("true")
    before = descriptors()
    for _ in range(3):
        await asyncio.gather(*(lab.run("true") for _ in range(2)))
    assert descriptors() <= before + 2
