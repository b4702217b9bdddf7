"""Records and replays cycles: the input and the decision of the policy, for the newest cycles.

A decision depends only on the world and the policy's state. A policy rebuilt from both makes the same decisions as the live one
(a conformance property of every policy). So a snapshot consists of a copy of the world, a dump of the state, and the decision. A
replay needs no clock, no database and no executor.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policies.base import Policy
from policies.model.decision import Action, Change, Decision, Reserve, Start
from policies.model.ids import JobId
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView
from service.engine.watch import WatchingPolicy
from service.engine.world import World
from service.history.snapshot import FollowedWorld, WorldSnapshot, restore, take


@dataclass(frozen=True, slots=True)
class CycleSnapshot:
    """One decision and its input: ``world`` is the policy's view, ``dump`` its state before the decision."""

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
    """The recorded and the replayed decision, and explanations of the jobs that still wait after the replayed one."""

    recorded: Sequence[Action]
    replayed: Sequence[Action]
    wake_at_s: float | None
    waiting: Mapping[JobId, Explanation]

    @property
    def equal(self) -> bool:
        """Whether both decisions have equal actions in equal order."""
        return list(self.recorded) == list(self.replayed)


def replay(snapshot: CycleSnapshot, policy: Policy[Any]) -> Replay:
    """Decide the cycle again with ``policy`` (the recorded one for a check, another one for a what-if).

    Reasons are not compared: a policy reports only changed ones, and a rebuilt policy reports all. One difference is possible: a
    job that left the queue and came back within the recorded cycle restarts on A-SRPT's virtual machine, but not in the replay.
    """
    world = restore(snapshot.world)
    state = policy.rebuild(world, snapshot.dump)
    decision = policy.decide(world, (), state)
    started = {action.job for action in decision.actions if isinstance(action, Start)}
    left = [job.id for job in world.jobs.values() if job.waiting and job.id not in started]
    waiting = {job: policy.explain(world, state, job) for job in left}
    for action in decision.actions:
        if isinstance(action, Reserve) and action.placement is not None:
            waiting[action.job] = replace(waiting[action.job], reason=Reason.RESERVED, jobs_ahead=None, detail="")
    return Replay(snapshot.actions, list(decision.actions), decision.wake_at_s, waiting)


class Recorder(WatchingPolicy):
    """Records a policy's decisions: the newest ``kept`` committed cycles with actions.

    A record shares its copies of unchanged jobs with others. It still holds all jobs, so cycles with more than ``jobs_max``
    unfinished ones are not recorded. Other threads may call :meth:`cycles` and :meth:`snapshot`.
    """

    def __init__(self, inner: Policy[Any], options: Mapping[str, str], *, jobs_max: int, kept: int) -> None:
        super().__init__(inner)
        self._options = dict(options)
        self._jobs_max = jobs_max
        self._kept = kept
        self._pending: CycleSnapshot | None = None
        self._followed: FollowedWorld | None = None
        self._snapshots: OrderedDict[int, CycleSnapshot] = OrderedDict()

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """Return the inner policy's decision, and record it with its input. O(changes), with actions O(jobs)."""
        self._pending = None
        if len(view.jobs) > self._jobs_max or not isinstance(view, World):
            self._followed = None
            return self.inner.decide(view, changes, state)
        if self._followed is not None and self._followed.world is view:
            self._followed.follow(changes)
        else:
            self._followed = FollowedWorld(view)
        dump, noted = state.dump(), tuple(changes)
        decision = self.inner.decide(view, changes, state)
        if decision.actions:
            # A policy only reads the world: it still is as it was before the decision.
            world, actions = self._followed.snapshot(), tuple(decision.actions)
            self._pending = CycleSnapshot(0, self.name, self._options, world, dump, noted, actions, decision.wake_at_s)
        return decision

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        """The inner policy's. What the world has become since the last decision, no change may tell."""
        self._followed = None
        return super().rebuild(view, dump)

    def committed(self, cycle: int) -> None:
        """The newest decision belongs to this cycle, and it is committed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._snapshots[cycle] = replace(pending, cycle=cycle)
            while len(self._snapshots) > self._kept:
                self._snapshots.popitem(last=False)

    def present(self, world: World, dump: dict[str, Any], cycle: int, now_s: float) -> CycleSnapshot:
        """A snapshot of the world between two cycles, without changes and actions. O(jobs + servers)."""
        return CycleSnapshot(cycle, self.name, self._options, take(world, now_s), dump, (), (), None)

    def cycles(self) -> list[int]:
        """The cycles that can be replayed, newest first."""
        return sorted(self._snapshots, reverse=True)

    def snapshot(self, cycle: int) -> CycleSnapshot | None:
        """The recorded cycle; None if it is not kept."""
        return self._snapshots.get(cycle)
