"""Two policies' decisions on one world, side by side, until it is known what became of the first one's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from policies.lifecycle import JobState
from policies.model.decision import Change, ChangeKind, Decision, Preempt, Start
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Explanation
from policies.model.view import ClusterView

_NOTED = frozenset({ChangeKind.VACATED, ChangeKind.FINISHED, ChangeKind.WITHDRAWN})


@dataclass(slots=True)
class Comparison:
    """Two decisions on one world, until it is known that the first one was carried out.

    ``gpus`` are of all jobs that either starts or the shadow stops, ``lost_gpu_s`` of all that either stops, ``attempts`` of
    those that the first one starts, before it does.
    """

    at_s: float
    starts_first: dict[JobId, Placement]
    starts_shadow: dict[JobId, Placement]
    stops_first: dict[JobId, JobId | None]
    stops_shadow: dict[JobId, JobId | None]
    gpus: dict[JobId, int]
    lost_gpu_s: dict[JobId, float]
    attempts: dict[JobId, int]
    changes: Sequence[Change]
    why_waits: Mapping[JobId, Explanation]
    cycle: int | None = None


def compare(
    view: ClusterView,
    changes: Sequence[Change],
    first: Decision,
    shadow: Decision,
    why_waits: Mapping[JobId, Explanation],
) -> Comparison:
    """The two decisions side by side, before any of them is applied. O(changes + actions).

    ``changes`` came before them; ``why_waits`` is why the shadow would not start what the first policy starts.
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
        {job: jobs[job].attempts for job in starts_first},
        [change for change in changes if change.kind in _NOTED],
        why_waits,
    )


def carried_out(view: ClusterView, seen: Comparison) -> Comparison | None:
    """What is left of a comparison when the engine has taken back its pass, or parts of it; None if nothing is.

    ``view`` is the world as it is now. Where the first policy's decision on a job did not come true, neither counts. O(actions).
    """
    jobs = view.jobs
    # An attempt with the same placement may be the one before, whose end was taken back together with the new start.
    starts = {
        job: placed
        for job, placed in seen.starts_first.items()
        if job in jobs and jobs[job].attempts > seen.attempts[job] and jobs[job].placement is not None
    }
    stops = {
        job: why for job, why in seen.stops_first.items() if job in jobs and jobs[job].state is JobState.PREEMPTING
    }
    fallen = (seen.starts_first.keys() | seen.stops_first.keys()) - starts.keys() - stops.keys()
    if fallen and not starts and not stops:
        return None
    return replace(
        seen,
        starts_first=starts,
        stops_first=stops,
        starts_shadow={job: placed for job, placed in seen.starts_shadow.items() if job not in fallen},
        stops_shadow={job: why for job, why in seen.stops_shadow.items() if job not in fallen},
    )


def _wanted(decision: Decision) -> tuple[dict[JobId, Placement], dict[JobId, JobId | None]]:
    starts = {action.job: action.placement for action in decision.actions if isinstance(action, Start)}
    stops = {action.job: action.for_job for action in decision.actions if isinstance(action, Preempt)}
    return starts, stops
