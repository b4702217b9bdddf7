"""Whether jobs are ended at their walltime: only then does it limit a prediction. A service enforces it; in a workload table it
is inferred from the ended jobs.
"""

import math
from typing import Final

from policies.model.estimate import Unit
from predictor.intervals import RollingSum
from predictor.rows import EndedRow

OVERTIME_RATIO: Final = 1.05
"""Schedulers grant a few minutes of grace before they end a job."""
OVERTIME_SHARE_MAX: Final = 0.01
LIMITED_JOBS_MIN: Final = 50
LIMITED_JOBS_KEPT: Final = 2_000


class Walltimes:
    """Observes every job that ends; gives the largest total that a job can reach."""

    def __init__(self, enforced: bool | None) -> None:
        """``enforced``: whether walltimes end jobs here; None: inferred from the jobs that have one."""
        self._configured = enforced
        self._overtime = RollingSum(LIMITED_JOBS_KEPT)

    def observe(self, row: EndedRow) -> None:
        """A job ended. One without a walltime, or that never ran, is ignored."""
        limit_s = row.submission.walltime_s
        if limit_s is not None and row.service_s > 0.0:
            self._overtime.push(row.service_s > OVERTIME_RATIO * limit_s)

    @property
    def enforced(self) -> bool:
        """As configured, or whether at most 1% of the newest 2,000 jobs with a walltime ran more than 5% longer."""
        if self._configured is not None:
            return self._configured
        jobs = len(self._overtime)
        return jobs >= LIMITED_JOBS_MIN and self._overtime.total <= OVERTIME_SHARE_MAX * jobs

    def ceiling(self, walltime_s: float | None, unit: Unit) -> float:
        """The largest total of a job in its unit. Iterations have none: how many fit depends on the placement."""
        if unit is not Unit.SERVICE_S or walltime_s is None or not self.enforced:
            return math.inf
        return walltime_s
