"""What a new try does with the work of an earlier one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider.runtime.control.machine import State, begin_afresh
from airflow_provider.runtime.control.status import Status

if TYPE_CHECKING:
    from airflow_provider.runtime.state import TaskRecord


@dataclass(frozen=True)
class Reconciled:
    """The state to go on from, and what to tell the user about it."""

    state: State
    message: str


def reconcile(found: TaskRecord | None, *, max_tries: int) -> Reconciled:
    """Decide what becomes of an earlier try's work.

    Airflow retried: go on with what runs, take over what is being launched, finish with a result that is there. The
    user asked again (cleared the task, by which Airflow raises ``max_tries``): end what runs and start anew.

    Args:
        found: The record of the earlier try, None when there is none.
        max_tries: Airflow's present count.
    """
    if found is None:
        return Reconciled(State(), "")
    state = found.state
    if max_tries != found.max_tries:
        return Reconciled(begin_afresh(state), "the task was cleared: starting afresh")
    if state.status is Status.SUCCEEDED:
        return Reconciled(state, "an earlier try succeeded: finishing with its result")
    if state.status.terminal:
        return Reconciled(begin_afresh(state), f"the earlier try ended {state.status.value}: starting afresh")
    if state.afresh:
        return Reconciled(
            replace(state, errors=0), "an earlier try ends what runs, to start afresh: going on with that"
        )
    if state.outcome is not None:
        if state.outcome.status is Status.SUCCEEDED:
            return Reconciled(replace(state, errors=0), "an earlier try succeeded: cleaning up after it")
        return Reconciled(
            begin_afresh(state),
            f"the earlier try is ending as {state.outcome.status.value}: starting afresh after it",
        )
    if state.job_id is not None:
        message = f"going on with attempt {state.attempt}, which still runs"
    else:
        message = "taking over the launch that is under way"
    return Reconciled(replace(state, errors=0), message)
