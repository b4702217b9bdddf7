"""Cycles that can be decided again: what a policy was lent and what it decided, kept for the newest ones and replayed.

A decision follows from the world and the policy's state alone: a policy rebuilt from both decides as the live one, whose
indexes have grown over days (a conformance property of every policy). So a snapshot is one copy of the world, one dump, and
the decision; replaying it needs no clock, no database and no machine.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policies.base import Policy
from policies.model.decision import Action, Change, Decision, Start
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from policies.model.view import ClusterView
from service.engine.watch import WatchingPolicy
from service.engine.world import World
from service.history.snapshot import WorldSnapshot, restore, take


@dataclass(frozen=True, slots=True)
class CycleSnapshot:
    """One decision and everything it rests on. ``world`` is what the policy saw, ``dump`` its state just before."""

    cycle: int
    policy: str
    options: Mapping[str, str]
    world: WorldSnapshot
    dump: dict[str, Any]
    changes: Sequence[Change]
    actions: Sequence[Action]
    wake_at_s: float | None


@dataclass(frozen=True, slots=True)
class Replay:
    """What was decided then, what is decided now, and why jobs wait that are not started now."""

    recorded: Sequence[Action]
    replayed: Sequence[Action]
    wake_at_s: float | None
    waiting: Mapping[JobId, Explanation]

    @property
    def equal(self) -> bool:
        """Whether both are the same actions in the same order."""
        return list(self.recorded) == list(self.replayed)


def replay(snapshot: CycleSnapshot, policy: Policy[Any]) -> Replay:
    """Decide the cycle again with ``policy`` (the recorded one for a check, another one for a what-if).

    Reasons are not compared: a policy tells only those that changed, and a rebuilt one has told none yet. A job that left
    the queue and came back within the recorded cycle starts anew on A-SRPT's virtual machine, which the world cannot tell.
    """
    world = restore(snapshot.world)
    state = policy.rebuild(world, snapshot.dump)
    decision = policy.decide(world, (), state)
    started = {action.job for action in decision.actions if isinstance(action, Start)}
    left = [job.id for job in world.jobs.values() if job.waiting and job.id not in started]
    waiting = {job: policy.explain(world, state, job) for job in left}
    return Replay(snapshot.actions, list(decision.actions), decision.wake_at_s, waiting)


class Recorder(WatchingPolicy):
    """Keeps what a policy decided: the newest ``kept`` committed cycles that had actions.

    Every cycle copies the world, so it records only while at most ``jobs_max`` jobs are unfinished. Read by other threads
    through :meth:`cycles` and :meth:`snapshot`.
    """

    def __init__(self, inner: Policy[Any], options: Mapping[str, str], *, jobs_max: int, kept: int) -> None:
        super().__init__(inner)
        self._options = dict(options)
        self._jobs_max = jobs_max
        self._kept = kept
        self._pending: CycleSnapshot | None = None
        self._snapshots: OrderedDict[int, CycleSnapshot] = OrderedDict()

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """The inner policy's decision, noted with what it rests on."""
        self._pending = None
        if len(view.jobs) > self._jobs_max or not isinstance(view, World):
            return self.inner.decide(view, changes, state)
        world, dump, told = take(view), state.dump(), tuple(changes)
        decision = self.inner.decide(view, changes, state)
        if decision.actions:
            self._pending = CycleSnapshot(
                0, self.name, self._options, world, dump, told, tuple(decision.actions), decision.wake_at_s
            )
        return decision

    # What was kept.

    def committed(self, cycle: int) -> None:
        """The newest decision belongs to this cycle, and it is committed."""
        noted, self._pending = self._pending, None
        if noted is not None:
            self._snapshots[cycle] = replace(noted, cycle=cycle)
            while len(self._snapshots) > self._kept:
                self._snapshots.popitem(last=False)

    def present(self, world: World, dump: dict[str, Any], cycle: int, now_s: float) -> CycleSnapshot:
        """The world as it is between two cycles, as if a cycle had found nothing to do. O(jobs + servers)."""
        return CycleSnapshot(cycle, self.name, self._options, take(world, now_s), dump, (), (), None)

    def cycles(self) -> list[int]:
        """The cycles that can be replayed, newest first."""
        return sorted(self._snapshots, reverse=True)

    def snapshot(self, cycle: int) -> CycleSnapshot | None:
        """What was kept of a cycle."""
        return self._snapshots.get(cycle)
