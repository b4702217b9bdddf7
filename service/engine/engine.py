"""One scheduling cycle: requests -> transitions -> decision -> checks -> one transaction -> commands.

Semantics: a cycle maps (world, requests, reports) to (world', commands). Commands are sent and reports are acknowledged
only after the transaction is committed, so a crash repeats work and loses none. A crash before the commit has no effect.
After it, :meth:`Engine.reconcile` sends the missing commands again; commands are idempotent. The engine never waits. It reads
the time once, from its clock port, at the start of a cycle.

The world is kept between cycles and changed in place, and only what changed is written to the store. This is equivalent to
loading everything in each cycle. The engine is the only writer: a row that another writer changed fails its version guard and
is read again. A failed transaction discards the world and loads it again.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Generic, TypeVar

from policies.base import Policy, PolicyState, promised_end_s, queue_of, shares_of
from policies.decision.queue_order import QueueSlice, QueueWanted
from policies.invariants import Violation, check
from policies.lifecycle import AttemptState, Cause, JobState
from policies.model.cluster import Cluster
from policies.model.decision import Action, Change, ChangeKind, Decision
from policies.model.estimate import Attained, EndedJob, Prediction, PredictionRequest, Unit
from policies.model.ids import JobId, job_of
from policies.model.reasons import PROMISED_END, Explanation, Reason
from policies.model.shares import Shares
from policies.model.value import value
from service.engine.actions import apply_action, launch_of
from service.engine.crash_points import CrashPoint, reached
from service.engine.cycle import Cycle, EngineSettings
from service.engine.estimates import may_refresh, refresh_estimates, revise_estimates
from service.engine.events import EngineRequest, RequestKind
from service.engine.labels import label_of
from service.engine.ports import (
    AttemptStatus,
    Clock,
    CycleBatch,
    Executor,
    Predictor,
    Sink,
    Store,
    StoreUnavailable,
)
from service.engine.record import JobRecord
from service.engine.refusals import Refusals
from service.engine.reports import apply_report, attained_walltime, fence
from service.engine.requests import (
    admit,
    apply_request,
    cancel_dependent,
    count_dependencies,
    request_stop,
    stop_of,
    waited_for,
)
from service.engine.server_reservations import next_boundary_s, settle_server_reservations
from service.engine.world import Costs, World, world_of

State = TypeVar("State", bound=PolicyState)

REFRESHED_PER_CYCLE_MAX = 100
"""Jobs whose estimates are made again in one cycle, about 1 ms each: the first end of an array of 10,000 must delay neither
decisions nor those who wait for the end of the cycle."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The implementations that the engine calls."""

    store: Store
    executor: Executor
    clock: Clock
    predictor: Predictor
    sink: Sink


@value
class CycleOutcome:
    """``wake_at_s``: when to call again at the latest (None: nothing is timed). ``committed``: whether anything changed."""

    number: int
    committed: bool
    wake_at_s: float | None
    actions: Sequence[Action] = ()
    failed: str = ""


