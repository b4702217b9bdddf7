"""Forecasts: by hand on a few jobs, and against simulations that really go on from the snapshot."""

import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from heapq import heapify
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.catalogue import pipeline
from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import ArrayPlace, JobSpec, PreemptionSignal
from policies.model.placement import ServerShare, place
from policies.model.reasons import Reason
from policies.registry import make_policy
from policies.throughput import iteration_time_s, iteration_times
from service.engine.limits import QUEUE, LimitOwner, OwnerLimit, Scope
from service.engine.ports import AttemptStatus
from service.engine.record import AttemptRecord, JobRecord, ServerRecord
from service.engine.world import Costs
from service.forecast import forecast as module
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast, Spread, forecast
from service.forecast.futures import levels, prospects_of
from service.history.snapshot import WorldSnapshot, take
from service.sim.clock import SimClock
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.jobs import SimJob, prepare
from service.sim.workloads.model import Workload, WorkloadJob

NOW_S = 1000.0
ONE = Cluster("one", (Server("a", 1),))


_OF_SPEC = ("walltime_s", "after", "after_any", "preemption", "array")


def job(number: int, points: tuple[float, ...] | None, *, gpus: int = 1, **values: Any) -> JobRecord:
    """A waiting job whose service is predicted."""
    estimate = Estimate(points, Unit.SERVICE_S, "told", seconds_per_unit=1.0) if points is not None else None
    spec = JobSpec(f"j{number}", "u", gpus, **{key: values.pop(key) for key in _OF_SPEC if key in values})
    return JobRecord(JobId(number), spec, NOW_S - 100.0 + number, estimate=estimate, **values)


def running(record: JobRecord, done_s: float, server: int = 0) -> JobRecord:
    """The job on the first GPUs of the server, with so much done by now."""
    record.state, record.attempts, record.progressing = JobState.RUNNING, 1, True
    record.anchor_s = NOW_S - done_s
    record.attempt = AttemptRecord(
        attempt_id(record.id, 1),
        record.id,
        1,
        AttemptState.RUNNING,
        place([ServerShare(ServerIndex(server), record.spec.gpus)]),
        (tuple(range(record.spec.gpus)),),
        opened_at_s=record.anchor_s,
        started_at_s=record.anchor_s,
    )
    return record


def snapshot(*jobs: JobRecord, cluster: Cluster = ONE, costs: Costs | None = None, down: bool = False) -> WorldSnapshot:
    servers = tuple(ServerRecord(down=down) for _ in cluster.servers)
    return WorldSnapshot(NOW_S, cluster, costs or Costs(0.0, 0.0), servers, jobs)


def fifo(world: WorldSnapshot, samples: int = 20, **options: Any) -> Forecast:
    return forecast(world, make_policy("fifo"), options=ForecastOptions(samples, **options))


def test_a_queue_behind_a_running_job_computed_by_hand() -> None:
    found = fifo(snapshot(running(job(1, (100.0,)), 40.0), job(2, (50.0,)), job(3, (10.0,))))
    sure = lambda at_s: Spread(at_s, at_s, at_s)  # noqa: E731
    assert (found.now_s, found.samples) == (NOW_S, 20)
    assert found.jobs[JobId(1)].start is None
    assert found.jobs[JobId(1)].finish == sure(NOW_S + 60.0)
    assert (found.jobs[JobId(2)].start, found.jobs[JobId(2)].finish) == (sure(NOW_S + 60.0), sure(NOW_S + 110.0))
    assert (found.jobs[JobId(3)].start, found.jobs[JobId(3)].finish) == (sure(NOW_S + 110.0), sure(NOW_S + 120.0))
    assert [each.least_run_s for each in found.jobs.values()] == [0.0, 50.0, 10.0]
    assert {each.source for each in found.jobs.values()} == {"told"}
    assert {each.reason for each in found.jobs.values()} == {None}


def test_a_limited_array_and_its_dependents_computed_by_hand() -> None:
    """Three GPUs, one element at a time: 60 s of the first are left, then 50 s, then 10 s; the last one waits for any end."""
    places = [ArrayPlace(index, 3, JobId(1), max_running=1) for index in range(3)]
    found = fifo(
        snapshot(
            running(job(1, (100.0,), array=places[0]), 40.0),
            job(2, (50.0,), array=places[1]),
            job(3, (10.0,), array=places[2]),
            job(4, (5.0,), after_any=(JobId(2), JobId(99))),
            cluster=Cluster("three", (Server("a", 3),)),
        )
    )
    starts = {number: each.start.p50_s - NOW_S for number, each in found.jobs.items() if each.start is not None}
    # Shorter elements go first.
    assert starts == {2: 70.0, 3: 60.0, 4: 120.0}


