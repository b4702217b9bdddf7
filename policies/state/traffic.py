"""Which links the running jobs load, for policies that foresee contention."""

from policies.model.cluster import Cluster
from policies.model.contention import Contention
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.view import JobView
from policies.placement.contention import Crowds, SharedLinks, Traffic, layout_of
from policies.placement.fleet import fleet_of
from policies.placement.iteration import gang_of
from policies.placement.pool import FreePool
from policies.placement.shared_links import best_s


class TrafficIndex:
    """The traffic of the jobs that hold GPUs, without those that are being stopped, and with those about to start.

    Each update costs O(jobs on the links of the job). Without ``contention`` nothing is indexed.
    """

    __slots__ = ("_before", "_by_job", "_contention", "_crowds")

    def __init__(self, pool: FreePool, contention: Contention | None, *, fills_up: bool) -> None:
        """``pool``: whose searches count this traffic. ``contention``: None where contention is not foreseen."""
        self._contention = contention
        self._crowds: Crowds[Traffic] = Crowds()
        self._by_job: dict[JobId, Traffic] = {}
        self._before: dict[JobId, Traffic | None] = {}
        if contention is not None:
            pool.shared_links = SharedLinks(contention, self._crowds, fills_up)

    def add(self, job: JobView, cluster: Cluster, placement: Placement) -> None:
        """The job loads the links of this placement from now on."""
        contention = self._contention
        if contention is None or (gang := gang_of(job.spec)) is None:
            return
        self.remove(job.id)
        if len(placement.shares) == 1:
            return
        layout = layout_of(placement)
        links = self._crowds.links(gang, cluster, layout)
        if links[0]:
            gpu_type = cluster.servers[placement.servers[0]].gpu_type
            _, alone_s = best_s(gang, fleet_of(cluster), (gpu_type,), contention)
            self.put_back(job.id, Traffic(cluster, contention, gang, layout, alone_s, links))

    def remove(self, job: JobId) -> Traffic | None:
        """The job loads no link any more: return its traffic, for :meth:`put_back`. Unknown jobs are ignored."""
        traffic = self._by_job.pop(job, None)
        if traffic is not None:
            self._crowds.leave(traffic)
        return traffic

    def put_back(self, job: JobId, traffic: Traffic | None) -> None:
        """Undo a removal."""
        if traffic is not None:
            self._crowds.join(traffic)
            self._by_job[job] = traffic

    def stretch(self, job: JobId) -> float:
        """alpha(x) in the present crowd over that of the job alone at its best; 1 for a job without traffic between servers."""
        traffic = self._by_job.get(job)
        return 1.0 if traffic is None else traffic.stretch_in(traffic.crowd)

    def start_tentatively(self, job: JobView, cluster: Cluster, placement: Placement) -> None:
        """The decision in progress starts the job, or sets GPUs aside for it."""
        if self._contention is None:
            return
        self._before.setdefault(job.id, self._by_job.get(job.id))
        self.add(job, cluster, placement)

    def leave_tentatively(self, job: JobId) -> None:
        """The decision in progress stops the job."""
        if self._contention is None:
            return
        self._before.setdefault(job, self._by_job.get(job))
        self.remove(job)

    def undo_tentative(self) -> None:
        """The decision in progress is over: what was applied comes back as changes."""
        if not self._before:
            return
        for job, traffic in self._before.items():
            if self._by_job.get(job) is not traffic:
                self.remove(job)
                self.put_back(job, traffic)
        self._before = {}

    def check(self) -> None:
        """Raise AssertionError unless the crowds are those of exactly these jobs. O(jobs x links)."""
        self._crowds.check(list(self._by_job.values()))
