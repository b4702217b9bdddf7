"""The consolidation delay: how long a job waits for a better placement than it could have now."""

from policies.choose import Candidate, consolidated
from policies.model.view import ClusterView, JobView
from policies.options import Options
from policies.rank import expected_remaining_s
from policies.state.delays import PlacementDelays


def delay_until_s(
    options: Options, view: ClusterView, delays: PlacementDelays, job: JobView, candidate: Candidate
) -> float | None:
    """Until when the job should wait for a better placement; None: it takes this one.

    Our construction: a communication-heavy job waits at most min(delay_factor x its remaining time at its best placement, what
    this placement would cost it), counted from the first scan in which it could have started.
    """
    times = job.iteration_times
    if times is None or candidate.iteration_s is None or options.delay_factor == 0.0:
        return None
    if times.max_s <= options.tau * times.min_s or consolidated(candidate, times):
        return None
    remaining_s = expected_remaining_s(job, view.now_s)
    if remaining_s is None:
        return None
    stretch = candidate.iteration_s / times.min_s - 1.0
    delay_s = min(options.delay_factor, stretch) * remaining_s
    until_s = delays.begin(job.id, view.now_s) + delay_s
    return until_s if until_s > view.now_s else None
