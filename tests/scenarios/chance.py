"""Seeded chance: workloads, stores that fail, policies that are watched while they decide."""

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from policies.base import Policy
from policies.model.cluster import Server
from policies.model.decision import Action, Change, ChangeKind, Decision
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView
from policies.state.scheduler_state import SchedulerState
from service.engine.events import EngineRequest
from service.engine.ports import CycleBatch, StoreUnavailable
from service.engine.record import AttemptRecord, JobRecord, StoredWorld
from service.sim.executor import ExecutorCosts
from tests.durable_store import DurableStore
from tests.scenarios.dsl import Story, servers

SHAPES = ("4x4", "2x8", "8x2", "1x16")
"""16 GPUs: with whole seconds and a power of two, ranks are exact and a rebuilt index equals a grown one."""

WAITING_REASONS = frozenset(
    {
        Reason.PRIORITY,
        Reason.RESOURCES,
        Reason.FRAGMENTED,
        Reason.CONSOLIDATION_DELAY,
        Reason.VIRTUAL_GATE,
        Reason.QUEUE_HEAD_BLOCKED,
        Reason.RESERVED,
        Reason.NO_SUCH_SERVERS,
    }
)


def crowd(
    seed: int, chosen: Policy[Any], *, jobs: int = 25, store: "Flaky | None" = None, hungry: bool = False
) -> Story:
    """A cluster of 16 GPUs and jobs that arrive within five minutes, many at the same instant.

    ``hungry``: most servers state CPUs and memory, and most jobs need some: up to all that belong to their GPUs, or twice that
    where half of the GPUs suffice.
    """
    dice = random.Random(seed)
    costs = ExecutorCosts(checkpoint_s=dice.choice((0.0, 8.0)), restart_s=0.0)
    shape = dice.choice(SHAPES)
    story = Story(shape, chosen, costs=costs, store=store, names=stating(shape) if hungry else None)
    if store is not None:
        story.memory = store.inner
    for number, at_s in enumerate(sorted(dice.randrange(30) * 10.0 for _ in range(jobs))):
        runs_s = float(dice.choice((1, 5, 20, 60, 150, 400)) + dice.randrange(8))
        gpus = dice.choice((1, 1, 2, 4, 8, 16))
        predicted = dice.choice(("truth", "truth", None, runs_s * 4, runs_s / 4, (runs_s / 2, runs_s, runs_s * 4)))
        story.job(
            f"j{number}",
            gpus=gpus,
            runs_s=runs_s,
            at_s=at_s,
            project=f"p{number % 3}",
            predicted=predicted,
            priority=dice.choice((0, 0, 0, 0, 1)),
            max_retries=1000,
            checkpoint_period_s=dice.choice((None, 30.0)),
            **(needs(dice, gpus) if hungry else {}),
        )
    return story


CPUS_PER_GPU, GIB_PER_GPU = 4, 8.0


def stating(shape: str) -> list[Server]:
    """The servers of a shape with CPUs and memory for each GPU; the last of several states no CPUs."""
    made = [
        replace(server, cpus=CPUS_PER_GPU * server.gpus, memory_gib=GIB_PER_GPU * server.gpus, gpu_memory_gib=16.0)
        for server in servers(shape)
    ]
    return [*made[:-1], replace(made[-1], cpus=None)] if len(made) > 1 else made


def needs(dice: random.Random, gpus: int) -> dict[str, Any]:
    """What a job of ``gpus`` of 16 GPUs needs beside them. It fits on the empty cluster."""
    most = 1 if gpus == 16 else 2
    return {
        "cpus": dice.choice((None, 1, gpus, CPUS_PER_GPU * gpus, most * CPUS_PER_GPU * gpus)),
        "memory_gib": dice.choice((None, 0.3, GIB_PER_GPU * gpus, most * GIB_PER_GPU * gpus)),
        "gpu_memory_gib": dice.choice((None, 16.0)),
    }


