"""Sort keys of jobs."""

from typing import NamedTuple

from policies.model.ids import JobId


class JobKey(NamedTuple):
    """The order of jobs; smaller is better.

    Guarded jobs come first (``tier`` 0, else 1), then larger priorities, lower levels of the project (0 unless use is shared
    fairly), smaller ranks, earlier submissions and smaller job ids. In the index of running jobs ``rank`` is the value at time
    0 of the line that the rank follows.
    """

    tier: int
    minus_priority: int
    project_level: int
    rank: float
    submitted_at_s: float
    job: JobId


class RankLine(NamedTuple):
    """Running jobs of equal gang size and equal slope of the rank keep their order over time."""

    gpus: int
    slope: float
