"""A notebook's data source: its interface, and the values that it returns."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from policies.model.cluster import Cluster
from predictor.recurrence import BUCKETS, bucket_of
from service.sim.jobs import SimJobs
from service.sim.results import Result
from service.sim.workloads.model import Workload

HISTORY = tuple("never run before" if name == "0" else f"{name} past runs" for name in BUCKETS)
"""Names of the predictor's history buckets: the number of past runs of the program with equal GPUs."""
RANKED_BY_SERVICE = "ranked by attained service"
UNTRUSTED = (RANKED_BY_SERVICE, "too few to rank", "not confirmed by any past run")
"""Words in the source of an estimate that is shown but ranks no job (:mod:`predictor.fallback`, :mod:`predictor.selection`)."""
_PAST_RUNS = re.compile(r"([\d,]+) past runs?\b")


@dataclass(frozen=True, slots=True)
class Scored:
    """The first prediction of a job, and its outcome.

    Instants are seconds since the Unix epoch, or since the beginning of a table. Totals (``p10`` to ``actual``) count
    ``unit``: ``iterations``, or ``service_s`` for seconds. ``point`` is the single number that was shown, None if
    it is p50. ``points`` are the whole distribution, and ``others`` those of every baseline and model, if the source has them.
    """

    job_id: int
    name: str
    user: str
    project: str
    gpus: int
    submitted_at_s: float
    scored_at_s: float
    unit: str
    p10: float
    p50: float
    p90: float
    actual: float
    source: str
    model: str = ""
    point: float | None = None
    points: Sequence[float] = ()
    others: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def predicted(self) -> float:
        """The single number that was shown."""
        return self.p50 if self.point is None else self.point

    @property
    def log_error(self) -> float:
        """ln(predicted / actual): above 0 the prediction was too long."""
        return math.log(self.predicted / self.actual)

    @property
    def factor(self) -> float:
        """The error as a factor, either way: 2.0 is twice or half of the actual total."""
        return math.exp(abs(self.log_error))

    @property
    def program(self) -> str:
        """User, project and name: the recurrence key without the size."""
        return "/".join(part for part in (self.user, self.project, self.name) if part) or "(unnamed)"

    @property
    def runs(self) -> int:
        """Past runs of the program with the same GPUs behind the prediction, parsed from its source."""
        if not self.source.startswith("recurrence:"):
            return 0
        found = _PAST_RUNS.search(self.source)
        return int(found[1].replace(",", "")) if found is not None else 0

    @property
    def trusted(self) -> bool:
        """Whether it could rank the job; else the job is ranked by attained service."""
        return not any(words in self.source for words in UNTRUSTED)

    @property
    def history(self) -> str:
        """The history bucket, one of :data:`HISTORY`."""
        return HISTORY[bucket_of(self.runs)]


def history_words(name: str) -> str:
    """A history bucket in a sentence: ``for programs with 5-19 past runs``."""
    return f"for programs {name}" if name == HISTORY[0] else f"for programs with {name}"


def first_predictions(rows: Mapping[int, Scored]) -> list[Scored]:
    """One prediction per job, in the order of submission."""
    return sorted(rows.values(), key=lambda row: (row.submitted_at_s, row.job_id))


class SourceError(Exception):
    """A named source that cannot be read, or holds no job; one line."""


def with_jobs(workload: Workload, origin: str) -> Workload:
    """The workload. Raises :class:`SourceError` if it is empty."""
    if not workload.jobs:
        raise SourceError(f"no job has run and ended in {origin}; name another source, or 'generator'")
    return workload


@dataclass(frozen=True, slots=True)
class Past:
    """Jobs that a simulation can run again. ``actual`` is their real outcome, where it is known; ``recorded`` says whether the
    predictor ``recorded`` can be used with them.
    """

    jobs: SimJobs
    cluster: Cluster
    actual: Result | None = None
    recorded: bool = False


class Source(Protocol):
    """The data of one cluster."""

    @property
    def origin(self) -> str:
        """A description of the origin of the data."""

    @property
    def synthetic(self) -> bool:
        """Whether the data was generated and says nothing about a real cluster."""

    def predictions(self) -> list[Scored]:
        """Predictions whose jobs have ended, in the order in which the jobs were submitted."""

    def workload(self) -> Workload:
        """The jobs that ended, with their true durations. Raises :class:`SourceError` if there is none."""

    def cluster(self) -> Cluster:
        """The servers of the jobs, or servers on which they could run."""

    def past(self) -> Past:
        """The jobs for the simulator. Raises :class:`SourceError` if none has ended."""

    def value(self, newest: int) -> Mapping[str, Any] | None:
        """The report ``sooner.model.value/1`` on the ``newest`` jobs; None where the source does not tell what was predicted of
        each. Raises :class:`SourceError`.
        """
