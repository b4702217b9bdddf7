"""The decisions of two policies on one world."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policies.lifecycle import JobState
from policies.model.decision import Change, Decision, Preempt, Start
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Explanation
from policies.model.view import ClusterView


@dataclass(slots=True)
class Comparison:
    """Two decisions on one world.

    ``gpus`` holds the jobs that either policy starts or the shadow stops; ``lost_gpu_s`` those that either policy stops.
    ``changes`` precede the decisions. ``cycle`` is None for a cycle without changes.
    """

    at_s: float
    starts_first: dict[JobId, Placement]
    starts_shadow: dict[JobId, Placement]
    stops_first: dict[JobId, JobId | None]
    stops_shadow: dict[JobId, JobId | None]
    gpus: dict[JobId, int]
    lost_gpu_s: dict[JobId, float]
    why_waits: Mapping[JobId, Explanation]
    changes: Sequence[Change] = ()
    cycle: int | None = None


def compare(
    view: ClusterView,
    first: Decision,
    shadow: Decision,
    why_waits: Mapping[JobId, Explanation],
) -> Comparison:
    """Compare two decisions before either is applied. O(actions).

    ``why_waits`` explains why the shadow would not start jobs that the first policy starts.
    """
    starts_first, stops_first = _wanted(first)
    starts_shadow, stops_shadow = _wanted(shadow)
    jobs = view.jobs
    return Comparison(
        view.now_s,
        starts_first,
        starts_shadow,
        stops_first,
        stops_shadow,
        {job: jobs[job].spec.gpus for job in (*starts_first, *starts_shadow, *stops_shadow)},
        {job: jobs[job].spec.gpus * jobs[job].lost_s(view.now_s) for job in (*stops_first, *stops_shadow)},
        why_waits,
    )


def lost_decisions(view: ClusterView, first: Decision, attempts: Mapping[JobId, int]) -> tuple[frozenset[JobId], bool]:
    """The jobs on which the first policy's decision was rolled back, and whether all of it was. O(actions).

    ``view`` is the world after the engine has rolled back its cycle, or a part of it. ``attempts`` holds the number of
    attempts of each started job before the cycle.
    """
    jobs = view.jobs
    starts, stops = _wanted(first)
    # An equal placement proves nothing: the end of the previous attempt may be rolled back together with the new start.
    kept = {
        job for job in starts if job in jobs and jobs[job].attempts > attempts[job] and jobs[job].placement is not None
    }
    kept |= {job for job in stops if job in jobs and jobs[job].state is JobState.PREEMPTING}
    lost = frozenset((starts.keys() | stops.keys()) - kept)
    return lost, bool(lost) and not kept


def without(seen: Comparison, lost: Collection[JobId]) -> Comparison:
    """The comparison without these jobs, on which the first policy's decision was rolled back. Neither decision counts."""

    def left(wanted: dict[JobId, Any]) -> dict[JobId, Any]:
        return {job: value for job, value in wanted.items() if job not in lost}

    return replace(
        seen,
        starts_first=left(seen.starts_first),
        stops_first=left(seen.stops_first),
        starts_shadow=left(seen.starts_shadow),
        stops_shadow=left(seen.stops_shadow),
    )


def _wanted(decision: Decision) -> tuple[dict[JobId, Placement], dict[JobId, JobId | None]]:
    starts = {action.job: action.placement for action in decision.actions if isinstance(action, Start)}
    stops = {action.job: action.for_job for action in decision.actions if isinstance(action, Preempt)}
    return starts, stops
