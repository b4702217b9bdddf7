"""Two policies' decisions on one world, side by side."""

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
    """Two decisions on one world. ``gpus`` are of all jobs that either starts or the shadow stops, ``lost_gpu_s`` of all
    that either stops. ``changes`` came before the decisions. ``cycle`` is None for a cycle in which nothing happened.
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
    """The two decisions side by side, before any of them is applied. O(actions).

    ``why_waits`` is why the shadow would not start what the first policy starts.
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
    """The jobs on which the first policy's decision did not come true, and whether that is all that it decided. O(actions).

    ``view`` is the world after the engine has taken back its cycle, or parts of it; ``attempts`` are those of the started jobs
    before the cycle.
    """
    jobs = view.jobs
    starts, stops = _wanted(first)
    # An attempt with the same placement may be the one before, whose end was taken back together with the new start.
    kept = {
        job for job in starts if job in jobs and jobs[job].attempts > attempts[job] and jobs[job].placement is not None
    }
    kept |= {job for job in stops if job in jobs and jobs[job].state is JobState.PREEMPTING}
    lost = frozenset((starts.keys() | stops.keys()) - kept)
    return lost, bool(lost) and not kept


def without(seen: Comparison, lost: Collection[JobId]) -> Comparison:
    """The comparison without the jobs on which the first policy's decision did not come true: there neither counts."""

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
