"""Which jobs hold GPUs of which server."""

from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.view import JobView
from policies.state.sorted_list import SortedList


class PlacementIndex:
    """The holders of each server, those that state no checkpoints, and the running jobs that would be faster elsewhere."""

    __slots__ = ("_stretch_keys", "on_server", "stretched", "without_checkpoints")

    def __init__(self) -> None:
        self.on_server: dict[ServerIndex, dict[JobId, bool]] = {}
        """The jobs on each server; True: the job holds GPUs of that server alone."""
        self.stretched: SortedList[tuple[float, float, JobId]] = SortedList()
        """(- stretch, submission time, job): jobs whose placement is slower than their best, the slowest first."""
        self.without_checkpoints: dict[JobId, None] = {}
        """The jobs that hold GPUs and state that they cannot checkpoint: few, as a rule."""
        self._stretch_keys: dict[JobId, tuple[float, float, JobId]] = {}

    def add(self, job: JobView, placement: Placement) -> None:
        """The job holds these GPUs now. O(servers of the job)."""
        alone = len(placement.shares) == 1
        for share in placement.shares:
            self.on_server.setdefault(share.server, {})[job.id] = alone
        if job.spec.checkpoint_period_s is None:
            self.without_checkpoints[job.id] = None

    def add_stretch(self, job: JobView, stretch: float) -> None:
        """An iteration of the running job takes ``stretch`` times as long as at its best placement. O(log n)."""
        key = (-stretch, job.submitted_at_s, job.id)
        self.stretched.add(key)
        self._stretch_keys[job.id] = key

    def forget_stretch(self, job: JobId) -> None:
        """The job's slowdown is another one now. O(log n)."""
        if (key := self._stretch_keys.pop(job, None)) is not None:
            self.stretched.remove(key)

    def remove(self, job: JobId, placement: Placement) -> None:
        """The job does not hold these GPUs any more. O(servers of the job + log n)."""
        self.forget_stretch(job)
        self.without_checkpoints.pop(job, None)
        for share in placement.shares:
            holders = self.on_server.get(share.server)
            if holders is not None:
                holders.pop(job, None)

    def check(self) -> None:
        """Raise AssertionError unless the stretched jobs agree with their keys, and those without checkpoints hold GPUs. O(n)."""
        assert list(self.stretched) == sorted(self._stretch_keys.values())
        assert all(job == key[2] for job, key in self._stretch_keys.items())
        assert self.without_checkpoints.keys() <= {job for holders in self.on_server.values() for job in holders}
