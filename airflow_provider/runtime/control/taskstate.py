"""What is decided about a managed task and what the user asked for: plain values, stored as they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from airflow_provider.runtime.control.status import Status

if TYPE_CHECKING:
    from airflow_provider.runtime.control.events import Outcome


class Step(str, Enum):
    """What has to be done next for the task."""

    PROVISION = "provision"
    SUBMIT = "submit"
    FOLLOW = "follow"
    PROBE = "probe"
    RESTART_AGENT = "restart agent"
    CANCEL = "cancel"
    TEAR_DOWN = "tear down"
    WAIT = "wait"
    DONE = "done"


@dataclass(frozen=True)
class Policy:
    """What the user asked for.

    Attributes:
        recover: Whether a lost cluster is replaced at all.
        max_restarts_on_errors: How often a failing job is started again.
        recover_on_exit_codes: Exit codes of the job that always start it again, outside that budget.
        unreachable_timeout: Seconds without contact after which a cluster counts as lost.
    """

    recover: bool = True
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()
    unreachable_timeout: float = 600.0


@dataclass(frozen=True)
class State:
    """Everything that decides about a task; stored whole at each transition.

    Attributes:
        status: What the user sees.
        step: What has to be done next.
        attempt: Number of the present job attempt, from 1, over recoveries and tries.
        job_id: The cluster job of this attempt, once submitted.
        recoveries: Clusters lost and replaced in this try.
        restarts_on_errors: Restarts spent on failing jobs in this try.
        outcome: How the task ends; set as soon as that is decided.
        afresh: Begin anew once the cluster is torn down, whatever was decided before.
        after_wait: The step that a WAIT leads to.
        wait_seconds: How long the WAIT lasts.
        unreachable_since: When contact was lost, in seconds since the epoch.
        launch_failures: Failed launches in a row.
        waiting_for: What the next launch waits for, in words; empty: it does not wait.
        lost_cluster: The present cluster, or what is left of it, was given up as lost.
        link_failures: Broken links in a row, without a word from the job between them.
        agent_restarts: Failed restarts of the agent in a row.
        tear_downs: Failed tear-downs in a row.
        errors: Unexpected errors of the controller, without a word from the job between them.
        leaked: The cluster could not be removed.
    """

    status: Status = Status.PENDING
    step: Step = Step.PROVISION
    attempt: int = 1
    job_id: int | None = None
    recoveries: int = 0
    restarts_on_errors: int = 0
    outcome: Outcome | None = None
    afresh: bool = False
    after_wait: Step = Step.DONE
    wait_seconds: float = 0.0
    unreachable_since: float | None = None
    launch_failures: int = 0
    waiting_for: str = ""
    lost_cluster: bool = False
    link_failures: int = 0
    agent_restarts: int = 0
    tear_downs: int = 0
    errors: int = 0
    leaked: bool = False
