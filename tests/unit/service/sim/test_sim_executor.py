"""The simulated executor by hand: its reports, and how much work survives."""

import pytest

from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare, place
from policies.throughput import iteration_time_s, iteration_times
from service.engine.commands import Launch, Stop
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus
from service.sim.clock import SimClock
from service.sim.executor import ExecutorCosts, SimulatedExecutor
from service.sim.work import JobTruth

CLUSTER = Cluster("c", (Server("a", 4), Server("b", 4)))
JOB = JobId(1)


class Bench:
    """An executor, its clock, and the reports it made; each is acknowledged as it comes."""

    def __init__(self, costs: ExecutorCosts | None = None, **truth: object) -> None:
        self.clock = SimClock()
        self.truth = JobTruth(**({"duration_s": 1000.0, "iterations": 500.0} | truth))  # type: ignore[arg-type]
        self.executor = SimulatedExecutor(self.clock, CLUSTER, {JOB: self.truth}, costs)
        self.reports: list[Report] = []

    def launch(self, number: int = 1, spec: JobSpec | None = None, placement: Placement | None = None) -> AttemptId:
        attempt = attempt_id(JOB, number)
        placement = placement or place([ServerShare(ServerIndex(0), 1)])
        self.executor.send([Launch(attempt, JOB, number, spec or JobSpec("n", "u", 1), placement, ((0,),), 0)])
        return attempt

    def stop(self, attempt: AttemptId, graceful: bool = True) -> None:
        self.executor.send([Stop(attempt, graceful=graceful)])

    def until(self, at_s: float) -> None:
        while self.clock.next_at_s is not None and self.clock.next_at_s <= at_s:
            self.clock.advance(self.clock.next_at_s)
            self._collect()
        self.clock.advance(at_s)
        self._collect()

    def _collect(self) -> None:
        reports = self.executor.poll()
        self.reports += reports
        self.executor.acknowledge(reports)

    def told(self) -> list[tuple[ReportKind, float, int | None, float | None]]:
        return [(report.kind, report.at_s, report.exit_code, report.iteration) for report in self.reports]


def test_a_job_starts_at_once_and_ends_after_its_true_duration() -> None:
    bench = Bench()
    bench.until(5.0)
    bench.launch()
    bench.until(2000.0)
    assert bench.told() == [(ReportKind.STARTED, 5.0, None, None), (ReportKind.EXITED, 1005.0, 0, 500.0)]
    assert bench.reports[0].iterations_per_s == 0.5
    assert bench.reports[1].stop_signalled is False


def test_a_job_without_iterations_reports_none() -> None:
    bench = Bench(iterations=None)
    bench.launch()
    bench.until(2000.0)
    assert [report.iterations_per_s for report in bench.reports] == [None, None]
    assert bench.reports[1].iteration is None


def test_a_graceful_stop_holds_the_gpus_for_the_checkpoint_and_loses_nothing() -> None:
    bench = Bench(ExecutorCosts(checkpoint_s=30.0, restart_s=60.0))
    first = bench.launch()
    bench.until(400.0)
    bench.stop(first)
    assert bench.executor.observed() == {first: AttemptStatus.STOPPING}
    bench.until(500.0)
    assert bench.told()[1] == (ReportKind.EXITED, 430.0, 75, 200.0)
    assert bench.reports[1].stop_signalled
    # 60 s of restart, then the other 600 s.
    bench.launch(2)
    bench.until(5000.0)
    assert bench.told()[2:] == [(ReportKind.STARTED, 500.0, None, None), (ReportKind.EXITED, 1160.0, 0, 500.0)]


def test_a_stop_within_the_restart_makes_no_progress() -> None:
    bench = Bench()
    bench.launch()
    bench.until(100.0)
    bench.stop(attempt_id(JOB, 1))
    bench.until(200.0)
    bench.launch(2)
    bench.until(230.0)
    bench.stop(attempt_id(JOB, 2))
    bench.until(300.0)
    assert bench.told()[-1] == (ReportKind.EXITED, 230.0, 75, 50.0)
    bench.launch(3)
    bench.until(5000.0)
    assert bench.told()[-1] == (ReportKind.EXITED, 300.0 + 60.0 + 900.0, 0, 500.0)


