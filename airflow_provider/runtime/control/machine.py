"""The state machine of a managed task: every decision, no I/O, no clock, no randomness.

``step(state, event, policy)`` returns the next state and the lines that tell the user about it. What has to be done is
a part of the state (``Step``), so a controller that crashed goes on from the stored state as if nothing had happened.

Invariants, each property-tested: at most one live cluster job per task; nothing leaves a terminal status; no terminal
status before the cluster is torn down (or given up on, loudly); restarts never exceed the budget; "unreachable" alone,
within the limit that the user set, never destroys a cluster. No cluster takes the place of one that may have a live
job, unless that one does not answer and was given up as lost: then it ends by its lease.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider.runtime.control.events import (
    AgentDown,
    AgentRestarted,
    AgentRestartFailed,
    Alive,
    ControllerFailed,
    Event,
    Heard,
    JobEnd,
    JobEnded,
    JobRefused,
    JobStarted,
    LaunchBegun,
    LaunchFailed,
    LaunchProblem,
    LinkBroke,
    Lost,
    Outcome,
    Provisioned,
    StopRequested,
    Submitted,
    TearDownFailed,
    TornDown,
    Unreachable,
    WaitOver,
)
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.control.taskstate import Policy, State, Step

__all__ = ["Policy", "State", "Step", "backoff", "begin_afresh", "step"]

MAX_LAUNCH_FAILURES = 8
"""With the pauses between them one and a half minutes: as long as a machine takes to boot."""
MAX_LINK_FAILURES = 20
MAX_AGENT_RESTARTS = 3
MAX_TEAR_DOWNS = 10
MAX_CONTROLLER_ERRORS = 5
_BACKOFF_LIMIT_SECONDS = 30.0

Decision = tuple[State, tuple[str, ...]]


def step(state: State, event: Event, policy: Policy) -> Decision:
    """Return the state after ``event`` and the lines that tell the user about it.

    An event that has no meaning in ``state`` (late, repeated) changes nothing.
    """
    after, lines = _decide(state, event, policy)
    if after.waiting_for and after.step not in (
        Step.PROVISION,
        Step.WAIT,
    ):  # no longer on the way to a launch
        after = replace(after, waiting_for="")
    return after, lines


def _decide(state: State, event: Event, policy: Policy) -> Decision:
    if state.status.terminal:
        return state, ()
    match event:
        case StopRequested():
            return _stop(state, event)
        case ControllerFailed():
            return _controller_failed(state, event)
        case Lost() if state.step in (Step.SUBMIT, Step.FOLLOW, Step.PROBE, Step.CANCEL):
            return _lost(state, event.evidence, policy)
        case LinkBroke() if state.step in (Step.SUBMIT, Step.FOLLOW, Step.CANCEL):
            return _link_broke(state, event, policy)
    match state.step:
        case Step.PROVISION:
            return _provision(state, event)
        case Step.SUBMIT:
            return _submit(state, event)
        case Step.FOLLOW:
            return _follow(state, event, policy)
        case Step.PROBE:
            return _probe(state, event, policy)
        case Step.RESTART_AGENT:
            return _restart_agent(state, event, policy)
        case Step.TEAR_DOWN:
            return _tear_down(state, event, policy)
        case Step.CANCEL if isinstance(event, JobEnded):
            return replace(state, step=Step.TEAR_DOWN, job_id=None), ()
        case Step.WAIT if isinstance(event, WaitOver):
            return replace(state, step=state.after_wait, after_wait=Step.DONE, wait_seconds=0.0), ()
    return state, ()


def begin_afresh(state: State) -> State:
    """Return the state in which a task is run anew, with nothing of what it did so far but the count of attempts.

    A live task is cancelled and torn down first; so is a cluster that was left behind.
    """
    if state.status.terminal and not state.leaked:
        return State(attempt=state.attempt + 1)
    running = state.job_id is not None and (state.outcome is None or state.step is Step.CANCEL)
    return State(
        status=Status.CANCELLING,
        step=Step.CANCEL if running else Step.TEAR_DOWN,
        attempt=state.attempt,
        job_id=state.job_id if running else None,
        afresh=True,
        unreachable_since=state.unreachable_since,
        lost_cluster=state.lost_cluster,
    )


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    return min(float(2 ** max(failures - 1, 0)), _BACKOFF_LIMIT_SECONDS)


def _wait(state: State, seconds: float, then: Step) -> State:
    return replace(state, step=Step.WAIT, wait_seconds=seconds, after_wait=then)


def _end(state: State, outcome: Outcome) -> State:
    """Decide the outcome; it becomes the status when the cluster is gone."""
    return replace(state, step=Step.TEAR_DOWN, outcome=outcome)


def _stop(state: State, event: StopRequested) -> Decision:
    if state.outcome is not None:
        return state, ()
    lines = (f"stopping: {event.outcome.reason}",)
    stopped = replace(state, status=Status.CANCELLING, outcome=event.outcome)
    if state.afresh and not event.at_once:  # on its way down already, and now to stay there
        return replace(stopped, afresh=False), lines
    stopped = replace(stopped, afresh=False)
    down = Step.TEAR_DOWN if state.job_id is None or event.at_once else Step.CANCEL
    return replace(stopped, step=down, after_wait=Step.DONE, wait_seconds=0.0), lines


def _controller_failed(state: State, event: ControllerFailed) -> Decision:
    errors = state.errors + 1
    failed = replace(state, errors=errors, after_wait=Step.DONE, wait_seconds=0.0)
    again = state.after_wait if state.step is Step.WAIT else state.step
    if errors <= MAX_CONTROLLER_ERRORS:
        text = f"unexpected error, trying again in {backoff(errors):g} s: {event.reason}"
        return _wait(failed, backoff(errors), again), (text,)
    if again is Step.TEAR_DOWN:
        return _leave_behind(failed, event.reason)
    text = f"giving up after {errors} unexpected errors: {event.reason}"
    decided = state.outcome or (None if state.afresh else Outcome(Status.FAILED_CONTROLLER, event.reason))
    return replace(failed, step=Step.TEAR_DOWN, outcome=decided), (text,)


def _provision(state: State, event: Event) -> Decision:
    match event:
        case LaunchBegun() if state.status is Status.PENDING:
            return replace(state, status=Status.STARTING), ()
        case Provisioned():
            return replace(state, step=Step.SUBMIT, launch_failures=0, lost_cluster=False), ()
        case LaunchFailed(LaunchProblem.NOT_FEASIBLE, reason):
            return _end(state, Outcome(Status.FAILED_PRECHECKS, reason)), (f"cannot run: {reason}",)
        case LaunchFailed(LaunchProblem.NOTHING_FREE, reason):
            lines = () if reason == state.waiting_for else (f"waiting: {reason}",)
            return replace(state, waiting_for=reason), lines
        case LaunchFailed(_, reason):
            failures = state.launch_failures + 1
            failed = replace(state, launch_failures=failures)
            if failures >= MAX_LAUNCH_FAILURES:
                text = f"no cluster after {failures} launches: {reason}"
                return _end(failed, Outcome(Status.FAILED_NO_RESOURCE, text)), (text,)
            # What a failed launch left behind goes before the next.
            return replace(failed, step=Step.TEAR_DOWN), (f"launch {failures} failed: {reason}",)
    return state, ()


def _submit(state: State, event: Event) -> Decision:
    match event:
        case Submitted(job_id):
            return replace(state, step=Step.FOLLOW, job_id=job_id), ()
        case JobRefused(reason):
            return _end(state, Outcome(Status.FAILED_PRECHECKS, reason)), (f"the job was refused: {reason}",)
    return state, ()


def _follow(state: State, event: Event, policy: Policy) -> Decision:
    match event:
        case JobStarted():
            return replace(state, status=Status.RUNNING), ()
        case Heard():
            return replace(state, link_failures=0, errors=0), ()
        case JobEnded(JobEnd.SUCCEEDED):
            outcome = Outcome(Status.SUCCEEDED, event.reason, event.exit_codes, event.output)
            return _end(state, outcome), ()
        case JobEnded(JobEnd.CANCELLED):
            outcome = Outcome(Status.CANCELLED, f"the job was cancelled on the cluster: {event.reason}")
            return _end(state, outcome), (outcome.reason,)
        case JobEnded():
            return _job_failed(state, event, policy)
    return state, ()


def _job_failed(state: State, event: JobEnded, policy: Policy) -> Decision:
    spared = any(code in policy.recover_on_exit_codes for code in event.exit_codes)
    spent = state.restarts_on_errors + (0 if spared else 1)
    if not spared and spent > policy.max_restarts_on_errors:
        setup = event.end is JobEnd.FAILED_SETUP
        status = Status.FAILED_SETUP if setup else Status.FAILED
        return _end(state, Outcome(status, event.reason, event.exit_codes, None, event.last_lines)), (
            event.reason,
        )
    budget = (
        "its exit code asks for a restart"
        if spared
        else f"restart {spent} of {policy.max_restarts_on_errors}"
    )
    again = replace(_next_attempt(state), restarts_on_errors=spent)
    return again, (f"{event.reason}; {budget}",)


def _next_attempt(state: State) -> State:
    """Replace the cluster and run the job again on the new one."""
    return replace(
        state,
        status=Status.RECOVERING,
        step=Step.TEAR_DOWN,
        attempt=state.attempt + 1,
        job_id=None,
        unreachable_since=None,
        link_failures=0,
        agent_restarts=0,
    )


def _lost(state: State, evidence: str, policy: Policy) -> Decision:
    """Settle what a lost cluster means: nothing more for a task that ends anyway, else a recovery."""
    state = replace(state, lost_cluster=True)
    if state.outcome is not None or state.afresh:
        return replace(state, step=Step.TEAR_DOWN, job_id=None), ()
    if not policy.recover:
        outcome = Outcome(Status.FAILED, f"the cluster was lost ({evidence}) and job_recovery is none")
        return _end(state, outcome), (outcome.reason,)
    recovered = replace(_next_attempt(state), recoveries=state.recoveries + 1)
    return recovered, (f"the cluster was lost: {evidence}. Recovery {recovered.recoveries} begins",)


def _link_broke(state: State, event: LinkBroke, policy: Policy) -> Decision:
    if state.step is Step.CANCEL:
        # Tearing down ends the job as well, and is tried until it is verified.
        return replace(state, step=Step.TEAR_DOWN), (f"cannot cancel the job: {event.reason}",)
    failures = state.link_failures + 1
    broken = replace(state, link_failures=failures)
    if failures >= MAX_LINK_FAILURES:
        text = f"it answers, but {failures} calls in a row failed, at last with: {event.reason}"
        return _lost(broken, text, policy)
    if failures == 1:
        return replace(broken, step=Step.PROBE), (f"lost contact with the cluster: {event.reason}",)
    seconds = backoff(failures - 1)
    text = (
        f"lost contact again ({failures} times in a row), looking after it in {seconds:g} s: {event.reason}"
    )
    return _wait(broken, seconds, Step.PROBE), (text,)


def _back_to_work(state: State) -> State:
    back = Step.SUBMIT if state.job_id is None else Step.FOLLOW
    return replace(state, step=back, unreachable_since=None, agent_restarts=0)


def _probe(state: State, event: Event, policy: Policy) -> Decision:
    match event:
        case Alive():
            return _back_to_work(state), ()
        case AgentDown():
            return replace(state, step=Step.RESTART_AGENT), ("the agent is down; starting it again",)
        case Unreachable(evidence, now):
            since = state.unreachable_since if state.unreachable_since is not None else now
            if now - since >= policy.unreachable_timeout:
                limit = f"unreachable for {now - since:.0f} s, the limit is {policy.unreachable_timeout:g} s"
                return _lost(state, f"{limit} ({evidence})", policy)
            waiting = _wait(replace(state, unreachable_since=since), backoff(3), Step.PROBE)
            if state.unreachable_since is not None:
                return waiting, ()
            return waiting, (f"the cluster is unreachable ({evidence}); it may be well, so it is left alone",)
    return state, ()


def _restart_agent(state: State, event: Event, policy: Policy) -> Decision:
    match event:
        case AgentRestarted():
            return _back_to_work(state), ()
        case AgentRestartFailed(reason):
            failures = state.agent_restarts + 1
            failed = replace(state, agent_restarts=failures)
            if failures >= MAX_AGENT_RESTARTS:
                return _lost(failed, f"its agent failed to start {failures} times: {reason}", policy)
            return _wait(failed, backoff(failures), Step.PROBE), (f"the agent did not start: {reason}",)
    return state, ()


def _tear_down(state: State, event: Event, policy: Policy) -> Decision:
    match event:
        case TornDown():
            return _gone(state), ()
        case TearDownFailed(reason):
            return _not_torn_down(state, reason)
        case Unreachable():
            return _out_of_reach(state, event, policy)
    return state, ()


def _out_of_reach(state: State, event: Unreachable, policy: Policy) -> Decision:
    """Settle what becomes of a cluster that is to be removed and does not answer: its lease ends it in any case."""
    since = state.unreachable_since if state.unreachable_since is not None else event.now
    known = replace(state, unreachable_since=since)
    if state.outcome is not None and not state.lost_cluster:
        return _not_torn_down(known, f"{event.evidence} (its lease ends it)")
    # Only an earlier try's cluster may have a live job: else that ended, or never began, or was given up already.
    patience = policy.unreachable_timeout if state.afresh and not state.lost_cluster else 0.0
    if event.now - since >= patience:
        return _gone(state), (f"what is left of the cluster ends by its lease: {event.evidence}",)
    text = f"the earlier cluster does not answer, waiting for it up to {patience:g} s: {event.evidence}"
    return _wait(known, backoff(4), Step.TEAR_DOWN), () if state.unreachable_since is not None else (text,)


def _not_torn_down(state: State, reason: str) -> Decision:
    failures = state.tear_downs + 1
    failed = replace(state, tear_downs=failures)
    if failures >= MAX_TEAR_DOWNS:
        return _leave_behind(failed, reason)
    seconds = backoff(failures)
    text = f"the cluster is not removed yet, trying again in {seconds:g} s: {reason}"
    return _wait(failed, seconds, Step.TEAR_DOWN), (text,)


def _gone(state: State) -> State:
    """Go on after the cluster is gone: anew, to the end, or to the next launch."""
    if state.afresh:
        return State(attempt=state.attempt + 1)
    if state.outcome is not None:
        return replace(state, status=state.outcome.status, step=Step.DONE, tear_downs=0)
    gone = replace(state, step=Step.PROVISION, tear_downs=0, unreachable_since=None)
    if state.launch_failures:
        return _wait(gone, backoff(state.launch_failures), Step.PROVISION)
    return gone


def _leave_behind(state: State, reason: str) -> Decision:
    """End the task although its cluster may be there still: no other may run beside it."""
    text = f"the cluster could not be removed and is left behind: {reason}"
    outcome = state.outcome or Outcome(Status.FAILED_CONTROLLER, text)
    left = replace(state, status=outcome.status, step=Step.DONE, outcome=outcome, afresh=False, leaked=True)
    return left, (text,)
