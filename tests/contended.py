"""A network on which everything is a small number: for tests of contention by hand and by brute force.

A server has 4 GPUs and a NIC of 1e9 bytes/s; traffic inside it costs nothing. A ring job computes 1 s an iteration and its ring
moves 1e9 bytes, whatever its size. So an iteration takes 1 s on one server, and 1 + f(k) s where it straddles in a crowd.
"""

from collections.abc import Sequence
from functools import lru_cache

from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id
from policies.model.job import IterationTimes, JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare, place
from policies.throughput import iteration_times
from service.engine.commands import Launch, Stop
from service.engine.events import Report, ReportKind
from service.sim.clock import SimClock
from service.sim.executor import ExecutorCosts, SimulatedExecutor
from service.sim.network import ContendedNetwork, Contention
from service.sim.work import JobTruth

PLAIN = Contention(a=0.0, xi2=0.0)
"""A NIC is shared evenly and nothing is wasted: f(k) = k."""


def servers(count: int, gpus: int = 4) -> Cluster:
    """So many servers of one rack."""
    return Cluster("c", tuple(Server(f"s{m}", gpus, nic_bytes_s=1e9, intra_bytes_s=1e30) for m in range(count)))


@lru_cache
def ring(gpus: int) -> tuple[StageGraph, ParallelismConfig]:
    """A data-parallel job: 1 s of compute a GPU, 1e9 bytes round its ring."""
    parameter_bytes = 1e9 * gpus / (2 * (gpus - 1))
    graph = StageGraph((Stage("all", gpus / 3, 2 * gpus / 3, parameter_bytes),), ())  # type: ignore[arg-type]
    return graph, ParallelismConfig(replicas=(gpus,), tensor=(1,))


def on(*where: int) -> Placement:
    """One replica for each time that a server is named."""
    return place([ServerShare(ServerIndex(m), where.count(m), (where.count(m),)) for m in sorted(set(where))])


def ring_spec(gpus: int, checkpoint_period_s: float | None = 300.0) -> JobSpec:
    """The ring job as it is submitted."""
    graph, config = ring(gpus)
    return JobSpec("ring", "u", gpus, stage_graph=graph, parallelism=config, checkpoint_period_s=checkpoint_period_s)


def ring_times(cluster: Cluster, gpus: int) -> IterationTimes:
    """Its constants there."""
    return iteration_times(*ring(gpus), cluster, None)


class Machines:
    """A simulated executor with several jobs, and what it reported. ``network`` None: the ``reserved`` one."""

    def __init__(
        self,
        cluster: Cluster,
        contention: Contention | None = PLAIN,
        costs: ExecutorCosts | None = None,
        start_s: float = 0.0,
    ) -> None:
        self.cluster = cluster
        self.clock = SimClock(start_s)
        self.truths: dict[JobId, JobTruth] = {}
        self.network = None if contention is None else ContendedNetwork(cluster, contention)
        self.executor = SimulatedExecutor(self.clock, cluster, self.truths, costs, self.network)
        self.reports: list[Report] = []

    def launch(
        self, job: int, duration_s: float, where: Placement, number: int = 1, period_s: float | None = 300.0
    ) -> AttemptId:
        """Start an attempt now; the job counts 10 iterations a second of work."""
        launch = self.order(job, duration_s, where, number, period_s)
        self.executor.send([launch])
        return launch.attempt

    def order(
        self, job: int, duration_s: float, where: Placement, number: int = 1, period_s: float | None = 300.0
    ) -> Launch:
        """The command, its job known to the executor."""
        job_id = JobId(job)
        times = ring_times(self.cluster, where.gpus)
        self.truths.setdefault(job_id, JobTruth(duration_s, 10.0 * duration_s, times))
        spec = ring_spec(where.gpus, period_s)
        return Launch(attempt_id(job_id, number), job_id, number, spec, where, tuple((0,) for _ in where.shares), 0)

    def stop(self, attempt: AttemptId, graceful: bool = True) -> None:
        """Ask it to stop now."""
        self.executor.send([Stop(attempt, graceful=graceful)])

    def until(self, at_s: float) -> None:
        """Let time pass."""
        while (next_s := self.clock.next_at_s) is not None and next_s <= at_s:
            self.clock.advance(next_s)
            self._collect()
        self.clock.advance(at_s)
        self._collect()

    def _collect(self) -> None:
        reports = self.executor.poll()
        self.reports += reports
        self.executor.acknowledge(reports)

    def ends(self) -> dict[AttemptId, float]:
        """When each attempt ended."""
        return {
            report.attempt: report.at_s
            for report in self.reports
            if report.attempt is not None and report.kind in (ReportKind.EXITED, ReportKind.LOST)
        }

    def end(self, attempt: AttemptId) -> Report:
        """The report of its end."""
        [report] = [r for r in self.reports if r.attempt == attempt and r.kind in (ReportKind.EXITED, ReportKind.LOST)]
        return report

    def speeds(self, attempt: AttemptId) -> Sequence[tuple[float, float | None]]:
        """(when, iterations/s) of each report of a speed."""
        return [(r.at_s, r.iterations_per_s) for r in self.reports if r.attempt == attempt and r.iterations_per_s]
