"""The controller: performs what the state machine asks for, and tells it what happened.

One controller drives one managed task from wherever its stored state stands to its end. Every transition is stored
before anything that follows from it is done. The controller itself decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.blocking import outlast, run_blocking
from airflow_provider.runtime.client.base import (
    AgentFailed,
    ClientError,
    ClusterClient,
    JobState,
    JobStatus,
    LinkLost,
    NoSuchJob,
    Owner,
    RequestRefused,
)
from airflow_provider.runtime.control import events
from airflow_provider.runtime.control.follower import Follower
from airflow_provider.runtime.control.ledger import Ledger
from airflow_provider.runtime.control.machine import Policy, State, Step, backoff, step
from airflow_provider.runtime.control.request import job_request, submission_key
from airflow_provider.runtime.control.sending import send_archive
from airflow_provider.runtime.control.status import Status
from airflow_provider.runtime.errors import Superseded
from airflow_provider.runtime.files.blobs import BlobMissingError
from airflow_provider.runtime.infra.base import (
    ClusterHandle,
    Health,
    InfraError,
    NotFeasible,
    NothingFree,
    OutOfReach,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from airflow_provider.runtime.client.base import Heartbeat
    from airflow_provider.runtime.control.sink import Sink
    from airflow_provider.runtime.files.blobs import BlobStore
    from airflow_provider.runtime.infra.base import Choice, Infra
    from airflow_provider.runtime.state import StateStore, TaskRecord

log = logging.getLogger(__name__)

_CANCEL_MARGIN_SECONDS = 70.0
_DRAIN_SECONDS = 10.0


class SecretMissing(Exception):
    """A secret that the task refers to does not exist; the text names it, never a value."""


class Controller:
    """Drives one managed task. Belongs to the event loop that it is made on.

    Args:
        record: The task, claimed by the caller.
        store: The state store.
        infra: Where its clusters come from.
        blobs: Where its files are.
        secrets: Returns the values of secrets, given their references; raises SecretMissing.
        sink: Takes the task's log.
        unreachable_timeout: Seconds without contact after which a cluster counts as lost.
        redact: Hides the values of secrets in what is stored of the job's own words.
    """

    def __init__(
        self,
        record: TaskRecord,
        *,
        store: StateStore,
        infra: Infra,
        blobs: BlobStore,
        secrets: Callable[[dict[str, str]], Awaitable[dict[str, str]]],
        sink: Sink,
        unreachable_timeout: float = 600.0,
        redact: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._ledger = Ledger(record, store)
        self._store = store
        self._infra = infra
        self._blobs = blobs
        self._secrets = secrets
        self._sink = sink
        self._redact = redact
        recovery = record.order.task.resources.job_recovery
        self._policy = Policy(
            recover=recovery.strategy != "NONE",
            max_restarts_on_errors=recovery.max_restarts_on_errors,
            recover_on_exit_codes=recovery.recover_on_exit_codes,
            unreachable_timeout=unreachable_timeout,
        )
        self._owner = Owner(record.owner, record.generation)
        self._stop_requested: asyncio.Future[events.StopRequested] = (
            asyncio.get_running_loop().create_future()
        )
        self._client: ClusterClient | None = None
        self._follower: Follower | None = None
        self._following: AsyncGenerator[JobState | Heartbeat, None] | None = None

    @property
    def record(self) -> TaskRecord:
        """The task as it is stored."""
        return self._ledger.record

    @property
    def state(self) -> State:
        """The stored state."""
        return self.record.state

    def stop(self, outcome: events.Outcome, *, at_once: bool = False) -> None:
        """Ask for the task's end. Idempotent, for the event loop's thread; the first outcome counts.

        Args:
            outcome: How the task ends.
            at_once: Remove the cluster without letting the job end in peace first.
        """
        if not self._stop_requested.done():
            self._stop_requested.set_result(events.StopRequested(outcome, at_once))

    async def run(self) -> TaskRecord:
        """Drive the task to its terminal status and return its record.

        Raises:
            Superseded: somebody else controls the task now; nothing more was or may be done.
            StoreUnavailable: the state store was away for too long; the task goes on from where its record stands.
            ValueError: a later version of the provider made the cluster; nothing was done.
        """
        if self.record.cluster is not None:
            self._handle()
        try:
            while not self.state.status.terminal:
                await self._apply(await self._next_event())
            await self._collect_blobs()
            return self.record
        finally:
            await self._disconnect()

    async def _next_event(self) -> events.Event:
        """Do what the state asks for; a stop request or the deadline comes before its end."""
        if self.state.outcome is not None and not self.state.afresh:
            return await self._perform()  # the end is decided, and nothing gets in the way of cleaning up
        stop = self._stop_requested
        deadline = self.record.order.deadline
        left = None if deadline is None else max(0.0, deadline - time.time())
        if not stop.done() and left != 0:
            work = asyncio.create_task(self._perform())
            try:
                either: set[asyncio.Future[Any]] = {work, stop}
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return work.result()
            finally:
                work.cancel()
                await outlast(work)
        self.stop(events.Outcome(Status.FAILED, "execution_timeout: the task ran out of time"))
        return stop.result()

    async def _apply(self, event: events.Event) -> None:
        before = self.state
        after, lines = step(before, event, self._policy)
        if after != before:
            gone = before.step is Step.TEAR_DOWN and Step.TEAR_DOWN not in (after.step, after.after_wait)
            cluster = None if gone and not after.leaked else self.record.cluster
            await self._ledger.save(after, type(event).__name__, "; ".join(lines), cluster)
        for line in lines:
            await self._say(line)

    async def _collect_blobs(self) -> None:
        """Remove archives that nobody needs any more; the next task to end does what fails here."""
        try:
            await run_blocking(self._store.collect_blobs, self._blobs.delete)
        except Exception:
            log.warning("unused archives in %s are not removed yet", self._blobs.url, exc_info=True)

    async def _say(self, message: str) -> None:
        """Tell the user; a log that cannot be written must not end the task."""
        try:
            await self._sink.say(message)
        except Exception:
            log.warning("managed task %s: %s", self.record.id, message, exc_info=True)

    async def _perform(self) -> events.Event:
        """Do the state's step and return what came of it."""
        try:
            match self.state.step:
                case Step.PROVISION:
                    return await self._provision()
                case Step.SUBMIT:
                    return await self._submit()
                case Step.FOLLOW:
                    return await self._follow()
                case Step.PROBE:
                    return await self._probe()
                case Step.RESTART_AGENT:
                    return await self._restart_agent()
                case Step.CANCEL:
                    return await self._cancel()
                case Step.TEAR_DOWN:
                    return await self._tear_down()
                case Step.WAIT:
                    await asyncio.sleep(self.state.wait_seconds)
                    return events.WaitOver()
                case Step.DONE:
                    raise AssertionError("a terminal task has no step")
        except Superseded:
            raise
        except NoSuchJob as error:
            return events.Lost(f"the cluster does not know the job ({error})")
        except (LinkLost, AgentFailed) as error:
            await self._disconnect()
            return events.LinkBroke(str(error))
        except Exception as error:
            log.warning(
                "step %s of managed task %s failed", self.state.step.value, self.record.id, exc_info=True
            )
            await self._disconnect()
            return events.ControllerFailed(f"{type(error).__name__}: {error}")

    async def _provision(self) -> events.Event:
        if self.state.status is Status.PENDING:
            return events.LaunchBegun()
        task = self.record.order.task
        try:
            choice = await run_blocking(self._infra.choose, task)
            if not self.state.waiting_for:  # else it was said before the wait
                for reason in choice.passed_over:
                    await self._say(f"candidate passed over: {reason}")
                for name in task.carried_fields:
                    await self._say(f"{name} has no effect on infra {self._infra.name}")
            handle = await self._launched(choice)
        except NotFeasible as error:
            return events.LaunchFailed(events.LaunchProblem.NOT_FEASIBLE, str(error))
        except NothingFree as error:
            return events.LaunchFailed(events.LaunchProblem.NOTHING_FREE, str(error))
        except (InfraError, ClientError) as error:
            return events.LaunchFailed(events.LaunchProblem.FAILED, str(error))
        await self._say(f"cluster {handle.name} is up: {choice.candidate.describe(self._infra.name)}")
        # The handle is stored with the transition that says so.
        await self._ledger.save(self.state, "ClusterUp", handle.name, handle.to_json())
        return events.Provisioned()

    async def _launched(self, choice: Choice) -> ClusterHandle:
        """Return the cluster, as soon as there is room for it.

        Nothing is stored while the reason for the wait stays the same: waiting costs no transitions.

        Raises:
            NothingFree: there is none, for another reason than the one that is stored.
        """
        for waits in count(3):  # from 4 s on
            if self.state.waiting_for:
                await self._infra.wait_for_room(backoff(waits))
            await self._ledger.check_claim()
            try:
                return await self._infra.provision(
                    self.record.cluster_name,
                    choice,
                    self._say,
                    previous=self._handle_if_any(),
                    intend=self._intend,
                )
            except NothingFree as error:
                if str(error) != self.state.waiting_for:
                    raise
        raise AssertionError("the loop ends by returning or raising")

    async def _intend(self, handle: ClusterHandle) -> None:
        """Store where a cluster is about to be made: whoever goes on from here looks for it there."""
        await self._ledger.save(self.state, "ClusterIntended", handle.name, handle.to_json())

    async def _submit(self) -> events.Event:
        order = self.record.order
        client = await self._connect()
        try:
            for tree in order.files:
                read = partial(self._blobs.open, tree.digest)
                await send_archive(client, tree.digest, tree.size, read, say=self._say)
            secrets = await self._secrets(order.task.secrets)
            choice = await run_blocking(self._infra.choose, order.task)
            request = job_request(self.record, choice.candidate, secrets)
            job_id = await client.submit(submission_key(self.record), self._owner, request)
        except (RequestRefused, SecretMissing, BlobMissingError, NotFeasible) as error:
            return events.JobRefused(str(error))
        chain = order.chain
        await self._say(
            f"── {chain.name}: {order.task.name} ({chain.index + 1} of {len(chain.task_names)}), "
            f"attempt {self.record.attempt}, cluster {self.record.cluster_name} ──"
        )
        return events.Submitted(job_id)

    async def _follow(self) -> events.Event:
        """Read on until the stream carries something that the machine must know."""
        if self._following is None:
            client = await self._connect()
            self._following = self._follower_of_job().events(client, self._owner)
        async for message in self._following:
            if isinstance(message, JobState):
                if message.status.terminal:
                    await self._stop_following()
                    return await self._confirmed(message)
                running = message.status in (JobStatus.SETTING_UP, JobStatus.RUNNING)
                if running and self.state.status is not Status.RUNNING:
                    return events.JobStarted()
            if self.state.link_failures or self.state.errors:
                return events.Heard()
        raise LinkLost("the stream ended before the job did")

    async def _confirmed(self, ended: JobState) -> events.Event:
        """Tell the end of a job from that of its cluster: a node on its way down takes the jobs on it along."""
        if ended.status is not JobStatus.SUCCEEDED:
            await self._disconnect()  # a host may allow one session at a time, and the probe needs one
            probed = await self._probe()
            if isinstance(probed, events.Lost):
                return probed
            if not isinstance(probed, events.Alive):
                return events.LinkBroke(
                    f"the job ended as {ended.status.value}, and so did contact with its cluster"
                )
        return self._ended(ended)

    async def _cancel(self) -> events.Event:
        """End the job, and read its log to the end meanwhile."""
        await self._stop_following()
        client = await self._connect()
        limit = self.record.order.grace_seconds + _CANCEL_MARGIN_SECONDS
        # Whoever asked for the end may not let us live to see it; then the cluster ends itself soon.
        await client.handshake(lease_seconds=limit)
        reading = asyncio.create_task(self._drain(client))
        try:
            state = await client.cancel(self._job_id(), self._owner, limit=limit)
            await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)
            return self._ended(state)
        finally:
            reading.cancel()
            await outlast(reading)

    async def _drain(self, client: ClusterClient) -> None:
        async for _ in self._follower_of_job().events(client, self._owner):
            pass

    async def _probe(self) -> events.Event:
        if self.record.cluster is None:
            return events.Lost("no cluster is recorded")
        try:
            probe = await self._infra.probe(self._handle())
        except (InfraError, ClientError) as error:
            return events.Unreachable(str(error), time.time())
        match probe.health:
            case Health.ALIVE:
                return events.Alive()
            case Health.AGENT_DOWN:
                return events.AgentDown()
            case Health.GONE:
                return events.Lost(probe.evidence)
            case Health.UNREACHABLE:
                return events.Unreachable(probe.evidence, time.time())

    async def _restart_agent(self) -> events.Event:
        try:
            await self._infra.restart_agent(self._handle())
        except (InfraError, ClientError) as error:
            return events.AgentRestartFailed(str(error))
        return events.AgentRestarted()

    async def _tear_down(self) -> events.Event:
        await self._disconnect()
        self._follower = None
        await self._ledger.check_claim()
        try:
            await self._infra.tear_down(self.record.cluster_name, self._handle_if_any())
        except OutOfReach as error:
            return events.Unreachable(str(error), time.time())
        except (InfraError, ClientError) as error:
            return events.TearDownFailed(str(error))
        return events.TornDown()

    def _handle(self) -> ClusterHandle:
        if self.record.cluster is None:
            raise AssertionError(f"step {self.state.step.value} needs a cluster")
        return ClusterHandle.from_json(self.record.cluster)

    def _handle_if_any(self) -> ClusterHandle | None:
        return None if self.record.cluster is None else self._handle()

    def _ended(self, state: JobState) -> events.Event:
        lines = self._follower.log.last_lines if self._follower else ()
        return events.JobEnded(
            end=events.JobEnd(state.status.value),
            reason=self._redact(state.reason),
            exit_codes=state.exit_codes,
            output=state.output,
            last_lines=tuple(self._redact(line) for line in lines),
        )

    def _follower_of_job(self) -> Follower:
        if self._follower is None or self._follower.job_id != self._job_id():
            self._follower = Follower(self._job_id(), self._sink)
        return self._follower

    def _job_id(self) -> int:
        if self.state.job_id is None:
            raise AssertionError(f"step {self.state.step.value} needs a job")
        return self.state.job_id

    async def _connect(self) -> ClusterClient:
        """Return the client of the present cluster, checked to be the one that the record means."""
        if self._client is None:
            if self.record.cluster is None:
                raise LinkLost("no cluster is recorded")
            handle = self._handle()
            client = await self._infra.connect(handle)
            try:
                instance = await client.handshake()
                if instance != handle.instance:
                    raise LinkLost(f"another cluster answers under the name {handle.name}")
            except BaseException:
                await client.close()
                raise
            self._client = client
        return self._client

    async def _stop_following(self) -> None:
        if self._following is not None:
            following, self._following = self._following, None
            await following.aclose()

    async def _disconnect(self) -> None:
        await self._stop_following()
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()
