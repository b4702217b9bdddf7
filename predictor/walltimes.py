"""Whether a walltime ends jobs: only then does it cut a prediction. A service enforces it; a table shows whether it was."""

import math
from collections import deque
from typing import Final

from policies.model.estimate import Unit
from predictor.rows import EndedRow

OVERTIME_RATIO: Final = 1.05
"""Schedulers grant a few minutes of grace before they end a job."""
OVERTIME_SHARE_MAX: Final = 0.01
LIMITED_JOBS_MIN: Final = 50
LIMITED_JOBS_KEPT: Final = 2_000


class Walltimes:
    """Told of each job that ends; says up to where a job may run."""

    def __init__(self, enforced: bool | None) -> None:
        """``enforced``: whether walltimes end jobs here; None: nobody says, so the jobs that asked for one show it."""
        self._told = enforced
        self._over: deque[bool] = deque()
        self._overtime = 0

    def observe(self, row: EndedRow) -> None:
        """A job ended. One without a walltime, or that never ran, shows nothing."""
        limit_s = row.submission.walltime_s
        if limit_s is None or row.service_s <= 0.0:
            return
        self._over.append(row.service_s > OVERTIME_RATIO * limit_s)
        self._overtime += self._over[-1]
        if len(self._over) > LIMITED_JOBS_KEPT:
            self._overtime -= self._over.popleft()

    @property
    def enforced(self) -> bool:
        """Told, or that hardly any of the newest 2,000 jobs that asked for a walltime ran clearly longer."""
        if self._told is not None:
            return self._told
        return len(self._over) >= LIMITED_JOBS_MIN and self._overtime <= OVERTIME_SHARE_MAX * len(self._over)

    def ceiling(self, walltime_s: float | None, unit: Unit) -> float:
        """The largest total of a job in its unit. Of iterations there is none: how many fit depends on where it will run."""
        if walltime_s is None or unit is not Unit.SERVICE_S or not self.enforced:
            return math.inf
        return walltime_s