def test_points_below_the_progress_are_dropped_and_a_spread_delays_the_next_job() -> None:
    found = fifo(snapshot(running(job(1, (50.0, 100.0, 200.0)), 60.0), job(2, (5.0,))))
    # Half of the futures have 40 s left, half 140 s.
    assert found.jobs[JobId(1)].finish == Spread(NOW_S + 40.0, NOW_S + 90.0, NOW_S + 140.0)
    assert found.jobs[JobId(2)].start == found.jobs[JobId(1)].finish


def test_a_job_beyond_all_its_points_gets_the_mean_of_the_over_run_rule() -> None:
    found = fifo(snapshot(running(job(1, (50.0,)), 60.0)), samples=10)
    # The next doubling is 100: 40 s left on average, up to 80.
    finish = found.jobs[JobId(1)].finish
    assert finish is not None
    assert finish.p50_s == pytest.approx(NOW_S + 40.0)
    assert finish.p10_s == pytest.approx(NOW_S + 8.0)
    assert finish.p90_s == pytest.approx(NOW_S + 72.0)
    assert "exceeded all predicted points" in found.jobs[JobId(1)].source


def test_a_job_without_a_prediction_uses_the_totals_of_the_predicted_jobs() -> None:
    found = fifo(snapshot(running(job(1, (100.0,)), 0.0), job(2, (300.0,)), job(3, None)))
    third = found.jobs[JobId(3)]
    assert third.source == "no prediction: drawn from the 2 predicted jobs in the queue"
    assert third.start == Spread(*[NOW_S + 400.0] * 3)
    assert third.finish == Spread(NOW_S + 500.0, NOW_S + 600.0, NOW_S + 700.0)


def test_a_restart_and_a_stop_in_progress_are_completed() -> None:
    restarting = running(job(1, (100.0,)), 0.0)
    restarting.anchor_s = NOW_S + 7.0
    found = fifo(snapshot(restarting, costs=Costs(0.0, 60.0)))
    assert found.jobs[JobId(1)].finish == Spread(*[NOW_S + 107.0] * 3)

    stopping = running(job(1, (100.0,)), 30.0)
    stopping.settle(NOW_S)
    stopping.state, stopping.progressing = JobState.CANCELLING, False
    assert stopping.attempt is not None
    stopping.attempt.state = AttemptState.STOPPING
    found = fifo(snapshot(stopping, job(2, (5.0,))))
    assert found.jobs[JobId(1)].finish == Spread(*[NOW_S] * 3)
    assert found.jobs[JobId(2)].start == Spread(*[NOW_S] * 3)


def test_a_launch_in_progress_begins_at_the_snapshot() -> None:
    starting = running(job(1, (100.0,)), 0.0)
    starting.state, starting.progressing = JobState.STARTING, False
    assert starting.attempt is not None
    starting.attempt.state, starting.attempt.started_at_s = AttemptState.LAUNCHING, None
    assert fifo(snapshot(starting)).jobs[JobId(1)].finish == Spread(*[NOW_S + 100.0] * 3)


def test_iterations_continue_at_the_measured_speed() -> None:
    measured = running(job(1, None), 0.0)
    measured.estimate = Estimate((1000.0,), Unit.ITERATIONS, "told", seconds_per_unit=9.0)
    measured.iterations, measured.iterations_per_s, measured.anchor_s = 400.0, 2.0, NOW_S
    measured.reports_iterations = True
    assert fifo(snapshot(measured)).jobs[JobId(1)].finish == Spread(*[NOW_S + 300.0] * 3)


