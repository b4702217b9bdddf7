"""The consolidation delay: the time that each job waits for a better placement than the available one."""

from collections.abc import Container
from math import inf
from typing import Any

from policies.choose import Candidate, consolidated
from policies.model.ids import JobId
from policies.model.view import ClusterView, JobView
from policies.options import Options, Preemption
from policies.rank import expected_remaining_s
from policies.throughput import times_in_reach

UNMEASURED_DELAY_S_MAX = 600.0
"""The longest delay of a job whose slowdown is that of other programs. A wide placement then shows the program's own."""


class PlacementDelays:
    """The start of the delay of each delayed job. O(1) each."""

    __slots__ = ("since_s",)

    def __init__(self) -> None:
        self.since_s: dict[JobId, float] = {}

    def copy(self) -> "PlacementDelays":
        """Delays that change independently. O(n)."""
        other = PlacementDelays()
        other.since_s = dict(self.since_s)
        return other

    def begin(self, job: JobId, now_s: float) -> float:
        """Begin the job's delay unless it has begun; return when it began."""
        return self.since_s.setdefault(job, now_s)

    def until_s(self, options: Options, view: ClusterView, job: JobView, candidate: Candidate) -> float | None:
        """Until when the job should wait for a better placement; None: it takes this one.

        Our construction: a communication-heavy job waits at most min(delay_factor x its remaining time at its best placement,
        what this placement would cost it), counted from the first scan in which it could have started. Where it would slow others
        on a link, and no job is preempted, it waits at most what that would cost it and them, whatever the ``delay_factor``.
        """
        best = job.iteration_times
        # What a crowd costs others too is worth any wait up to that cost, unless preemption can part the crowd later.
        waits = candidate.crowded and options.preemption is Preemption.NEVER
        delay_factor = inf if waits else options.delay_factor
        if best is None or candidate.iteration_s is None or delay_factor == 0.0:
            return None
        times = times_in_reach(job, view.cluster, candidate.placement)
        if times is None or times.ceil_s <= options.tau * times.min_s or consolidated(candidate, times):
            return None
        remaining_s = expected_remaining_s(job, view.now_s)
        if remaining_s is None:
            return None
        stretch = candidate.iteration_s / times.min_s - 1.0
        # The remaining time is that at the best placement of all types, of which some may be out of reach.
        delay_s = min(delay_factor, stretch) * remaining_s * (times.min_s / best.min_s)
        if times.slowdown is not None and not times.slowdown.measured:
            delay_s = min(delay_s, UNMEASURED_DELAY_S_MAX)
        until_s = self.begin(job.id, view.now_s) + delay_s
        return until_s if until_s > view.now_s else None

    def end(self, job: JobId) -> None:
        """The job has started or ended; unknown jobs are ignored."""
        self.since_s.pop(job, None)

    def dump(self) -> dict[str, Any]:
        """All of it: it does not follow from the jobs."""
        return {"delayed_since_s": {str(job): at_s for job, at_s in sorted(self.since_s.items())}}

    def restore(self, dump: dict[str, Any], jobs: Container[JobId]) -> None:
        """The delays of an earlier dump, of these jobs."""
        for text, since_s in dump.get("delayed_since_s", {}).items():
            if (job := JobId(int(text))) in jobs:
                self.since_s[job] = since_s
