"""A chain's status; what a new try does with the old one's work; states as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider.runtime.control import events
from airflow_provider.runtime.control.codec import state_from_json, state_to_json
from airflow_provider.runtime.control.machine import Policy, State, Step
from airflow_provider.runtime.control.reconcile import reconcile
from airflow_provider.runtime.control.status import Status, chain_status
from airflow_provider.runtime.state import TaskRecord
from tests.unit.control.walking import (
    CANCELLED,
    FAILED,
    JOB_CANCELLED,
    LAUNCHED,
    RUNNING,
    SUCCEEDED,
    driven,
)
from tests.unit.state.orders import record

S = Status


@pytest.mark.parametrize(
    ("tasks", "chain"),
    [
        ([S.SUCCEEDED, S.SUCCEEDED], S.SUCCEEDED),
        ([S.SUCCEEDED, S.FAILED, S.CANCELLED], S.FAILED),
        ([S.FAILED_SETUP, S.FAILED, S.CANCELLED], S.FAILED_SETUP),
        ([S.SUCCEEDED, S.CANCELLED, S.CANCELLED], S.CANCELLED),
        ([S.SUCCEEDED, S.CANCELLED, S.FAILED_NO_RESOURCE], S.FAILED_NO_RESOURCE),
        ([S.SUCCEEDED, S.RUNNING, S.PENDING], S.RUNNING),
        ([S.SUCCEEDED, S.RECOVERING, S.PENDING], S.RECOVERING),
        ([S.SUCCEEDED, S.PENDING], S.PENDING),
        ([S.FAILED, S.CANCELLING], S.FAILED),
    ],
)
def test_a_chain_has_the_status_of_its_first_failed_task_else_of_its_first_live_one(
    tasks: list[Status], chain: Status
) -> None:
    assert chain_status(tasks) is chain


ENDED = driven(RUNNING, SUCCEEDED, events.TornDown())
FAILED_STATE = driven(RUNNING, FAILED, FAILED)
CANCELLED_STATE = driven(RUNNING, CANCELLED, JOB_CANCELLED, events.TornDown())
LOST = driven(RUNNING, events.Lost("terminated"))


def _retry(state: State) -> State:
    return reconcile(_found(state), max_tries=1).state


def _clear(state: State) -> State:
    return reconcile(_found(state), max_tries=2).state


def _found(state: State) -> TaskRecord:
    return record(state=state, max_tries=1)


def test_a_first_try_begins_at_the_start() -> None:
    assert reconcile(None, max_tries=3).state == State()


@pytest.mark.parametrize(
    "state",
    [
        RUNNING,
        driven(State(), *LAUNCHED),
        driven(State(), events.LaunchBegun()),
        State(),
        LOST,
        driven(RUNNING, events.LinkBroke("x"), events.Unreachable("x", 1.0)),
        driven(RUNNING, FAILED),
        driven(RUNNING, SUCCEEDED),
        ENDED,
    ],
    ids=lambda state: f"{state.status.value}-{state.step.value}",
)
def test_a_retry_goes_on_with_what_is_under_way_or_succeeded(state: State) -> None:
    assert _retry(replace(state, errors=3 if state is not ENDED else 0)) == state


@pytest.mark.parametrize("outcome", [S.FAILED, S.FAILED_SETUP, S.CANCELLED, S.FAILED_NO_RESOURCE])
def test_a_retry_of_a_task_that_ended_otherwise_starts_afresh(outcome: Status) -> None:
    ended = replace(ENDED, status=outcome, outcome=events.Outcome(outcome))
    assert _retry(ended) == State(attempt=2)


@pytest.mark.parametrize("decided", [CANCELLED, FAILED])
def test_a_retry_that_comes_while_the_earlier_try_cleans_up_starts_afresh_after_it(
    decided: events.Event,
) -> None:
    ending = replace(driven(RUNNING, decided), restarts_on_errors=0)
    if ending.outcome is None:  # the failed job is being restarted: that goes on
        assert _retry(ending) == ending
        return
    state = _retry(ending)
    assert (state.afresh, state.outcome, state.step) == (True, None, Step.CANCEL)


@pytest.mark.parametrize("state", [ENDED, CANCELLED_STATE], ids=["succeeded", "cancelled"])
def test_a_clear_of_an_ended_task_starts_afresh(state: State) -> None:
    assert _clear(state) == State(attempt=2)


@pytest.mark.parametrize(
    ("state", "first"),
    [
        (RUNNING, Step.CANCEL),
        (driven(State(), *LAUNCHED), Step.TEAR_DOWN),
        (State(), Step.TEAR_DOWN),
        (LOST, Step.TEAR_DOWN),
        (driven(RUNNING, SUCCEEDED), Step.TEAR_DOWN),
    ],
    ids=["running", "launching", "not begun", "lost", "cleaning up"],
)
def test_a_clear_ends_what_is_there_and_then_starts_afresh(state: State, first: Step) -> None:
    cleared = _clear(state)
    assert (cleared.step, cleared.afresh, cleared.status) == (first, True, Status.CANCELLING)


def test_a_retry_during_a_clear_goes_on_with_the_clear() -> None:
    assert _retry(_clear(RUNNING)) == _clear(RUNNING)


def test_each_reconciliation_says_what_it_does() -> None:
    said = {
        reconcile(_found(state), max_tries=tries).message
        for state in (RUNNING, ENDED, CANCELLED_STATE, State(), driven(RUNNING, SUCCEEDED), _clear(RUNNING))
        for tries in (1, 2)
    }
    assert len(said) == 7
    assert all(said)


def test_a_state_survives_json() -> None:
    state = replace(driven(RUNNING, FAILED, policy=Policy()), unreachable_since=1.5)
    assert state.outcome is not None
    assert state_from_json(json.loads(json.dumps(state_to_json(state)))) == state


def test_a_state_of_a_later_version_keeps_what_is_known() -> None:
    data = state_to_json(ENDED)
    data["colour"] = "blue"
    data["outcome"]["mood"] = "good"
    assert state_from_json(data) == ENDED


def test_a_state_of_an_earlier_version_has_defaults_for_the_rest() -> None:
    assert state_from_json({}) == State()
    data = {"status": "FAILED", "step": "done", "outcome": {"status": "FAILED", "reason": "x"}}
    expected = State(Status.FAILED, Step.DONE, outcome=events.Outcome(Status.FAILED, "x"))
    assert state_from_json(data) == expected