@pytest.mark.parametrize(("stop_at_s", "exit_code", "end_s"), [(1000.0, 0, 1000.0), (999.0, 75, 1029.0)])
def test_a_finish_at_the_instant_of_its_stop_wins(stop_at_s: float, exit_code: int, end_s: float) -> None:
    bench = Bench(ExecutorCosts(checkpoint_s=30.0))
    attempt = bench.launch()
    bench.until(stop_at_s - 1.0)
    bench.clock.schedule(stop_at_s, 4, lambda: bench.stop(attempt))  # type: ignore[arg-type]
    bench.until(3000.0)
    assert [report.kind for report in bench.reports] == [ReportKind.STARTED, ReportKind.EXITED]
    assert (bench.reports[1].exit_code, bench.reports[1].at_s) == (exit_code, end_s)


def test_a_finish_before_the_signal_arrives_wins_and_one_during_the_checkpoint_does_not_happen() -> None:
    wins = Bench(ExecutorCosts(stop_latency_s=10.0, checkpoint_s=30.0))
    attempt = wins.launch()
    wins.until(990.0)
    wins.stop(attempt)  # the signal arrives at 1000, with the finish
    wins.until(3000.0)
    assert wins.told()[1] == (ReportKind.EXITED, 1000.0, 0, 500.0)
    loses = Bench(ExecutorCosts(stop_latency_s=10.0, checkpoint_s=30.0))
    attempt = loses.launch()
    loses.until(980.0)
    loses.stop(attempt)  # the signal arrives at 990, and the checkpoint lasts until 1020
    loses.until(3000.0)
    assert loses.told()[1] == (ReportKind.EXITED, 1020.0, 75, 495.0)


def test_a_crash_loses_what_follows_the_last_checkpoint() -> None:
    bench = Bench(ExecutorCosts(restart_s=60.0))
    bench.launch()
    bench.until(700.0)
    bench.executor.crash(attempt_id(JOB, 1))
    bench.until(700.0)
    assert bench.told()[1] == (ReportKind.EXITED, 700.0, 1, 300.0)  # checkpoints at 300 and 600 s
    assert bench.reports[1].lost_service_s == 100.0
    bench.launch(2)
    bench.until(5000.0)
    assert bench.told()[-1] == (ReportKind.EXITED, 700.0 + 60.0 + 400.0, 0, 500.0)


def test_a_program_that_cannot_checkpoint_loses_its_attempt() -> None:
    bench = Bench()
    bench.launch(spec=JobSpec("n", "u", 1, checkpoint_period_s=None))
    bench.until(700.0)
    bench.executor.crash(attempt_id(JOB, 1))
    bench.until(700.0)
    assert (bench.reports[1].iteration, bench.reports[1].lost_service_s) == (0.0, 700.0)


def test_a_stop_that_is_not_graceful_ends_at_once_like_a_crash() -> None:
    bench = Bench(ExecutorCosts(checkpoint_s=30.0))
    attempt = bench.launch()
    bench.until(400.0)
    bench.stop(attempt, graceful=False)
    bench.until(500.0)
    assert bench.told()[1] == (ReportKind.EXITED, 400.0, 143, 150.0)
    assert bench.reports[1].stop_signalled
    assert bench.reports[1].lost_service_s == 100.0


def test_latencies() -> None:
    bench = Bench(ExecutorCosts(launch_latency_s=5.0, stop_latency_s=2.0))
    attempt = bench.launch()
    assert bench.executor.observed() == {attempt: AttemptStatus.PENDING}
    bench.until(105.0)
    bench.stop(attempt)
    bench.until(200.0)
    assert bench.told() == [(ReportKind.STARTED, 5.0, None, None), (ReportKind.EXITED, 107.0, 75, 51.0)]


def test_a_stop_during_the_launch_latency_prevents_the_start() -> None:
    bench = Bench(ExecutorCosts(launch_latency_s=5.0, checkpoint_s=30.0))
    bench.stop(bench.launch())
    bench.until(100.0)
    assert bench.told() == [(ReportKind.EXITED, 0.0, 143, 0.0)]


def test_commands_are_idempotent_and_an_attempt_never_runs_twice() -> None:
    bench = Bench()
    attempt = bench.launch()
    bench.launch()
    bench.until(100.0)
    bench.stop(attempt)
    bench.stop(attempt)
    bench.until(200.0)
    bench.launch()
    bench.stop(attempt)
    bench.until(5000.0)
    assert [report.kind for report in bench.reports] == [ReportKind.STARTED, ReportKind.EXITED]


