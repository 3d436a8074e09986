"""Random walks through the machine: any event in any state, with the invariants checked after each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from copy import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from airflow_provider.runtime.control import events
from airflow_provider.runtime.control.machine import MAX_CONTROLLER_ERRORS, Policy, State, Step, step
from airflow_provider.runtime.control.status import Status
from tests.unit.control.walking import EVENTS, MEANING, POLICY, Walk, good_answer, meaningful

SEVERE = Policy(recover=False, max_restarts_on_errors=0, unreachable_timeout=3.0)


class AnyEventInAnyState(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.walk = Walk()

    @rule(event=st.sampled_from(EVENTS))
    def something_happens(self, event: events.Event) -> None:
        self.walk.apply(event)

    @rule()
    def the_step_succeeds(self) -> None:
        if not self.walk.state.status.terminal:
            self.walk.apply(good_answer(self.walk.state))

    @rule()
    def the_user_clears_the_task(self) -> None:
        self.walk.clear()

    @invariant()
    def it_ends_when_all_goes_well_from_here(self) -> None:
        self.walk.ends_when_all_goes_well()


TestAnyEventInAnyState = AnyEventInAnyState.TestCase
TestAnyEventInAnyState.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("policy", [POLICY, SEVERE], ids=["lenient", "severe"])
def test_twenty_thousand_random_steps_break_no_invariant(policy: Policy) -> None:
    walk = Walk(policy)
    ends = set()
    for number in _wander(walk, 20_000):
        if number % 10 == 0:
            walk.ends_when_all_goes_well()
        if walk.state.status.terminal:
            ends.add(walk.state.status)
    assert ends == {status for status in Status if status.terminal}


def test_every_event_in_every_step_is_considered() -> None:
    walk = Walk()
    reached: dict[Step, dict[State, Walk]] = {step: {} for step in Step}
    for _ in _wander(walk, 20_000):
        if len(reached[walk.state.step]) < 20:
            reached[walk.state.step].setdefault(walk.state, copy(walk))
    for met, walks in reached.items():
        assert len(walks) >= 5, met
        for at, event in itertools.product(walks.values(), EVENTS):
            copy(at).apply(event)


def _wander(walk: Walk, steps: int) -> Iterator[int]:
    """Take steps with streaks of the same bad event, for what only repetition leads to."""
    chance = random.Random(20250720)
    streak = EVENTS[0]
    for number in range(steps):
        if number % 40 == 0:
            streak = chance.choice(EVENTS)
        event = chance.choice(EVENTS)
        if meaningful(walk.state, streak) and chance.random() < 0.8:
            event = streak
        elif not walk.state.status.terminal and chance.random() < 0.5:
            event = good_answer(walk.state)
        elif not walk.state.status.terminal and chance.random() < 0.5:
            event = chance.choice([event for event in EVENTS if type(event) in MEANING[walk.state.step]])
        walk.apply(event)
        yield number
        if chance.random() < (0.5 if walk.state.status.terminal else 0.005):
            walk.clear()


@pytest.mark.parametrize(
    "bad",
    [
        events.ControllerFailed("bug"),
        events.LaunchFailed(events.LaunchProblem.FAILED, "no capacity"),
        events.TearDownFailed("still there"),
        events.LinkBroke("reset"),
        events.AgentRestartFailed("no"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_step_that_never_succeeds_does_not_go_on_for_ever(bad: events.Event) -> None:
    """All else goes well; a task that cannot be recovered comes to an end."""
    walk = Walk(Policy(recover=False))
    for _ in range(400):
        state = walk.state
        if state.status.terminal:
            break
        fits = type(bad) in MEANING[state.step] or (
            isinstance(bad, events.ControllerFailed) and state.step is not Step.WAIT
        )
        probing = isinstance(bad, events.AgentRestartFailed) and state.step is Step.PROBE
        breaking = isinstance(bad, events.AgentRestartFailed) and state.step is Step.FOLLOW
        if fits:
            walk.apply(bad)
        elif probing:
            walk.apply(events.AgentDown())
        elif breaking:
            walk.apply(events.LinkBroke("reset"))
        else:
            walk.apply(good_answer(state))
    assert walk.state.status.failed or walk.state.leaked


def test_errors_that_are_far_apart_are_not_added_up() -> None:
    walk = Walk()
    for event in (events.LaunchBegun(), events.Provisioned(), events.Submitted(1), events.JobStarted()):
        walk.apply(event)
    for _ in range(3 * MAX_CONTROLLER_ERRORS):
        walk.apply(events.ControllerFailed("disk full"))
        walk.apply(events.WaitOver())
        walk.apply(events.Heard())
    assert walk.state.step is Step.FOLLOW
    assert walk.state.attempt == 1


def test_a_finished_task_ignores_everything() -> None:
    walk = Walk()
    while not walk.state.status.terminal:
        walk.apply(good_answer(walk.state))
    for event in EVENTS:
        assert step(walk.state, event, POLICY) == (walk.state, ())
