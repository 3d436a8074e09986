"""The decisions of the machine, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider.runtime.control import events
from airflow_provider.runtime.control.events import JobEnd, JobEnded, Outcome
from airflow_provider.runtime.control.machine import (
    MAX_AGENT_RESTARTS,
    MAX_CONTROLLER_ERRORS,
    MAX_LAUNCH_FAILURES,
    MAX_LINK_FAILURES,
    MAX_TEAR_DOWNS,
    Policy,
    State,
    Step,
    begin_afresh,
    step,
)
from airflow_provider.runtime.control.status import Status
from tests.unit.control.walking import (
    CANCELLED,
    FAILED,
    JOB_CANCELLED,
    LAUNCH_FAILED,
    LAUNCHED,
    NOTHING_FREE,
    OUT_OF_TIME,
    POLICY,
    RUNNING,
    SPARED,
    SUCCEEDED,
    driven,
)

LOST = events.Lost("the instance was terminated")
BROKEN = events.LinkBroke("reset by peer")
NO_RECOVERY = Policy(recover=False)
STRICT = Policy()

AT_EACH_STEP = {
    "launch not begun": State(),
    "launching": driven(State(), events.LaunchBegun()),
    "launch failed": driven(State(), events.LaunchBegun(), LAUNCH_FAILED),
    "waiting for the next launch": driven(State(), events.LaunchBegun(), LAUNCH_FAILED, events.TornDown()),
    "submitting": driven(State(), *LAUNCHED),
    "following": RUNNING,
    "probing": driven(RUNNING, BROKEN),
    "waiting for contact": driven(RUNNING, BROKEN, events.Unreachable("timed out", 1000.0)),
    "restarting the agent": driven(RUNNING, BROKEN, events.AgentDown()),
    "tearing down a lost cluster": driven(RUNNING, LOST),
    "waiting to tear down again": driven(RUNNING, LOST, events.TearDownFailed("busy")),
    "launching the replacement": driven(RUNNING, LOST, events.TornDown()),
    "waiting for a free host": driven(State(), events.LaunchBegun(), NOTHING_FREE),
    "after an unexpected error": driven(RUNNING, events.ControllerFailed("bug")),
}
each_step = pytest.mark.parametrize("state", AT_EACH_STEP.values(), ids=AT_EACH_STEP)


def _finish(state: State, policy: Policy = POLICY) -> State:
    """Let the job end as cancelled and the cluster go."""
    if state.step is Step.CANCEL:
        state = driven(state, JOB_CANCELLED, policy=policy)
    assert state.step is Step.TEAR_DOWN
    return driven(state, events.TornDown(), policy=policy)


def test_a_task_goes_from_pending_over_starting_and_running_to_succeeded() -> None:
    state = State()
    seen = [state.status]
    for event in (*LAUNCHED, events.Submitted(1), events.JobStarted(), SUCCEEDED, events.TornDown()):
        state = driven(state, event)
        seen.append(state.status)
    assert [status.value for status in dict.fromkeys(seen)] == ["PENDING", "STARTING", "RUNNING", "SUCCEEDED"]
    assert state.outcome == Outcome(Status.SUCCEEDED, "", (0,), '{"loss": 1}')


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (JobEnd.FAILED, Status.FAILED),
        (JobEnd.FAILED_DRIVER, Status.FAILED),
        (JobEnd.FAILED_SETUP, Status.FAILED_SETUP),
        (JobEnd.CANCELLED, Status.CANCELLED),
    ],
)
def test_each_end_of_a_job_has_its_status(end: JobEnd, status: Status) -> None:
    ended = JobEnded(end, "why", (3,), None, ("last",))
    state = driven(RUNNING, ended, events.TornDown(), policy=STRICT)
    assert state.status is status
    assert state.outcome is not None
    assert "why" in state.outcome.reason


def test_a_failure_keeps_exit_codes_and_last_lines() -> None:
    state = driven(RUNNING, FAILED, policy=STRICT)
    assert state.outcome == Outcome(Status.FAILED, "exit code 3", (3,), None, ("the last line",))


def test_a_job_that_fails_is_no_lost_cluster() -> None:
    failed = driven(RUNNING, FAILED)
    assert (failed.recoveries, failed.restarts_on_errors, failed.attempt) == (0, 1, 2)
    lost = driven(RUNNING, LOST)
    assert (lost.recoveries, lost.restarts_on_errors, lost.attempt) == (1, 0, 2)
    assert lost.status is Status.RECOVERING


def test_a_failing_job_is_restarted_as_often_as_the_budget_says() -> None:
    state = RUNNING
    for spent in range(POLICY.max_restarts_on_errors):
        state, lines = step(state, FAILED, POLICY)
        assert lines == (f"exit code 3; restart {spent + 1} of 2",)
        state = driven(state, events.TornDown(), events.Provisioned(), events.Submitted(spent + 2))
    assert state.attempt == 3
    assert driven(state, FAILED, events.TornDown()).status is Status.FAILED


def test_a_failing_setup_spends_the_same_budget() -> None:
    setup_failed = JobEnded(JobEnd.FAILED_SETUP, "setup: exit code 1", (1,))
    assert driven(RUNNING, setup_failed).restarts_on_errors == 1


@pytest.mark.parametrize("end", [JobEnd.FAILED, JobEnd.FAILED_SETUP])
def test_exit_codes_that_ask_for_a_restart_cost_nothing(end: JobEnd) -> None:
    state = RUNNING
    for job in range(2, 30):
        state = driven(state, replace(SPARED, end=end), events.TornDown(), events.Provisioned())
        state = driven(state, events.Submitted(job))
    assert (state.restarts_on_errors, state.attempt) == (0, 29)


def test_one_spared_code_among_several_is_enough() -> None:
    gang = JobEnded(JobEnd.FAILED, "rank 1 failed", (137, 75, 137))
    assert driven(RUNNING, gang, policy=replace(STRICT, recover_on_exit_codes=(75,))).attempt == 2


def test_without_recovery_a_lost_cluster_fails_the_task() -> None:
    state = driven(RUNNING, LOST, events.TornDown(), policy=NO_RECOVERY)
    assert state.status is Status.FAILED
    assert state.outcome is not None
    assert state.outcome.reason == (
        "the cluster was lost (the instance was terminated) and job_recovery is none"
    )


def test_without_recovery_restarts_on_errors_still_count() -> None:
    policy = Policy(recover=False, max_restarts_on_errors=1)
    assert driven(RUNNING, FAILED, policy=policy).attempt == 2


@pytest.mark.parametrize("name", ["submitting", "following", "probing", "waiting for contact"])
def test_a_lost_cluster_is_torn_down_before_the_next_is_made(name: str) -> None:
    state = AT_EACH_STEP[name]
    if state.step is Step.WAIT:
        state = driven(state, events.WaitOver())
    state = driven(state, LOST)
    assert (state.step, state.job_id, state.attempt) == (Step.TEAR_DOWN, None, 2)
    assert driven(state, events.TornDown()).step is Step.PROVISION


@each_step
def test_a_cancel_ends_cancelled_whatever_is_under_way(state: State) -> None:
    stopped, lines = step(state, CANCELLED, POLICY)
    assert stopped.status is Status.CANCELLING
    assert lines == ("stopping: a user cancelled",)
    assert (stopped.step is Step.CANCEL) == (state.job_id is not None)
    assert _finish(stopped).status is Status.CANCELLED


@each_step
def test_a_deadline_ends_failed_whatever_is_under_way(state: State) -> None:
    assert _finish(driven(state, OUT_OF_TIME)).status is Status.FAILED


def test_a_cancel_before_the_end_is_seen_wins_over_it() -> None:
    state = driven(RUNNING, CANCELLED, SUCCEEDED, events.TornDown())
    assert state.status is Status.CANCELLED


def test_a_cancel_after_the_end_is_seen_comes_too_late() -> None:
    state = driven(RUNNING, SUCCEEDED, CANCELLED, events.TornDown())
    assert state.status is Status.SUCCEEDED


@pytest.mark.parametrize("problem", [BROKEN, LOST])
def test_a_cancel_that_cannot_reach_the_cluster_tears_it_down(problem: events.Event) -> None:
    state = driven(RUNNING, CANCELLED, problem)
    assert state.step is Step.TEAR_DOWN
    assert driven(state, events.TornDown()).status is Status.CANCELLED


@each_step
def test_a_clear_ends_what_is_under_way_and_begins_at_the_start(state: State) -> None:
    state = begin_afresh(replace(state, restarts_on_errors=2, recoveries=3, errors=4, tear_downs=3))
    assert state.status is Status.CANCELLING
    anew = _finish(state)
    assert anew == State(attempt=state.attempt + 1)


@each_step
def test_a_cancel_while_a_clear_ends_the_old_work_is_a_cancel(state: State) -> None:
    stopped = driven(begin_afresh(state), CANCELLED)
    assert _finish(stopped).status is Status.CANCELLED


@pytest.mark.parametrize("decided", [SUCCEEDED, FAILED])
def test_what_the_earlier_try_came_to_is_forgotten_by_a_clear(decided: events.Event) -> None:
    state = begin_afresh(driven(RUNNING, decided, policy=STRICT))
    assert _finish(driven(state, CANCELLED)).status is Status.CANCELLED


def test_a_job_that_is_being_cancelled_gets_its_grace_also_after_a_clear() -> None:
    assert begin_afresh(driven(RUNNING, CANCELLED)).step is Step.CANCEL


def test_a_second_clear_changes_nothing() -> None:
    once = begin_afresh(RUNNING)
    assert begin_afresh(once) == once


def test_a_cleared_task_begins_anew_even_if_its_job_cannot_be_cancelled() -> None:
    state = begin_afresh(RUNNING)
    for _ in range(MAX_CONTROLLER_ERRORS + 1):
        state = driven(state, events.ControllerFailed("bug"))
    assert state.step is Step.TEAR_DOWN
    assert driven(state, events.TornDown()) == State(attempt=2)


def test_nothing_free_is_no_failure_and_its_reason_is_kept_until_there_is() -> None:
    state = driven(State(), events.LaunchBegun(), NOTHING_FREE)
    assert (state.status, state.step, state.launch_failures) == (Status.STARTING, Step.PROVISION, 0)
    assert state.waiting_for == "a is taken by site two"
    assert driven(state, NOTHING_FREE) == state
    assert driven(state, events.Provisioned()).waiting_for == ""


def test_a_recovery_waits_for_something_free_too() -> None:
    state = driven(RUNNING, LOST, events.TornDown(), NOTHING_FREE)
    assert (state.status, state.waiting_for) == (Status.RECOVERING, "a is taken by site two")


def test_an_ended_job_on_a_host_that_does_not_answer_holds_up_no_restart() -> None:
    state = driven(RUNNING, FAILED, events.Unreachable("timed out", 1000.0))
    assert (state.step, state.restarts_on_errors) == (Step.PROVISION, 1)


def test_a_launch_that_failed_as_its_host_went_away_is_tried_elsewhere() -> None:
    state = driven(
        State(),
        events.LaunchBegun(),
        LAUNCH_FAILED,
        events.Unreachable("timed out", 1000.0),
        events.WaitOver(),
    )
    assert (state.step, state.launch_failures) == (Step.PROVISION, 1)


def test_a_cancel_of_a_task_whose_cluster_is_lost_and_does_not_answer_is_done_at_once() -> None:
    state = driven(RUNNING, LOST, CANCELLED, events.Unreachable("timed out", 1000.0))
    assert (state.status, state.leaked) == (Status.CANCELLED, False)


def test_a_cleared_task_waits_for_a_job_that_may_live_as_long_as_the_limit_says() -> None:
    state = driven(begin_afresh(RUNNING), BROKEN, events.Unreachable("timed out", 1000.0))
    for _ in range(2 * MAX_TEAR_DOWNS):
        state = driven(state, events.Unreachable("timed out", 1059.0))
        assert (state.step, state.after_wait) == (Step.WAIT, Step.TEAR_DOWN)
    assert driven(state, events.Unreachable("timed out", 1060.0)) == State(attempt=2)


def test_a_new_try_need_not_wait_again_for_what_an_earlier_one_waited_for() -> None:
    state = driven(RUNNING, CANCELLED, BROKEN)
    for _ in range(MAX_TEAR_DOWNS):
        state = driven(state, events.Unreachable("timed out", 1000.0))
    assert (state.status, state.leaked) == (Status.CANCELLED, True)
    assert driven(begin_afresh(state), events.Unreachable("timed out", 1060.0)) == State(attempt=2)


def test_a_broken_link_is_looked_into_and_then_followed_again() -> None:
    probing = driven(RUNNING, BROKEN)
    assert probing.step is Step.PROBE
    assert driven(probing, events.Alive()).step is Step.FOLLOW


def test_a_broken_submit_is_submitted_again() -> None:
    state = driven(AT_EACH_STEP["submitting"], BROKEN, events.Alive())
    assert (state.step, state.attempt) == (Step.SUBMIT, 1)


def test_links_that_keep_breaking_are_tried_at_longer_intervals_and_end_at_last() -> None:
    state, waits = RUNNING, []
    while state.step is Step.FOLLOW:
        state, lines = step(state, BROKEN, POLICY)
        assert lines
        if state.step is Step.WAIT:
            waits.append(state.wait_seconds)
        if state.step in (Step.WAIT, Step.PROBE):
            state = driven(state, events.Alive())
    assert waits[:6] == [1, 2, 4, 8, 16, 30]
    assert len(waits) == MAX_LINK_FAILURES - 2
    assert (state.step, state.recoveries) == (Step.TEAR_DOWN, 1)


def test_a_word_from_the_job_forgets_the_broken_links() -> None:
    state = driven(RUNNING, BROKEN, events.Alive(), BROKEN, events.Alive(), events.Heard())
    assert state.link_failures == 0


def test_a_cluster_out_of_reach_is_left_alone_until_the_limit() -> None:
    state = driven(RUNNING, BROKEN)
    for now in (1000.0, 1020.0, 1059.9):
        state = driven(state, events.Unreachable("timed out", now))
        assert state.after_wait is Step.PROBE
    lost, lines = step(driven(state, events.WaitOver()), events.Unreachable("timed out", 1060.0), POLICY)
    assert lost.step is Step.TEAR_DOWN
    assert "unreachable for 60 s, the limit is 60 s (timed out)" in lines[0]


def test_every_outage_has_the_whole_limit() -> None:
    state = driven(RUNNING, BROKEN, events.Unreachable("timed out", 1000.0), events.Alive())
    state = driven(state, events.Heard(), BROKEN, events.Unreachable("timed out", 5000.0))
    assert state.step is Step.WAIT


def test_being_out_of_reach_is_told_once() -> None:
    state = driven(RUNNING, BROKEN)
    told: list[str] = []
    for second in range(10):
        state, lines = step(state, events.Unreachable("timed out", 1000.0 + second), POLICY)
        told += lines
        state = driven(state, events.WaitOver())
    assert told == ["the cluster is unreachable (timed out); it may be well, so it is left alone"]


def test_an_agent_that_is_down_is_started_again() -> None:
    state = driven(RUNNING, BROKEN, events.AgentDown())
    assert state.step is Step.RESTART_AGENT
    assert driven(state, events.AgentRestarted()).step is Step.FOLLOW


def test_an_agent_that_does_not_start_loses_the_cluster() -> None:
    state = driven(RUNNING, BROKEN)
    for _ in range(MAX_AGENT_RESTARTS):
        state = driven(state, events.AgentDown(), events.AgentRestartFailed("no python3"))
    assert (state.step, state.recoveries) == (Step.TEAR_DOWN, 1)


def test_a_launch_that_fails_is_cleaned_up_and_tried_again_later() -> None:
    state, waits = driven(State(), events.LaunchBegun()), []
    for _ in range(MAX_LAUNCH_FAILURES - 1):
        state = driven(state, LAUNCH_FAILED)
        assert state.step is Step.TEAR_DOWN
        state = driven(state, events.TornDown())
        waits.append(state.wait_seconds)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    state = driven(state, LAUNCH_FAILED, events.TornDown())
    assert state.status is Status.FAILED_NO_RESOURCE
    assert state.outcome is not None
    assert state.outcome.reason == "no cluster after 8 launches: no capacity"


def test_a_launch_that_succeeds_forgets_the_failed_ones() -> None:
    state = driven(State(), events.LaunchBegun(), LAUNCH_FAILED, events.TornDown(), events.Provisioned())
    assert state.launch_failures == 0


def test_a_task_that_fits_nowhere_fails_at_once() -> None:
    misfit = events.LaunchFailed(events.LaunchProblem.NOT_FEASIBLE, "cpus: 64 wanted, 2 there")
    state = driven(State(), events.LaunchBegun(), misfit, events.TornDown())
    assert state.status is Status.FAILED_PRECHECKS


def test_a_refused_job_fails_at_once() -> None:
    state = driven(AT_EACH_STEP["submitting"], events.JobRefused("no secret TOKEN"), events.TornDown())
    assert state.status is Status.FAILED_PRECHECKS


def test_a_tear_down_that_fails_is_tried_again_and_then_given_up_loudly() -> None:
    state = driven(RUNNING, SUCCEEDED)
    for _ in range(MAX_TEAR_DOWNS - 1):
        state = driven(state, events.TearDownFailed("busy"))
        assert not state.status.terminal
    state, lines = step(driven(state, events.WaitOver()), events.TearDownFailed("busy"), POLICY)
    assert (state.status, state.leaked) == (Status.SUCCEEDED, True)
    assert lines == ("the cluster could not be removed and is left behind: busy",)


@pytest.mark.parametrize("state", [driven(RUNNING, LOST), begin_afresh(driven(RUNNING, FAILED))])
def test_no_cluster_is_made_beside_one_that_cannot_be_removed(state: State) -> None:
    for _ in range(MAX_TEAR_DOWNS):
        state = driven(state, events.TearDownFailed("busy"))
    assert (state.status, state.leaked) == (Status.FAILED_CONTROLLER, True)


def test_a_new_try_removes_what_was_left_behind_before_it_launches() -> None:
    leaked = replace(driven(RUNNING, SUCCEEDED, events.TornDown()), leaked=True)
    state = begin_afresh(leaked)
    assert (state.step, state.leaked) == (Step.TEAR_DOWN, False)
    assert driven(state, events.TornDown()) == State(attempt=2)


@each_step
def test_an_unexpected_error_is_followed_by_another_attempt_at_the_same_step(state: State) -> None:
    failed, lines = step(state, events.ControllerFailed("bug"), POLICY)
    assert failed.step is Step.WAIT
    assert failed.after_wait is (state.after_wait if state.step is Step.WAIT else state.step)
    assert "unexpected error, trying again" in lines[0]


@each_step
def test_too_many_unexpected_errors_end_the_task(state: State) -> None:
    for _ in range(MAX_CONTROLLER_ERRORS + 1):
        state = driven(state, events.ControllerFailed("bug"))
    if not state.status.terminal:
        state = driven(state, events.TornDown())
    assert state.status is Status.FAILED_CONTROLLER


def test_too_many_errors_while_cleaning_up_do_not_change_the_outcome() -> None:
    state = driven(RUNNING, SUCCEEDED)
    for _ in range(MAX_CONTROLLER_ERRORS + 1):
        state = driven(state, events.ControllerFailed("bug"))
    assert (state.status, state.leaked) == (Status.SUCCEEDED, True)