def test_a_fenced_attempt_never_starts() -> None:
    bench = Bench()
    bench.stop(attempt_id(JOB, 2))
    bench.stop(attempt_id(JOB, 2))
    bench.launch(1)
    bench.launch(2)
    bench.until(5000.0)
    assert [(report.kind, report.attempt) for report in bench.reports] == [
        (ReportKind.LAUNCH_FAILED, attempt_id(JOB, 2))
    ]


def test_commands_with_an_outdated_token_are_refused() -> None:
    bench = Bench()
    placement = place([ServerShare(ServerIndex(0), 1)])
    launch = Launch(attempt_id(JOB, 1), JOB, 1, JobSpec("n", "u", 1), placement, ((0,),), 0, fencing_token=3)
    bench.executor.send([launch])
    bench.until(100.0)
    bench.executor.send([Stop(launch.attempt, graceful=True, fencing_token=2)])
    bench.until(5000.0)
    assert bench.told()[-1] == (ReportKind.EXITED, 1000.0, 0, 500.0)


def test_an_end_is_repeated_until_it_is_acknowledged() -> None:
    bench = Bench()
    attempt = bench.launch()
    bench.clock.advance(0.0)
    bench.clock.advance(1000.0)
    first = bench.executor.poll()
    assert [report.kind for report in first] == [ReportKind.STARTED, ReportKind.EXITED]
    assert bench.executor.poll() == first
    assert bench.executor.observed() == {attempt: AttemptStatus.ENDED}
    bench.executor.acknowledge(first)
    assert (bench.executor.poll(), bench.executor.observed()) == ((), {})


def test_a_failed_server_ends_every_attempt_with_a_share_on_it() -> None:
    bench = Bench()
    bench.launch(spec=JobSpec("n", "u", 2), placement=place([ServerShare(ServerIndex(m), 1) for m in (0, 1)]))
    bench.until(650.0)
    bench.executor.fail_server(ServerIndex(1))
    bench.until(650.0)
    assert [(r.kind, r.server) for r in bench.reports[1:]] == [
        (ReportKind.SERVER_DOWN, ServerIndex(1)),
        (ReportKind.LOST, None),
    ]
    assert (bench.reports[2].iteration, bench.reports[2].lost_service_s) == (300.0, 50.0)
    bench.executor.repair_server(ServerIndex(1))
    bench.until(5000.0)
    assert bench.reports[3:] == [Report(ReportKind.SERVER_UP, 650.0, server=ServerIndex(1))]


def test_a_worse_placement_slows_a_job_with_a_stage_graph() -> None:
    graph = StageGraph((Stage("all", 0.1, 0.2, 400_000_000),), ())
    config = ParallelismConfig(replicas=(4,), tensor=(1,))
    times = iteration_times(graph, config, CLUSTER, None)
    spec = JobSpec("n", "u", 4, stage_graph=graph, parallelism=config)
    spread = place([ServerShare(ServerIndex(0), 2, (2,)), ServerShare(ServerIndex(1), 2, (2,))])
    local = place([ServerShare(ServerIndex(0), 4, (4,))])
    stretch = iteration_time_s(graph, config, CLUSTER, spread) / times.min_s
    assert stretch > 1.01
    bench = Bench(times=times)
    bench.launch(spec=spec, placement=spread)
    bench.until(500.0)
    bench.stop(attempt_id(JOB, 1))
    bench.until(600.0)
    assert bench.reports[0].iterations_per_s == pytest.approx(0.5 / stretch)
    assert bench.reports[1].iteration == pytest.approx(500.0 / stretch / 2.0)
    bench.launch(2, spec=spec, placement=local)
    bench.until(5000.0)
    assert bench.reports[-1].at_s == pytest.approx(600.0 + 60.0 + 1000.0 - 500.0 / stretch)
    # A crash keeps what its checkpoints hold of the slower work: 300 of 500 s.
    crashed = Bench(times=times)
    crashed.launch(spec=spec, placement=spread)
    crashed.until(500.0)
    crashed.executor.crash(attempt_id(JOB, 1))
    crashed.until(500.0)
    assert crashed.reports[1].iteration == pytest.approx(300.0 / stretch / 2.0)
    assert crashed.reports[1].lost_service_s == pytest.approx(200.0)