def test_a_split_gang_continues_at_its_measured_speed() -> None:
    graph, parallelism = pipeline("resnet50", 2)
    cluster = Cluster("c", (Server("a", 2, nic_bytes_s=1e8), Server("b", 2, nic_bytes_s=1e8)))
    times = iteration_times(graph, parallelism, cluster, None)
    shares = [ServerShare(ServerIndex(server), 1, (1,)) for server in (0, 1)]
    assert len(graph.stages) == 1
    split_s = iteration_time_s(graph, parallelism, cluster, place(shares))
    assert split_s > 1.5 * times.min_s, "this test is about a placement that costs"
    spec = JobSpec("j", "u", 2, stage_graph=graph, parallelism=parallelism)
    estimate = Estimate((1000.0,), Unit.ITERATIONS, "told")
    first = JobRecord(JobId(1), spec, NOW_S, estimate=estimate, iteration_times=times)
    running(first, 0.0)
    assert first.attempt is not None
    first.attempt.placement, first.attempt.gpu_ids = place(shares), ((0,), (0,))
    first.iterations, first.iterations_per_s, first.anchor_s = 600.0, 1.0 / split_s, NOW_S
    found = fifo(snapshot(first, cluster=cluster))
    end_s = NOW_S + 400.0 * split_s
    finish = found.jobs[JobId(1)].finish
    assert finish is not None
    assert finish.p50_s == pytest.approx(end_s)


def test_a_long_queue_gets_fewer_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    world = snapshot(job(1, (5.0,)), job(2, (5.0,)))
    for runs_max, samples in ((1000, 20), (16, 8), (1, 5)):
        monkeypatch.setattr(module, "RUNS_MAX", runs_max)
        found = fifo(world)
        assert found.samples == samples
        assert {each.samples for each in found.jobs.values()} == {samples}


def test_the_walltime_ends_a_job_and_a_failed_dependency_never_starts_the_next() -> None:
    found = fifo(snapshot(running(job(1, (100.0,), walltime_s=70.0), 40.0), job(2, (5.0,), after=(JobId(1),))))
    assert found.jobs[JobId(1)].finish == Spread(*[NOW_S + 30.0] * 3)
    second = found.jobs[JobId(2)]
    assert (second.start, second.finish) == (None, None)
    assert second.reason == "It does not start in 20 of 20 sampled futures: it waits for jobs in 'after'."


@pytest.mark.parametrize("gate", [Reason.QUOTA_TOO_SMALL, None])
def test_a_gang_larger_than_a_quota_gets_the_reason_in_place_of_a_forecast(gate: Reason | None) -> None:
    """Also one that is only planned, which no cycle has kept back yet."""
    gang = job(1, (5.0,), gpus=4, gate=gate)
    world = snapshot(gang, cluster=Cluster("one", (Server("a", 4),)))
    found = fifo(replace(world, limits={LimitOwner(Scope.USER, "u"): OwnerLimit(2)}))
    assert (found.jobs[JobId(1)].start, found.jobs[JobId(1)].finish) == (None, None)
    assert found.jobs[JobId(1)].reason == Reason.QUOTA_TOO_SMALL.sentence


@pytest.mark.parametrize("owner", [QUEUE, LimitOwner(Scope.USER, "u")])
def test_jobs_of_a_paused_queue_get_the_pause_as_the_reason(owner: LimitOwner) -> None:
    """Also one that cannot compete yet, because it waits for another one."""
    waiting = (job(2, (5.0,)), job(3, (5.0,), after=(JobId(1),)))
    world = snapshot(running(job(1, (100.0,)), 40.0), *waiting)
    found = fifo(replace(world, limits={owner: OwnerLimit(paused=True)}))
    assert found.jobs[JobId(1)].finish == Spread(*[NOW_S + 60.0] * 3)
    for number in (2, 3):
        assert found.jobs[JobId(number)].start is None
        assert found.jobs[JobId(number)].reason == "Its queue is paused; it can start when the queue is resumed."


def test_a_dependency_that_has_ended_is_met() -> None:
    found = fifo(snapshot(job(2, (5.0,), after=(JobId(1),))))
    assert found.jobs[JobId(2)].start == Spread(*[NOW_S] * 3)


def test_held_jobs_and_jobs_without_servers_have_a_reason_and_no_quantiles() -> None:
    held = fifo(snapshot(job(1, (5.0,), held=True), job(2, (5.0,))))
    assert held.jobs[JobId(1)].start is None
    assert "held" in str(held.jobs[JobId(1)].reason)
    assert held.jobs[JobId(2)].start == Spread(*[NOW_S] * 3)
    down = fifo(snapshot(job(1, (5.0,)), down=True))
    assert down.jobs[JobId(1)].reason is not None
    assert "servers" in down.jobs[JobId(1)].reason


def test_without_any_estimate_or_with_too_many_jobs_there_is_no_forecast() -> None:
    with pytest.raises(NoForecast, match="prediction"):
        fifo(snapshot(job(1, None)))
    jobs = [job(1, (5.0,)), job(2, (5.0,))]
    assert len(fifo(snapshot(*jobs), jobs_max=2).jobs) == 2
    with pytest.raises(NoForecast, match="at most 1"):
        fifo(snapshot(*jobs), jobs_max=1)
    assert fifo(snapshot()).jobs == {}


