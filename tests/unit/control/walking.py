"""Events for the machine, and what must hold after every step of it."""

from __future__ import annotations

import json

from airflow_provider.runtime.control import events
from airflow_provider.runtime.control.codec import state_from_json, state_to_json
from airflow_provider.runtime.control.events import Event, JobEnd, JobEnded, LaunchProblem, Outcome
from airflow_provider.runtime.control.machine import Policy, State, Step, begin_afresh, step
from airflow_provider.runtime.control.status import Status

CANCELLED = events.StopRequested(Outcome(Status.CANCELLED, "a user cancelled"))
OUT_OF_TIME = events.StopRequested(Outcome(Status.FAILED, "execution_timeout"))
SUCCEEDED = JobEnded(JobEnd.SUCCEEDED, "", (0,), '{"loss": 1}')
FAILED = JobEnded(JobEnd.FAILED, "exit code 3", (3,), None, ("the last line",))
SPARED = JobEnded(JobEnd.FAILED, "exit code 75", (75,))
JOB_CANCELLED = JobEnded(JobEnd.CANCELLED, "cancelled")
NOTHING_FREE = events.LaunchFailed(LaunchProblem.NOTHING_FREE, "a is taken by site two")
LAUNCH_FAILED = events.LaunchFailed(LaunchProblem.FAILED, "no capacity")

EVENTS: tuple[Event, ...] = (
    events.LaunchBegun(),
    events.Provisioned(),
    LAUNCH_FAILED,
    events.LaunchFailed(LaunchProblem.NOT_FEASIBLE, "too large"),
    NOTHING_FREE,
    events.LaunchFailed(LaunchProblem.NOTHING_FREE, "b is taken by site two"),
    events.Submitted(7),
    events.JobRefused("no such secret"),
    events.JobStarted(),
    events.Heard(),
    SUCCEEDED,
    FAILED,
    SPARED,
    JobEnded(JobEnd.FAILED_SETUP, "setup: exit code 1", (1,)),
    JobEnded(JobEnd.FAILED_DRIVER, "the driver died"),
    JOB_CANCELLED,
    events.LinkBroke("reset by peer"),
    events.Alive(),
    events.AgentDown(),
    events.AgentRestarted(),
    events.AgentRestartFailed("no such file"),
    events.Unreachable("timed out", 1000.0),
    events.Unreachable("timed out", 1005.0),
    events.Unreachable("timed out", 1100.0),
    events.Lost("the node is gone"),
    events.WaitOver(),
    CANCELLED,
    OUT_OF_TIME,
    events.TornDown(),
    events.TearDownFailed("still there"),
    events.ControllerFailed("TypeError: no"),
)

POLICY = Policy(recover=True, max_restarts_on_errors=2, recover_on_exit_codes=(75,), unreachable_timeout=60.0)

MEANING: dict[Step, set[type]] = {
    Step.PROVISION: {events.LaunchBegun, events.Provisioned, events.LaunchFailed},
    Step.SUBMIT: {events.Submitted, events.JobRefused, events.LinkBroke, events.Lost},
    Step.FOLLOW: {events.JobStarted, events.Heard, JobEnded, events.LinkBroke, events.Lost},
    Step.PROBE: {events.Alive, events.AgentDown, events.Unreachable, events.Lost},
    Step.RESTART_AGENT: {events.AgentRestarted, events.AgentRestartFailed},
    Step.CANCEL: {JobEnded, events.LinkBroke, events.Lost},
    Step.TEAR_DOWN: {events.TornDown, events.TearDownFailed, events.Unreachable},
    Step.WAIT: {events.WaitOver},
    Step.DONE: set(),
}
"""The events that a step can bring; a stop and an unexpected error can come at any of them but the last."""


def meaningful(state: State, event: Event) -> bool:
    """Say whether ``event`` must lead on from ``state``: were it ignored, the controller would repeat it for ever."""
    match event:
        case events.LaunchFailed(LaunchProblem.NOTHING_FREE, reason) if state.step is Step.PROVISION:
            return reason != state.waiting_for  # the wait for the same thing is the infra's
        case events.StopRequested():
            return not state.status.terminal and (state.outcome is None or state.afresh)
        case events.ControllerFailed():
            return not state.status.terminal
        case events.LaunchBegun():
            return state.step is Step.PROVISION and state.status is Status.PENDING
        case events.JobStarted():
            return state.step is Step.FOLLOW and state.status is not Status.RUNNING
        case events.Heard():
            return state.step is Step.FOLLOW and bool(state.link_failures or state.errors)
    return type(event) in MEANING[state.step]


def good_answer(state: State) -> Event:
    """What the step brings when all goes well."""
    match state.step:
        case Step.PROVISION:
            return events.LaunchBegun() if state.status is Status.PENDING else events.Provisioned()
        case Step.SUBMIT:
            return events.Submitted(8)
        case Step.FOLLOW:
            return SUCCEEDED
        case Step.PROBE:
            return events.Alive()
        case Step.RESTART_AGENT:
            return events.AgentRestarted()
        case Step.CANCEL:
            return JOB_CANCELLED
        case Step.TEAR_DOWN:
            return events.TornDown()
        case Step.WAIT:
            return events.WaitOver()
        case Step.DONE:
            raise AssertionError("nothing is left to do")


