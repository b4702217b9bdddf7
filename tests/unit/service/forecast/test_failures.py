"""Failures in futures: rates by hand, and futures of one job whose servers and attempts fail."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId, ServerIndex
from policies.registry import make_policy
from service.db.failures import RanAttempt
from service.domain.forecast_scores import Score, score
from service.forecast.failures import (
    FAILURES_MIN,
    NO_FAILURES,
    Failures,
    Outage,
    PastAttempt,
    failures_of,
)
from service.forecast.forecast import Forecast, ForecastOptions, forecast, sample
from service.forecast.outages import fatal, outages_of, past_attempts
from service.history.snapshot import WorldSnapshot, take
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.faults import FaultPlan
from service.sim.jobs import prepare
from service.sim.workloads.model import Workload, WorkloadJob
from tests.unit.service.forecast.test_forecast import NOW_S, job, running, snapshot

A, B = ServerIndex(0), ServerIndex(1)
HOUR_S = 3600.0


def with_failures(world: WorldSnapshot, failures: Failures, *, samples: int = 16, seed: int = 0) -> Forecast:
    return forecast(world, make_policy("fifo"), options=ForecastOptions(samples, seed=seed), failures=failures)


def test_outages_and_up_time_computed_by_hand() -> None:
    changes = [(A, 10.0, "down"), (A, 12.0, "drained"), (A, 15.0, "up"), (B, 40.0, "up"), (A, 90.0, "down")]
    outages, up_s = outages_of(changes, {A: True, B: False}, 0.0, 100.0)
    assert outages == [Outage(A, 10.0, 15.0), Outage(A, 90.0)]
    assert up_s == 10.0 + 75.0 + 60.0, "the second was down before the record"
    # The second was added later; the first is not listed any more, or was marked up without an event.
    assert outages_of([(B, 30.0, "added"), (A, 20.0, "down")], {B: False}, 0.0, 100.0) == ([], 20.0 * 0 + 70.0)
    assert outages_of([(A, 20.0, "down")], {A: False}, 0.0, 100.0) == ([], 20.0)


def test_an_outage_that_an_attempt_outlived_is_no_failure_and_a_loss_beside_one_is_the_servers() -> None:
    outages = [Outage(A, 1000.0, 1010.0), Outage(B, 1000.0, 1010.0)]
    lives = RanAttempt((A,), 0.0, None, lost=False, requeued=False)
    lost = RanAttempt((A, B), 900.0, 1005.0, lost=True, requeued=True)
    alone = RanAttempt((B,), 4000.0, 5000.0, lost=True, requeued=True)
    crashed = RanAttempt((B,), 500.0, 1005.0, lost=False, requeued=True)
    assert fatal(outages, [lives, lost]) == [outages[1]]
    assert past_attempts([lives, lost, alone, crashed], outages, 6000.0) == [
        PastAttempt(6000.0, False),
        PastAttempt(105.0, False),
        PastAttempt(1000.0, True),
        PastAttempt(505.0, True),
    ]


def test_rates_are_shrunk_and_zero_without_a_failure() -> None:
    ran = [PastAttempt(100.0, False)] * 5
    assert failures_of([], 1e9, ran) == NO_FAILURES
    found = failures_of([Outage(A, 0.0, 50.0), Outage(B, 0.0)], 1e6, [*ran, PastAttempt(40.0, True)])
    assert found.per_server_s == pytest.approx(2 / 3 * 2 / 1e6), "two failures"
    assert (found.outages_s, found.down_since_s) == ((50.0,), {B: 0.0})
    assert (found.ages_s, found.hazards) == ((40.0,), (1 / 2 * 1 / 6,))
    assert failures_of([Outage(B, 0.0)], 1e6, []).per_server_s == 0.0, "it is not known when servers return"


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.booleans()), max_size=50), st.floats(0.0, 1e6), st.floats(1e-9, 30.0))
@settings(max_examples=100, deadline=None)
def test_an_attempt_fails_at_a_recorded_age_after_its_own_and_the_later_the_luckier(
    lives: list[tuple[float, bool]], age_s: float, draw: float
) -> None:
    found = failures_of([], 0.0, [PastAttempt(*each) for each in lives])
    assert list(found.hazards) == sorted(found.hazards)
    first, second = found.fails_at_age_s(draw, age_s), found.fails_at_age_s(2.0 * draw, age_s)
    assert first is None or (first >= age_s and (first, True) in lives)
    assert (inf if second is None else second) >= (inf if first is None else first)


def test_the_share_of_attempts_that_fail_is_the_recorded_one() -> None:
    """4,000 attempts, exponential lives of mean 100 s cut at 50 s: those that begin now, and those that have run for 20 s."""
    draw = np.random.default_rng(1)
    ends = draw.exponential(100.0, 4_000)
    found = failures_of([], 0.0, [PastAttempt(min(50.0, end), end < 50.0) for end in ends.tolist()])
    for age_s in (0.0, 20.0):
        failed = [found.fails_at_age_s(float(each), age_s) is not None for each in draw.exponential(1.0, 4_000)]
        assert np.mean(failed) == pytest.approx(1.0 - np.exp(-(50.0 - age_s) / 100.0), abs=0.03)


def test_without_a_failure_in_the_record_a_forecast_is_the_same() -> None:
    world = snapshot(running(job(1, (100.0, 900.0)), 40.0), job(2, (50.0, 70.0)), job(3, (10.0,)))
    found = with_failures(world, failures_of([], 1e9, [PastAttempt(10.0, False)] * 99))
    assert found == forecast(world, make_policy("fifo"), options=ForecastOptions(16))
    assert repr(found) == repr(forecast(world, make_policy("fifo"), options=ForecastOptions(16)))


def test_a_server_that_is_down_returns_after_a_recorded_outage_longer_than_its_own() -> None:
    world = snapshot(job(1, (50.0,)), down=True)
    found = with_failures(world, Failures(0.0, (100.0, 400.0), {A: NOW_S - 200.0})).jobs[JobId(1)]
    assert found.start is not None
    assert (found.start.p10_s, found.start.p90_s) == (NOW_S + 200.0, NOW_S + 200.0)
    stays = with_failures(world, Failures(0.0, (100.0,), {A: NOW_S - 200.0})).jobs[JobId(1)]
    assert stays.start is None, "none was down as long"


def test_failures_of_servers_delay_ends_and_equal_seeds_give_equal_forecasts() -> None:
    """A server fails once an hour for 10 minutes; the job needs 30 minutes, and saves nothing."""
    world = snapshot(running(job(1, (1800.0,)), 0.0))
    failing = Failures(1.0 / HOUR_S, (600.0,))
    found = with_failures(world, failing, samples=200)
    finish = found.jobs[JobId(1)].finish
    assert finish is not None
    assert finish.p10_s == NOW_S + 1800.0
    # Half an hour without a failure has the probability exp(-1/2) = 61 %.
    assert finish.p50_s == NOW_S + 1800.0
    assert finish.p90_s > NOW_S + 1800.0 + 600.0
    assert found == with_failures(world, failing, samples=200)
    assert found != with_failures(world, failing, samples=200, seed=1)


def test_a_job_that_fails_faster_than_it_saves_still_ends_in_every_future() -> None:
    found = with_failures(snapshot(running(job(1, (1e6,)), 0.0)), Failures(1.0 / 60.0, (1.0,)))
    finish = found.jobs[JobId(1)].finish
    assert finish is not None
    assert finish.p10_s >= NOW_S + 1e6 + FAILURES_MIN
    # After that number of failures, a minute apart, none comes any more.
    assert finish.p90_s <= NOW_S + 1e6 + 2 * 60.0 * FAILURES_MIN


def test_a_job_that_cannot_run_ends_no_future_later() -> None:
    held = job(2, (10.0,), held=True)
    found = with_failures(snapshot(running(job(1, (10.0,)), 0.0), held), Failures(1e-9, (5.0,)))
    assert found.jobs[JobId(2)].reason == "The job is held; it can start when it is released."


def test_attempts_fail_only_while_a_retry_is_left() -> None:
    """Every attempt fails at 30 s. The first failure costs 30 s and the second ends the job, which its total says already."""
    always = Failures(ages_s=(30.0,), hazards=(1e9,))
    once = running(job(1, (100.0,)), 10.0)
    once.spec = replace(once.spec, max_retries=1)
    finish = with_failures(snapshot(once), always).jobs[JobId(1)].finish
    assert finish is not None
    assert finish.p50_s == NOW_S + 20.0 + 100.0
    never = running(job(1, (100.0,)), 10.0)
    never.spec = replace(never.spec, max_retries=0)
    finish = with_failures(snapshot(never), always).jobs[JobId(1)].finish
    assert finish is not None
    assert finish.p50_s == NOW_S + 90.0


def test_servers_fail_as_often_as_in_the_record() -> None:
    """Four jobs of an hour on four servers that fail once in ten hours: one of ten ends late, in the mean of the futures."""
    cluster = Cluster("four", tuple(Server(name, 1) for name in "abcd"))
    world = snapshot(*(running(job(number + 1, (HOUR_S,)), 0.0, number) for number in range(4)), cluster=cluster)
    found = sample(world, make_policy("fifo"), options=ForecastOptions(500), failures=Failures(0.1 / HOUR_S, (60.0,)))
    late = [at_s > NOW_S + HOUR_S for future in found.sampled for at_s in future.ended_at_s.values()]
    assert np.mean(late) == pytest.approx(1.0 - np.exp(-0.1), abs=0.02)


def test_futures_with_failures_cover_better_where_servers_fail() -> None:
    """Totals are known, so without failures an interval is an instant. Servers fail every 3 hours, for 45 minutes."""
    cluster = Cluster("four", tuple(Server(name, 1) for name in "abcd"))
    rows = tuple(WorkloadJob(str(n), 5_400.0 * (n // 2), 1, 7_200.0 + 60.0 * (n % 7)) for n in range(200))
    jobs = prepare(Workload("failing", rows), cluster).jobs
    plan = FaultPlan(mtbf_s=3 * HOUR_S, mttr_s=0.75 * HOUR_S)
    policy = make_policy("fifo")
    simulator = Simulator(jobs, cluster, policy, "oracle", SimulationOptions(keep_spans=True, faults=plan))
    changes: list[tuple[ServerIndex, float, str]] = []
    seen: list[tuple[WorldSnapshot, Failures]] = []
    down = {ServerIndex(index): False for index in range(4)}
    while simulator.step():
        now_s, servers = simulator.clock.now_s(), simulator.engine.world.servers
        for server, was_down in down.items():
            if servers[server].down != was_down:
                changes.append((server, now_s, "up" if was_down else "down"))
        down = {server: servers[server].down for server in down}
        if now_s >= 2.5e5 + 9_000.0 * len(seen) and len(seen) < 25:
            outages, up_s = outages_of(changes, down, 0.0, now_s)
            seen.append((take(simulator.engine.world, now_s), failures_of(outages, up_s, [])))
    ends = dict(zip((each.id for each in jobs), (each.finish_time_s for each in simulator.outcomes()), strict=True))

    def scores(*, failing: bool) -> list[Score]:
        found = []
        for world, failures in seen:
            made = with_failures(world, failures if failing else NO_FAILURES)
            for each in made.jobs.values():
                if each.finish is not None:
                    finish = each.finish
                    found.append(score((finish.p10_s - 1e-3, finish.p50_s, finish.p90_s + 1e-3), ends[each.job]))
        return found

    without, with_them = scores(failing=False), scores(failing=True)
    assert len(seen) == 25
    assert len(without) == len(with_them) > 80
    assert np.mean([each.inside for each in with_them]) > 0.7
    assert np.mean([each.inside for each in without]) < np.mean([each.inside for each in with_them]) - 0.1
    assert np.mean([each.pinball_s for each in with_them]) < np.mean([each.pinball_s for each in without])
