"""The share of the work that arrives in large gangs, and whether servers should be filled.

Large is a gang of at least half the cluster; of several GPU types, of half the most GPUs of one type that it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from policies.model.view import ClusterView, JobView
from policies.rank import expected_remaining_s

MEMORY_JOBS = 128
"""The weight of an arrival falls to 1/e over this many further arrivals."""

RECENT_JOBS = 4 * MEMORY_JOBS
"""The newest counted jobs that are known by id. One that arrives again after them counts again: little is left of it."""

FILL_FROM = 0.25
"""Servers are filled once large gangs bring at least this share of the work ..."""

FILL_UNTIL = 0.10
"""... and until they bring less than this."""

ARRIVALS_MIN = 8
"""Smallest number of arrivals for a decision."""


@dataclass(slots=True)
class GangMix:
    """Work that arrives in large gangs, and all work, with exponential forgetting.

    ``filling``: whether the share of large gangs calls for filling servers.
    ``elapsed_s`` is the time between the submissions, with the same forgetting, and ``submitted_at_s`` that of the newest.
    ``last`` is the largest job id counted, and ``recent`` has the newest ids. A job that has waited for another, was held or
    kept back by a limit arrives after jobs with larger ids, and counts then.
    """

    large: float = 0.0
    total: float = 0.0
    seconds: float = 0.0
    arrivals: float = 0.0
    last: int = 0
    filling: bool = False
    recent: list[int] = field(default_factory=list)
    elapsed_s: float = 0.0
    submitted_at_s: float | None = None

    def load(self, gpus: int) -> float:
        """The work that arrives, over what so many GPUs do meanwhile; 1 while nothing is known."""
        return self.total / (gpus * self.elapsed_s) if self.elapsed_s > 0.0 else 1.0

    @property
    def share(self) -> float:
        """Between 0 and 1; 0 before the first arrival."""
        return self.large / self.total if self.total > 0.0 else 0.0

    def count(self, view: ClusterView, jobs: Sequence[JobView]) -> None:
        """Count those of these jobs that wait and are new, in the order of their ids. O(jobs log jobs).

        A job without a prediction counts with the mean duration of those before it.
        """
        for job in sorted(jobs, key=lambda job: job.id):
            if not job.waiting or (job.id <= self.last and (job.attempts or job.id in self.recent)):
                continue
            self.last = max(self.last, job.id)
            self.recent.append(job.id)
            del self.recent[:-RECENT_JOBS]
            estimate = job.estimate
            seconds = expected_remaining_s(job, view.now_s) if estimate is not None and estimate.trusted else None
            by_type = view.cluster.gpus_by_type
            reach_gpus = max((by_type.get(name, 0) for name in job.spec.gpu_types or by_type), default=0)
            self._add(job.spec.gpus, seconds, reach_gpus, job.submitted_at_s)

    def _add(self, gpus: int, seconds: float | None, reach_gpus: int, submitted_at_s: float) -> None:
        kept = 1.0 - 1.0 / MEMORY_JOBS
        before_s = submitted_at_s if self.submitted_at_s is None else self.submitted_at_s
        self.elapsed_s = self.elapsed_s * kept + max(submitted_at_s - before_s, 0.0)
        self.submitted_at_s = max(submitted_at_s, before_s)
        mean = self.seconds / self.arrivals if self.arrivals > 0.0 else 1.0
        work = gpus * (mean if seconds is None else seconds)
        self.large = self.large * kept + (work if 2 * gpus >= reach_gpus and gpus > 1 else 0.0)
        self.total = self.total * kept + work
        self.seconds = self.seconds * kept + (mean if seconds is None else seconds)
        self.arrivals = self.arrivals * kept + 1.0
        if self.arrivals >= ARRIVALS_MIN * (1.0 - ARRIVALS_MIN / (2 * MEMORY_JOBS)):
            self.filling = self.share >= (FILL_UNTIL if self.filling else FILL_FROM)

    def dump(self) -> dict[str, Any]:
        """All of it: it does not follow from the jobs. Every cycle that is recorded has one, so the numbers are not copied."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"recent": list(self.recent)}