class Flaky:
    """A store in which transactions fail and rows are changed by others, at random."""

    def __init__(self, seed: int, *, failing: float, stale: float) -> None:
        self.inner = DurableStore()
        self.dice = random.Random(seed)
        self.failing, self.stale = failing, stale
        self.failed = self.bumped = 0

    def load(self) -> StoredWorld:
        self._may_fail()
        return self.inner.load()

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        self._may_fail()
        return self.inner.jobs(ids)

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        self._may_fail()
        return self.inner.pending_requests(limit)

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        self._may_fail()
        if self.dice.random() < self.stale and batch.writes:
            self.inner.bump(self.dice.choice(sorted(batch.writes)))
            self.bumped += 1
        return self.inner.commit(batch)

    def _may_fail(self) -> None:
        if self.dice.random() < self.failing:
            self.failed += 1
            raise StoreUnavailable("by chance")


class Watched:
    """A policy that is watched: it may change nothing it is lent, and must decide as if it had just been rebuilt."""

    def __init__(self, inner: Policy[Any], *, rebuilt: bool = False, shuffled: int | None = None) -> None:
        self.inner = inner
        self.name = inner.name
        self.decisions: list[Decision] = []
        self._rebuilt = rebuilt
        self._dice = random.Random(shuffled) if shuffled is not None else None

    def initial_state(self, view: ClusterView) -> Any:
        return self.inner.initial_state(view)

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        before = lent(view)
        state = self.inner.rebuild(view, dump)
        assert lent(view) == before, "rebuild changed the view"
        return state

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        before, told = lent(view), list(changes)
        withdrawn = {change.job for change in changes if change.kind is ChangeKind.WITHDRAWN}
        # A job that went and came back in one pass starts anew on the virtual machine, which no view can tell.
        back = any(change.kind is ChangeKind.ARRIVED and change.job in withdrawn for change in changes)
        twin = self.inner.rebuild(view, state.dump()) if self._rebuilt and not back else None
        decision = self.inner.decide(view, self._shuffle(changes), state)
        assert lent(view) == before, "decide changed the view"
        assert list(changes) == told
        if isinstance(state, SchedulerState):
            state.check(view)
        if twin is not None:
            self._compare(view, decision, self.inner.decide(view, (), twin))
        self.decisions.append(decision)
        return decision

    def explain(self, view: ClusterView, state: Any, job: JobId) -> Explanation:
        before, dump = lent(view), state.dump()
        explanation = self.inner.explain(view, state, job)
        assert (lent(view), state.dump()) == (before, dump), "explain changed something"
        return explanation

    def _compare(self, view: ClusterView, ours: Decision, rebuilt: Decision) -> None:
        story = f"at {view.now_s} s"
        if ours.wake_at_s is not None and actions(ours) != actions(rebuilt):
            # Ranks that meet at this very instant: the index rounds otherwise, and asks again at once.
            assert ours.wake_at_s - view.now_s < 1e-5, story
            return
        assert actions(ours) == actions(rebuilt), story
        if rebuilt.wake_at_s is not None:
            # A grown index may ask a little early: for a refresh that will change nothing.
            assert ours.wake_at_s is not None, story
            assert ours.wake_at_s < rebuilt.wake_at_s + 1e-3, f"{story}: {ours.wake_at_s} {rebuilt.wake_at_s}"

    def _shuffle(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Permute the jobs that arrive in one pass among themselves."""
        if self._dice is None:
            return changes
        arrivals = [change for change in changes if change.kind is ChangeKind.ARRIVED]
        self._dice.shuffle(arrivals)
        return [arrivals.pop() if change.kind is ChangeKind.ARRIVED else change for change in changes]


def actions(decision: Decision) -> list[Action]:
    """The actions in their order."""
    return list(decision.actions)


_JOB = attrgetter(*(field.name for field in fields(JobRecord)))
_ATTEMPT = attrgetter(*(field.name for field in fields(AttemptRecord)))


def lent(view: ClusterView) -> tuple[object, ...]:
    """Everything that a policy is lent, copied. Before and after each decision: field by field, since copies cost more."""
    jobs = [
        (_JOB(job), job.attempt and _ATTEMPT(job.attempt)) for job in view.jobs.values() if isinstance(job, JobRecord)
    ]
    indices = range(len(view.cluster.servers))
    free = [(view.free_gpus(ServerIndex(server)), view.spare(ServerIndex(server))) for server in indices]
    return jobs, free, view.cluster, tuple(view.holding())
