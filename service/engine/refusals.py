"""Pauses for jobs whose start is refused repeatedly, because their row is changed elsewhere, so that the loop does other work."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from policies.lifecycle import JobState
from policies.model.decision import Action, Start
from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.engine.cycle import Cycle
from service.engine.ports import JobWrite
from service.engine.record import JobRecord

PAUSE_S_MAX = 60.0
"""Longest pause before a start that was refused several times in a row. The pause begins at 1 s and doubles."""


class Refusals:
    """Counts refused starts in a row. After the first one a job is decided again at once, after later ones with a pause."""

    def __init__(self) -> None:
        self._in_a_row: Counter[JobId] = Counter()
        self._until_s: dict[JobId, float] = {}

    def note(self, applied: Sequence[Action], dropped: Collection[JobId], now_s: float) -> None:
        """Count the starts among these actions whose jobs were dropped."""
        for action in applied:
            if isinstance(action, Start) and action.job in dropped:
                self._in_a_row[action.job] += 1
                times = self._in_a_row[action.job]
                if times > 1:
                    self._until_s[action.job] = now_s + min(PAUSE_S_MAX, 2.0 ** min(times - 2, 10))

    def hold_back(self, jobs: Iterable[JobRecord], cycle: Cycle) -> None:
        """Keep jobs whose pause is not over from starting until its end."""
        for job in jobs:
            until_s = self._until_s.get(job.id, 0.0)
            if job.state is JobState.QUEUED and until_s > max(cycle.now_s, job.not_before_s):
                if not job.held and job.unmet_dependencies == 0:
                    job.reason = Reason.REFUSED
                job.not_before_s = until_s
                job.reservation = None  # no other job could use the reserved GPUs during the pause
                cycle.timer(until_s, job.id)

    def forget(self, writes: Mapping[JobId, JobWrite], dropped: Collection[JobId]) -> None:
        """Reset the counts of jobs whose start or end was committed. O(jobs refused lately)."""
        for job_id in [job_id for job_id in self._in_a_row if job_id in writes and job_id not in dropped]:
            if writes[job_id].job.state is not JobState.QUEUED:
                del self._in_a_row[job_id]
                self._until_s.pop(job_id, None)