def _asked_for(futures: int) -> int:
    """How often a forecast of one job asks whether it may go on, while it makes so many futures."""
    asked = itertools.count()
    forecast(
        snapshot(job(1, (5.0,))),
        make_policy("fifo"),
        options=ForecastOptions(futures),
        keep_going=lambda: next(asked) >= 0,
    )
    return next(asked)


@pytest.mark.parametrize(("complete", "told"), [(4, None), (5, 5), (8, 8)])
def test_after_the_time_limit_enough_complete_futures_give_a_forecast(complete: int, told: int | None) -> None:
    left = itertools.count(_asked_for(complete), -1)

    def ask() -> Forecast:
        return forecast(snapshot(job(1, (5.0,))), make_policy("fifo"), keep_going=lambda: next(left) > 0)

    if told is None:
        with pytest.raises(NoForecast, match="exceeded its time limit"):
            ask()
    else:
        found = ask()
        assert (found.samples, found.jobs[JobId(1)].samples) == (told, told)


def test_fewer_wakeups_change_the_forecast_only_slightly() -> None:
    """Distributions of 12 points on a crowded server: ranks are refreshed all the time, and late by 2 % of what is ahead."""
    draw = np.random.default_rng(5)
    jobs = []
    for number in range(1, 25):
        points = tuple(sorted(draw.lognormal(6.0, 0.8, 12).tolist()))
        jobs.append(job(number, points, gpus=int(draw.choice((1, 2, 4))), preemption=PreemptionSignal()))
    world = snapshot(*jobs, cluster=Cluster("c", (Server("a", 8),)))
    cycles = {}

    def told(wake_slack: float) -> np.ndarray[Any, Any]:
        count = itertools.count()
        found = forecast(
            world,
            make_policy("asrpt"),
            options=ForecastOptions(8, wake_slack=wake_slack),
            keep_going=lambda: next(count) >= 0,
        )
        cycles[wake_slack] = next(count)
        finishes = [each.finish for each in found.jobs.values()]
        return np.array([[each.p10_s, each.p50_s, each.p90_s] for each in finishes if each is not None]) - NOW_S

    exact, coarse = told(0.0), told(0.02)
    assert cycles[0.02] < 0.7 * cycles[0.0], cycles
    assert coarse[:, 1].mean() == pytest.approx(exact[:, 1].mean(), rel=0.02)
    assert np.median(np.abs(coarse / exact - 1.0)) < 0.02


def test_a_snapshot_is_not_changed_and_equal_ones_give_equal_forecasts() -> None:
    takes_a_warning = {"preemption": PreemptionSignal()}
    jobs = [running(job(1, (50.0, 300.0), **takes_a_warning), 10.0)]
    jobs += [job(n, (10.0 * n, 200.0), **takes_a_warning) for n in range(2, 8)]
    world = snapshot(*jobs)
    before = repr(world)
    options = ForecastOptions(samples=8, seed=3)
    first = forecast(world, make_policy("asrpt"), options=options)
    assert repr(world) == before
    assert forecast(world, make_policy("asrpt"), options=options) == first
    other = forecast(world, make_policy("asrpt"), options=replace(options, seed=4))
    assert other != first


def test_the_draws_are_the_same_in_another_process() -> None:
    code = "from service.forecast.futures import levels; print(levels(7, 20, 3))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(list(levels(JobId(7), 20, 3)))


def test_the_correlation_of_levels_is_the_shared_error() -> None:
    """The correlation of two jobs' levels; of normal scores 0.25 is of ranks (6 / pi) asin(0.25 / 2) = 0.239."""
    for shared_error, told in ((0.0, 0.0), (0.25, 0.239), (1.0, 1.0)):
        drawn = np.array([levels(JobId(number), 400, 3, shared_error) for number in range(1, 41)])
        found = np.corrcoef(drawn)[np.triu_indices(40, 1)].mean()
        assert found == pytest.approx(told, abs=0.05), shared_error


@given(st.integers(1, 10_000), st.integers(1, 40), st.integers(0, 5), st.floats(0.0, 1.0))
@settings(max_examples=30, deadline=None)
def test_levels_contain_each_stratum_once(number: int, samples: int, seed: int, shared_error: float) -> None:
    drawn = levels(JobId(number), samples, seed, shared_error)
    assert sorted(int(level * samples) for level in drawn) == list(range(samples))