class Engine(Generic[State]):
    """One scheduler. Not thread-safe: the caller serialises :meth:`cycle`."""

    def __init__(
        self,
        policy: Policy[State],
        cluster: Cluster,
        ports: Ports,
        costs: Costs | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        self.policy = policy
        self._promises = hasattr(policy, "promised_end_s")
        self.settings = settings or EngineSettings()
        self.counters: Counter[str] = Counter()
        self.violations: Sequence[Violation] = ()
        self._ports = ports
        self._cluster = cluster
        self._costs = costs or Costs()
        self._timers: list[tuple[float, JobId]] = []
        self._feedback: list[Change] = []
        self._now_s = -inf
        self._wake_at_s: float | None = None
        self._backlog = False
        self._stale = False
        self._refusals = Refusals()
        self._outdated: dict[JobId, None] = {}
        self._refreshed: list[JobId] = []
        self._sending: AbstractContextManager[object] | None = None
        self.recover()
        ports.predictor.watch(self.attained)

    @property
    def number(self) -> int:
        """The number of the newest committed cycle."""
        return self._number

    @property
    def world(self) -> World:
        """The live world, for reading."""
        return self._world

    def recover(self, policy_state: dict[str, Any] | None = None) -> None:
        """Load the world from the store and rebuild the policy's state: at start, and after a failed transaction.

        ``policy_state`` is the policy's newest dump; without one, the last stored dump is used.
        """
        self._stale = True
        stored = self._ports.store.load()
        reached(CrashPoint.LOADED)
        self._world = world_of(stored, self._cluster, self._costs)
        self._now_s = self._world.now_s = max(self._now_s, stored.at_s, self._ports.clock.now_s())
        self._loaded_at_s = self._dumped_at_s = self._now_s
        self._undumped = policy_state is not None
        self._number = stored.cycle
        self._timers = []
        self._feedback = []
        self._failed_dependents: list[tuple[JobId, JobId]] = []
        self._register(list(self._world.jobs.values()))
        self._state = self.policy.rebuild(self._world, stored.policy_dump if policy_state is None else policy_state)
        self._wake_at_s = None
        self._stale = False

    def cycle(self, sending: AbstractContextManager[object] | None = None) -> CycleOutcome:
        """One cycle. O((requests + reports + actions) log n) besides the ports' own costs.

        If the store is unavailable, nothing changes and the outcome holds the error. After any other exception the next cycle
        loads the world from the store.

        ``sending``: a context around the commands that follow the commit. To send them may take long, and others may read the
        engine meanwhile. It is left out where the engine still holds what was not committed, because a row was stale.
        """
        self._sending = sending
        try:
            if self._stale:
                self.recover()
            return self._run_cycle()
        except StoreUnavailable as error:
            return self._roll_back(error)
        except Exception:
            self._stale = True
            raise

    def _run_cycle(self) -> CycleOutcome:
        # Time never runs backwards, even if the clock does: policies accumulate over it.
        now_s = self._now_s = self._world.now_s = max(self._now_s, self._ports.clock.now_s())
        cycle = Cycle(self._number + 1, now_s, self._world, self.settings, self._set_timer, self._loaded_at_s)
        cycle.changes = self._feedback
        self._feedback = []
        self._drain(cycle)
        decision = self._decide(cycle)
        applied = self._apply(cycle, decision)
        self._wake_at_s = decision.wake_at_s
        if not (cycle.writes or cycle.servers or cycle.requests or applied or (self._undumped and self._dump_is_due())):
            self._tell(cycle, frozenset())
            self._command(cycle, frozenset())
            return CycleOutcome(self._number, committed=False, wake_at_s=self._wake())
        return self._commit(cycle, decision, applied)

    def reconcile(self) -> None:
        """Compare the stored attempts with those that the executor sees, and send lost commands again. O(open attempts)."""
        observed = self._ports.executor.observed()
        cycle = Cycle(self._number, self._world.now_s, self._world, self.settings, self._set_timer)
        for job_id in self._world.holding():
            job = self._world.jobs[job_id]
            attempt = job.attempt
            assert attempt is not None
            if attempt.state is AttemptState.STOPPING:
                stop = stop_of(job, self.settings.stop_grace_s, self.settings.fencing_token)
                cycle.commands.append((job_id, stop))
            elif attempt.state is AttemptState.LAUNCHING and attempt.id not in observed:
                cycle.commands.append((job_id, launch_of(job, self.settings.fencing_token)))
            elif attempt.id not in observed:
                # The executor lost a running attempt (its folder is gone). The fence stops it and causes a report of its end.
                fence(cycle, attempt.id)
        for attempt_id, status in observed.items():
            known = self._world.jobs.get(job_of(attempt_id))
            is_open = known is not None and known.attempt is not None and known.attempt.id == attempt_id
            if not is_open and status is not AttemptStatus.ENDED:
                fence(cycle, attempt_id)
        self._ports.executor.use_cluster(self._cluster)
        if cycle.commands:
            reached(CrashPoint.RECONCILING)
            self._ports.executor.send([command for _, command in cycle.commands])
            reached(CrashPoint.RECONCILED)

    def explain(self, job_id: JobId) -> Explanation:
        """Explain the state of an unfinished job. Raises KeyError for other jobs."""
        job = self._world.jobs[job_id]
        explanation = self.policy.explain(self._world, self._state, job_id)
        if not job.waiting and job.state is JobState.QUEUED:
            detail, numbers = self._world.admission.why(job) if job.gate is not None else ("", {})
            waiting_for: tuple[JobId, ...] = ()
            if job.reason is Reason.DEPENDENCY:
                detail, waiting_for = waited_for(job, self._world)
            promised_s = self.promised_end_s(job_id)
            return Explanation(
                job.reason,
                explanation.gpus_needed,
                explanation.gpus_free,
                explanation.servers_with_free_gpus,
                waiting_for=waiting_for,
                detail=detail,
                gpu_type=explanation.gpu_type,
                numbers=numbers if promised_s is None else {**numbers, PROMISED_END: promised_s},
            )
        return explanation

    def queue(self, wanted: QueueWanted) -> QueueSlice:
        """A part of the queue in the policy's order. O(wanted log n)."""
        return queue_of(self.policy, self._world, self._state, wanted)

    def promised_end_s(self, job: JobId) -> float | None:
        """The end that the policy has promised an unfinished job; None without a promise."""
        return promised_end_s(self.policy, self._state, job) if self._promises else None

    def shares(self) -> Shares:
        """What the policy has counted of users and projects."""
        return shares_of(self.policy, self._world, self._state)

    def attained(self, job_id: JobId, now_s: float) -> Attained | None:
        """How far an unfinished job has come; None for one that has not run. O(1)."""
        job = self._world.jobs.get(job_id)
        if job is None or job.finished or (service_s := job.done(Unit.SERVICE_S, now_s)) <= 0.0:
            return None
        iterations = job.done(Unit.ITERATIONS, now_s) if job.reports_iterations else None
        return Attained(PredictionRequest(job.id, job.spec, job.submitted_at_s), service_s, iterations)

    def dump(self) -> dict[str, Any]:
        """The policy's state, for a snapshot of the cycle."""
        return self._state.dump()

    # 1. Reports, timers and requests.

    def _drain(self, cycle: Cycle) -> None:
        for report in self._ports.executor.poll():
            apply_report(cycle, report)
        self._refresh_estimates(cycle)
        if cycle.totals or cycle.measured or cycle.curves:
            try:
                revise_estimates(cycle, self._ports.predictor)
            except Exception:
                # As in _predict: the jobs keep their estimates.
                self.counters["prediction_failures"] += 1
        self._fire_timers(cycle)
        if self._failed_dependents:
            for job_id, failed in self._failed_dependents:
                if (job := self._world.jobs.get(job_id)) is not None and job.state is JobState.QUEUED:
                    cancel_dependent(cycle, job, failed)
            self._failed_dependents = []
        requests = self._ports.store.pending_requests(self.settings.facts_per_cycle_max)
        self._backlog = len(self._outdated) > len(self._refreshed) or len(requests) >= self.settings.facts_per_cycle_max
        if requests:
            submitted = [request for request in requests if request.kind is RequestKind.SUBMITTED]
            if submitted:
                self._admit(cycle, submitted)
            if len(submitted) < len(requests):
                for request in requests:
                    if request.kind is not RequestKind.SUBMITTED:
                        apply_request(cycle, request)
        cycle.settle_admission()
        if self._world.server_reservations:
            settle_server_reservations(cycle)

    def _admit(self, cycle: Cycle, requests: Sequence[EngineRequest]) -> None:
        by_job = {request.job: request for request in requests if request.job is not None}
        records = self._ports.store.jobs(sorted(by_job)) if by_job else []
        new = [record for record in records if record.id not in self._world.jobs and not record.finished]
        states = self._states_of_dependencies(new)
        self._refusals.hold_back(new, cycle)
        for record, prediction in zip(new, self._predict(cycle.now_s, new), strict=True):
            if prediction is not None:
                record.estimate = prediction.estimate
            admit(cycle, record, by_job[record.id], states)
            cycle.writes[record.id].prediction = prediction
        if len(new) < len(requests):
            admitted = {record.id for record in new}
            cycle.requests += [request.id for request in requests if request.job not in admitted]

    def _states_of_dependencies(self, jobs: Sequence[JobRecord]) -> dict[JobId, JobState]:
        """The committed states of the dependencies of these jobs that the world does not hold."""
        unknown = {
            needed for job in jobs if job.spec.needs for needed in job.spec.needs if needed not in self._world.jobs
        }
        return {job.id: job.state for job in self._ports.store.jobs(sorted(unknown))} if unknown else {}

    def _register(self, jobs: Sequence[JobRecord]) -> None:
        """Register jobs that were read from the store: their dependencies, admission, and timers for a pause or a walltime."""
        states = self._states_of_dependencies(jobs)
        for job in jobs:
            if job.state is JobState.QUEUED:
                failed = count_dependencies(job, self._world, states)
                if failed is not None:
                    self._failed_dependents.append((job.id, failed))
                if job.eligible:
                    self._world.admission.arrive(job)
            if job.not_before_s > 0.0:
                self._set_timer(job.not_before_s, job.id)
            elif job.progressing and job.spec.walltime_s is not None and self.settings.enforce_walltime:
                self._set_timer(job.anchor_s + max(0.0, job.spec.walltime_s - job.service_s), job.id)

    def _predict(self, now_s: float, records: Sequence[JobRecord]) -> Sequence[Prediction | None]:
        if not records:
            return ()
        requests = [PredictionRequest(job.id, job.spec, job.submitted_at_s) for job in records]
        try:
            return self._ports.predictor.predict(now_s, requests)
        except Exception:
            # A broken model must not stop the cluster. Without an estimate a job is ranked by attained service.
            self.counters["prediction_failures"] += 1
            return [None] * len(requests)

    def _refresh_estimates(self, cycle: Cycle) -> None:
        """Ask again for the predictions of unfinished jobs of which more is known since the last cycle."""
        if not self._outdated:
            self._refreshed = []
            return
        self._refreshed = list(islice(self._outdated, REFRESHED_PER_CYCLE_MAX))
        found = (self._world.jobs.get(job_id) for job_id in self._refreshed)
        jobs = [job for job in found if job is not None and may_refresh(job)]
        refresh_estimates(cycle, jobs, self._predict(cycle.now_s, jobs))

    def _set_timer(self, at_s: float, job: JobId) -> None:
        heapq.heappush(self._timers, (at_s, job))

    def _fire_timers(self, cycle: Cycle) -> None:
        while self._timers and self._timers[0][0] <= cycle.now_s:
            _, job_id = heapq.heappop(self._timers)
            job = self._world.jobs.get(job_id)
            if job is None or job.finished:
                continue
            if job.state is JobState.QUEUED and 0.0 < job.not_before_s <= cycle.now_s:
                cycle.touch(job)
                job.not_before_s = 0.0
                if not job.held:
                    job.reason = Reason.NEW
                cycle.arrive(job)
            elif self.settings.enforce_walltime and attained_walltime(job, cycle.now_s):
                request_stop(cycle, job, JobState.CANCELLING, Cause.WALLTIME, Reason.WALLTIME)
            elif self.settings.enforce_walltime and job.progressing and job.spec.walltime_s is not None:
                # Its progress was re-anchored since (a restart, a late report), so the timer is set anew.
                self._set_timer(
                    cycle.now_s + job.spec.walltime_s - job.service_s - max(0.0, cycle.now_s - job.anchor_s), job_id
                )

    # 2. Decision.

    def _decide(self, cycle: Cycle) -> Decision:
        decision = self.policy.decide(self._world, cycle.changes, self._state)
        if decision.actions and self.settings.enforce_invariants and (violations := check(self._world, decision)):
            self.violations = violations
            self.counters["decisions_rejected"] += 1
            for violation in violations:
                self.counters[f"violated_{violation.invariant}"] += 1
            self._state = self.policy.rebuild(self._world, self._state.dump())
            return Decision(wake_at_s=decision.wake_at_s)
        return decision

    def _apply(self, cycle: Cycle, decision: Decision) -> list[Action]:
        self._feedback = [apply_action(cycle, action) for action in decision.actions]
        for job_id, reason in decision.reasons_changed:
            job = self._world.jobs.get(job_id)
            if job is not None and job.state is JobState.QUEUED and job.reason is not reason:
                cycle.touch(job)
                job.reason = reason
        return list(decision.actions)

    # 3. Commit.

    def _commit(self, cycle: Cycle, decision: Decision, applied: list[Action]) -> CycleOutcome:
        for job_id in cycle.ended:
            cycle.writes[job_id].label = label_of(cycle.writes[job_id], self._world, cycle.reached.get(job_id))
        with_dump = self._dump_is_due()
        batch = CycleBatch(
            cycle=cycle.number,
            at_s=cycle.now_s,
            changes=cycle.changes,
            actions=applied,
            writes=cycle.writes,
            servers=cycle.servers,
            new_servers=cycle.new_servers,
            server_events=cycle.server_events,
            requests=cycle.requests,
            wake_at_s=decision.wake_at_s,
            dump=self._state.dump() if with_dump else None,
        )
        reached(CrashPoint.DECIDED)
        dropped = self._ports.store.commit(batch)
        reached(CrashPoint.COMMITTED)
        self._number = cycle.number
        self._undumped = not with_dump
        if with_dump:
            self._dumped_at_s = cycle.now_s
        if self._cluster is not self._world.cluster:
            self._cluster = self._world.cluster
            self._ports.executor.use_cluster(self._cluster)
        self._refusals.forget(cycle.writes, dropped)
        self._tell(cycle, dropped)
        self._ports.sink.cycle(batch)
        self._command(cycle, dropped)
        if dropped:
            self._undo(cycle, applied, dropped)
        return CycleOutcome(self._number, committed=True, wake_at_s=self._wake(), actions=applied)

    def _dump_is_due(self) -> bool:
        return self._now_s - self._dumped_at_s >= self.settings.dump_every_s

    def store_policy_state(self) -> None:
        """Store what the policy's state has become since it was last stored, before an orderly end. Raises StoreUnavailable."""
        if self._stale or not self._undumped:
            return
        self._ports.store.commit(CycleBatch(self._number + 1, self._now_s, (), (), dump=self.dump()))
        self._number += 1
        self._dumped_at_s, self._undumped = self._now_s, False

    def _undo(self, cycle: Cycle, applied: Sequence[Action], dropped: frozenset[JobId]) -> None:
        """Take the store's version of the dropped jobs, and rebuild the policy from the world."""
        self.counters["writes_dropped"] += len(dropped)
        # A dropped submission is still pending. A later cycle admits it.
        fresh = self._ports.store.jobs(sorted(dropped - cycle.admitted))
        for job_id in dropped:
            self._world.drop_job(job_id)
        unfinished = [job for job in fresh if not job.finished]
        for job in unfinished:
            self._world.add_job(job)
        # Pauses come first: a paused job must not be shown to admission.
        self._refusals.note(applied, dropped, cycle.now_s)
        self._refusals.hold_back(unfinished, cycle)
        self._register(unfinished)
        self._state = self.policy.rebuild(self._world, self._state.dump())
        refused = {action.job for action in applied if action.job in dropped}
        self._feedback = [
            Change(ChangeKind.REFUSED, job_id, reason=Reason.REFUSED)
            for job_id in sorted(refused)
            if job_id in self._world.jobs
        ]
        self._wake_at_s = cycle.now_s

    def _roll_back(self, error: StoreUnavailable) -> CycleOutcome:
        """Discard the cycle and load the world again; if that fails too, the next cycle loads it."""
        self.counters["commits_failed"] += 1
        if not self._stale:
            try:
                self.recover(self._state.dump())
            except StoreUnavailable:
                self.counters["recoveries_failed"] += 1
        return CycleOutcome(self._number, committed=False, wake_at_s=self._wake(), failed=str(error))

    def _command(self, cycle: Cycle, dropped: frozenset[JobId]) -> None:
        """Acknowledge the committed reports and send the commands. The last step: both are repeated if they fail."""
        if not cycle.handled and not cycle.commands:
            return
        if self._sending is None or dropped:
            self._send(cycle, dropped)
        else:
            with self._sending:
                self._send(cycle, dropped)

    def _send(self, cycle: Cycle, dropped: frozenset[JobId]) -> None:
        executor = self._ports.executor
        if cycle.handled:
            executor.acknowledge([report for job_id, report in cycle.handled if job_id not in dropped])
            reached(CrashPoint.ACKNOWLEDGED)
        if cycle.commands:
            executor.send([command for job_id, command in cycle.commands if job_id not in dropped])
            reached(CrashPoint.SENT)

    def _tell(self, cycle: Cycle, dropped: frozenset[JobId]) -> None:
        """Tell the world, the sink and the predictor what was committed."""
        for job_id in cycle.ended:
            if job_id not in dropped:
                self._world.remove_job(job_id)
        for job_id in self._refreshed:
            if job_id not in dropped:
                del self._outdated[job_id]
        transition = self._ports.sink.transition
        for job_id, write in cycle.writes.items():
            if job_id not in dropped:
                for event in write.events:
                    if event.source is not None:
                        transition(event, write.job)
                if write.label is not None:
                    self._learn(write.label)

    def _learn(self, label: EndedJob) -> None:
        try:
            self._outdated |= dict.fromkeys(self._ports.predictor.ended(label))
        except Exception:
            # As in _predict: a failure to learn must not stop the loop. The end itself is committed.
            self.counters["prediction_failures"] += 1

    def _wake(self) -> float | None:
        if self._backlog:
            return self._world.now_s
        at_s = self._wake_at_s
        # No min(): a simulation calls this after every event.
        if self._timers and (at_s is None or self._timers[0][0] < at_s):
            at_s = self._timers[0][0]
        if self._world.server_reservations:
            boundary_s = next_boundary_s(self._world.server_reservations, self._world.now_s)
            if boundary_s is not None and (at_s is None or boundary_s < at_s):
                at_s = boundary_s
        return at_s
