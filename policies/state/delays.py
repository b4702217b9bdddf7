"""Since when each job has been waiting for a better placement than it could have had."""

from collections.abc import Container
from typing import Any

from policies.model.ids import JobId


class PlacementDelays:
    """The start of the delay of each delayed job. O(1) each."""

    __slots__ = ("since_s",)

    def __init__(self) -> None:
        self.since_s: dict[JobId, float] = {}

    def begin(self, job: JobId, now_s: float) -> float:
        """Begin the job's delay unless it has begun; return when it began."""
        return self.since_s.setdefault(job, now_s)

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
