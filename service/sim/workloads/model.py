"""The workload table's row and the table itself. Values are checked where they are read (:mod:`.table`), not here."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

SCHEMA = "sooner.workload/1"
FINAL_STATES = frozenset({"succeeded", "failed", "killed"})
GPUS_MAX = 1_000_000
"""Larger gangs are refused as mistakes: this is a hundred times the largest published clusters."""
SECONDS_MAX = 1e11
"""Three thousand years: up to here sums of many times keep their milliseconds as floating point. A later time is a mistake,
such as nanoseconds."""
DURATION_S_MIN = 1e-6
"""Shorter jobs are refused as mistakes: with run times near the least floating-point number, shares of work and speeds computed
from them are divisions by zero."""
ITERATIONS_MAX = 2**53
"""Larger counts are not exact as floating point, to which Parquet or pandas convert them."""


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """One job of a trace. Times are seconds from the trace's start.

    ``duration_s`` (run time on an idle network at the best placement) and ``iterations`` are the truth: never shown to a
    policy or a predictor before the job ends. ``end_time_s`` is when it ended in the source's own log, where that is
    known. Empty strings and None mean unknown.
    """

    job_id: str
    submit_time_s: float
    gpus: int
    duration_s: float
    user: str = ""
    project: str = ""
    name: str = ""
    end_time_s: float | None = None
    iterations: int | None = None
    model: str = ""
    declared_iterations: int | None = None
    walltime_s: float | None = None
    gpu_type: str = ""
    final_state: str = ""


def misread(text: str) -> str:
    """What makes a row with this text more than one line, or less than a line, to some tools that read the table; empty if
    nothing does."""
    if "\n" in text or "\r" in text:
        return "a line break"
    return "a NUL character" if "\0" in text else ""


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was left out: its line in the file (from 1), and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in submission order (ties in the source's order), and the rows that were left out on the way."""

    name: str
    jobs: tuple[WorkloadJob, ...]
    skipped: tuple[SkippedRow, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def skipped_by_reason(self) -> dict[str, int]:
        """How many rows were left out for each reason, most frequent first."""
        return dict(Counter(row.reason for row in self.skipped).most_common())


def in_submission_order(
    name: str, jobs: Iterable[WorkloadJob], skipped: Sequence[SkippedRow], *, shift: bool = True
) -> Workload:
    """Sort by submission (stable, so ties keep the source's order) and, with ``shift``, put the first one at 0 s."""
    ordered = sorted(jobs, key=lambda job: job.submit_time_s)
    origin_s = ordered[0].submit_time_s if ordered and shift else 0.0
    if origin_s:
        ordered = [
            replace(
                job,
                submit_time_s=job.submit_time_s - origin_s,
                end_time_s=None if job.end_time_s is None else job.end_time_s - origin_s,
            )
            for job in ordered
        ]
    return Workload(name, tuple(ordered), tuple(skipped))