# Against simulations that really go on.

ROWS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 4), st.integers(1, 900)), min_size=2, max_size=14)
POLICIES = st.sampled_from(["fifo", "fifo_backfill", "sjf", "las", "asrpt", "asrpt never", "srsf"])


def _whole_iterations(workload: Workload, cluster: Cluster) -> Sequence[SimJob]:
    """Run times that are whole iterations at the best placement: else the oracle and alpha_min differ by a rounding."""
    jobs = prepare(workload, cluster).jobs
    rows = [
        replace(job.row, duration_s=job.iterations * job.times.min_s) if job.iterations and job.times else job.row
        for job in jobs
    ]
    return prepare(Workload(workload.name, tuple(rows)), cluster).jobs


def _forget_ended_attempts(clock: SimClock) -> None:
    """Drop the finishes that were scheduled for attempts which were stopped since.

    Each would still cause a cycle, of which no snapshot knows: a cycle that nobody asked for may move a job as soon as its
    attempt has lasted ``attempt_duration_s_min``, where the forecast moves it at the next event.
    """
    clock._heap = [
        event
        for event in clock._heap
        if not (isinstance(event[3], partial) and getattr(event[3].args[-1], "status", None) is AttemptStatus.ENDED)
    ]
    heapify(clock._heap)


@given(ROWS, POLICIES, st.sampled_from(["", "resnet50"]), st.sampled_from([0.0, 60.0]))
@example([(0, 3, 391), (0, 3, 391), (1, 1, 1)], "fifo", "resnet50", 0.0)  # a delay ends with a job
@example(
    [(0, 2, 181), (0, 2, 55), (0, 1, 121), (85, 1, 153), (0, 4, 53), (177, 2, 44), (0, 3, 108)], "las", "resnet50", 0.0
)
@settings(max_examples=60, deadline=None)
def test_with_known_totals_the_forecast_equals_the_simulation(
    rows: list[tuple[int, int, int]], policy: str, model: str, restart_s: float
) -> None:
    """The snapshot of a simulation after its last arrival, fast-forwarded, ends like the simulation itself.

    Preemptive policies restart in no time here: their grown index lets a job gain rank while it restarts, a rebuilt one
    does not.
    """
    if policy in ("asrpt", "srsf", "las"):
        restart_s = 0.0
    workload = Workload(
        "w",
        tuple(
            WorkloadJob(f"j{n}", float(at), gpus, seconds + n / 64, model=model)
            for n, (at, gpus, seconds) in enumerate(sorted(rows))
        ),
    )
    cluster = Cluster("two", (Server("a", 4, nic_bytes_s=1e9), Server("b", 2, nic_bytes_s=1e9)))
    name, _, mode = policy.partition(" ")
    options = {"guard_share": "0", **({"preemption": mode} if mode else {})}
    if name in ("fifo", "fifo_backfill", "sjf"):
        options = {}
    simulator = Simulator(
        _whole_iterations(workload, cluster),
        cluster,
        make_policy(name, options),
        "oracle",
        SimulationOptions(0.0, restart_s),
    )
    last_s = max(at for at, _, _ in rows)
    while simulator.clock.now_s() < last_s:
        simulator.step()
    _forget_ended_attempts(simulator.clock)
    world, dump = take(simulator.engine.world, simulator.clock.now_s()), simulator.engine.dump()
    found = forecast(world, make_policy(name, options), dump, ForecastOptions(samples=1, wake_slack=0.0))
    simulator.run()
    truth = dict(enumerate(simulator.outcomes(), start=1))
    assert set(found.jobs) == {job.id for job in world.jobs}
    for number, told in found.jobs.items():
        assert told.finish is not None
        assert told.finish.p50_s == pytest.approx(truth[number].finish_time_s, abs=0.01), (number, told)


def test_running_jobs_continue_from_their_progress() -> None:
    record = running(job(1, (100.0,)), 40.0)
    prospect = prospects_of(snapshot(record))[JobId(1)]
    assert prospect.kept == 0.0
    assert prospect.progress_from_s(NOW_S, 1.0) == NOW_S - 40.0
    record.checkpoint_service_s = 30.0
    prospect = prospects_of(snapshot(record))[JobId(1)]
    truth = prospect.truth(100.0)
    assert (truth.done_s, truth.duration_s) == (30.0, 100.0)
    assert prospect.progress_from_s(NOW_S, 1.0) == NOW_S - 10.0