def driven(state: State, *happened: Event, policy: Policy = POLICY) -> State:
    """Return the state after these events, with waits left out."""
    for event in happened:
        if state.step is Step.WAIT:
            state, _ = step(state, events.WaitOver(), policy)
        state, _ = step(state, event, policy)
    return state


LAUNCHED = (events.LaunchBegun(), events.Provisioned())
RUNNING = driven(State(), *LAUNCHED, events.Submitted(1), events.JobStarted())


class Walk:
    """A task on its way through the machine; fails at the first step that breaks an invariant."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy = policy
        self.state = State()
        self.maybe_live_job = False
        """Whether a job may be running somewhere: from the first submit until it has ended, or its cluster is gone or
        was given up as lost."""

    def apply(self, event: Event) -> None:
        before = self.state
        after, lines = step(before, event, self.policy)
        assert (after, lines) == step(before, event, self.policy), "a step depends on its arguments alone"
        if before.step is Step.SUBMIT:
            self.maybe_live_job = True
        torn_down = isinstance(event, events.TornDown) and before.step is Step.TEAR_DOWN
        ended = isinstance(event, JobEnded) and before.step in (Step.FOLLOW, Step.CANCEL)
        if torn_down or ended or after.lost_cluster:
            self.maybe_live_job = False
        self.state = after
        self._check_change(before, event)
        self._check_state()
        assert meaningful(before, event) == (after != before)
        if after == before:
            assert lines == (), "an event without meaning is not spoken of"

    def clear(self) -> None:
        """The user clears the task: a new try begins afresh."""
        self.state = begin_afresh(self.state)
        self._check_state()

    def _check_change(self, before: State, event: Event) -> None:
        after = self.state
        torn_down = isinstance(event, events.TornDown) and before.step is Step.TEAR_DOWN
        if before.step is Step.TEAR_DOWN and isinstance(event, events.Unreachable):
            torn_down = self._check_out_of_reach(before, event)
        if before.status.terminal:
            assert after == before, "terminal is final"
        elif after.status.terminal:
            assert after.leaked or torn_down
        if before.outcome is not None:
            assert after.outcome == before.outcome, "what is decided stays decided"
        if isinstance(event, events.StopRequested) and before.outcome is None:
            assert after.outcome == event.outcome
        if after.step is Step.SUBMIT and before.step is Step.PROVISION:
            assert not self.maybe_live_job, "two jobs of one task"
        assert after.attempt in (before.attempt, before.attempt + 1)
        if after.attempt != before.attempt:
            begun_anew = before.afresh and torn_down
            assert begun_anew or after.step is Step.TEAR_DOWN
        if isinstance(event, events.Unreachable) and before.step is Step.PROBE:
            since = before.unreachable_since or event.now
            if event.now - since < self.policy.unreachable_timeout:
                assert after.step is Step.WAIT
                assert after.after_wait is Step.PROBE

    def _check_out_of_reach(self, before: State, event: events.Unreachable) -> bool:
        """A cluster that does not answer is left alone while a job may live on it, but for the limit; True: left."""
        since = event.now if before.unreachable_since is None else before.unreachable_since
        over = before.afresh and event.now - since >= self.policy.unreachable_timeout
        left = Step.TEAR_DOWN not in (self.state.step, self.state.after_wait) and not self.state.leaked
        if left:
            assert before.lost_cluster or over or not self.maybe_live_job
            self.maybe_live_job = False
        return left

    def _check_state(self) -> None:
        state = self.state
        assert state.status.terminal == (state.step is Step.DONE)
        assert state.restarts_on_errors <= self.policy.max_restarts_on_errors
        if state.status.terminal:
            assert state.outcome is not None
            assert state.status is state.outcome.status
        assert (state.job_id is not None) or state.step not in (Step.FOLLOW, Step.CANCEL)
        assert (state.job_id is None) or state.step is not Step.SUBMIT
        assert not (state.afresh and state.outcome), "what begins anew has no outcome"
        if state.waiting_for:
            assert state.step in (Step.PROVISION, Step.WAIT)
            assert (state.outcome, state.job_id) == (None, None)
        if state.step is Step.WAIT:
            assert state.after_wait not in (Step.WAIT, Step.DONE)
            assert 0 < state.wait_seconds <= 30
        else:
            assert (state.after_wait, state.wait_seconds) == (Step.DONE, 0.0)
        assert state_from_json(json.loads(json.dumps(state_to_json(state)))) == state
        assert not state.leaked or state.status.terminal, "no other cluster beside one that was left behind"

    def ends_when_all_goes_well(self) -> None:
        state = self.state
        for _ in range(12):
            if state.status.terminal:
                return
            state, _ = step(state, good_answer(state), self.policy)
        raise AssertionError(f"still {state} after 12 good answers")
