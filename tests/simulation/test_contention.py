"""Simulated attempts whose speed varies: by hand, and against an independent integration of random starts and stops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id
from service.engine.commands import Stop
from service.engine.events import ReportKind
from service.sim.executor import ExecutorCosts
from service.sim.network import Contention
from tests.contended import Machines, on, servers

FOUR = servers(4)


def test_two_share_a_nic_and_one_leaves() -> None:
    """Both at 1/3 of a second's work a second: A's 30 s take 90. B has 30 s left then, at 1/2: 60 s more."""
    machines = Machines(FOUR)
    a, b = machines.launch(1, 30.0, on(0, 1)), machines.launch(2, 60.0, on(0, 1))
    machines.until(500.0)
    assert machines.ends() == {a: pytest.approx(90.0), b: pytest.approx(150.0)}
    assert machines.speeds(a) == [(0.0, 5.0), (0.0, pytest.approx(10 / 3))]
    assert machines.speeds(b) == [(0.0, 5.0), (0.0, pytest.approx(10 / 3)), (pytest.approx(90.0), 5.0)]


def test_three_over_overlapping_servers() -> None:
    """A on 0-1, B on 1-2, C on 2-0: two on each server, so a third of the speed each. C joins at 30, D never straddles."""
    machines = Machines(FOUR)
    a, b = machines.launch(1, 20.0, on(0, 1)), machines.launch(2, 30.0, on(1, 2))
    machines.until(30.0)  # each 10 s at 1/3
    c, d = machines.launch(3, 40.0, on(2, 0)), machines.launch(4, 100.0, on(0, 0))
    machines.until(500.0)
    # A: 10 left, 60. B: at 60 20 - 10 = 10 s left, still beside C: 90. C: at 90 20 s left, alone: 130.
    assert machines.ends() == {a: pytest.approx(60.0), b: pytest.approx(90.0), c: pytest.approx(130.0), d: 130.0}


def test_a_chain() -> None:
    """A-B share server 1, B-C server 2. A ends at 90 and changes nothing for B; C ends at 135, and B goes on alone."""
    machines = Machines(FOUR)
    a, b, c = (machines.launch(job, s, on(job - 1, job)) for job, s in ((1, 30.0), (2, 60.0), (3, 45.0)))
    machines.until(500.0)
    # B: 45 s done at 135, the last 15 s at 1/2.
    assert machines.ends() == {a: pytest.approx(90.0), c: pytest.approx(135.0), b: pytest.approx(165.0)}
    assert [at_s for at_s, _ in machines.speeds(b)] == [0.0, 0.0, pytest.approx(135.0)]


def test_a_checkpoint_keeps_what_was_done_at_the_speed_of_its_time() -> None:
    """Checkpoints at 300 and 600 s. B is there for the first 450 s: 1/3 of the speed until then, 1/2 after."""
    for crash_at_s, kept_work_s, lost_s in ((500.0, 100.0, 200.0), (700.0, 150.0 + 75.0, 100.0)):
        machines = Machines(FOUR)
        a = machines.launch(1, 1000.0, on(0, 1))
        machines.launch(2, 150.0, on(0, 1))
        machines.until(crash_at_s)
        machines.executor.crash(a)
        machines.until(crash_at_s)
        end = machines.end(a)
        assert end.iteration == pytest.approx(10.0 * kept_work_s)
        assert end.lost_service_s == pytest.approx(lost_s)
        machines.launch(1, 1000.0, on(2, 3), number=2)
        machines.until(5000.0)
        assert machines.ends()[AttemptId("1.2")] == pytest.approx(crash_at_s + 60.0 + 2.0 * (1000.0 - kept_work_s))


def test_a_program_that_restarts_or_writes_a_checkpoint_sends_nothing() -> None:
    """B runs until 60, its checkpoint until 100; its second attempt from 200 works from 260 on."""
    machines = Machines(FOUR, costs=ExecutorCosts(checkpoint_s=40.0, stop_latency_s=10.0))
    a, b = machines.launch(1, 200.0, on(0, 1)), machines.launch(2, 1000.0, on(0, 1))
    machines.until(50.0)
    machines.stop(b)
    machines.until(200.0)
    assert machines.end(b).at_s == 100.0
    assert machines.end(b).iteration == pytest.approx(10.0 * 20.0)
    machines.launch(2, 1000.0, on(0, 1), number=2)
    machines.until(1000.0)
    # 20 s of work by 60, 100 more by 260, the last 80 at 1/3.
    assert machines.ends()[a] == pytest.approx(260.0 + 240.0)
    assert [at_s for at_s, _ in machines.speeds(a)] == [0.0, 0.0, 60.0, 260.0]


def test_a_stop_before_the_work_begins_leaves_the_network_alone() -> None:
    machines = Machines(FOUR)
    a = machines.launch(1, 100.0, on(0, 1))
    machines.launch(2, 100.0, on(0, 1), number=2)
    machines.until(30.0)
    machines.stop(AttemptId("2.2"))
    machines.until(500.0)
    assert machines.ends()[a] == 200.0
    assert machines.speeds(a) == [(0.0, 5.0)]


def test_a_stop_that_is_still_on_its_way_when_the_work_begins() -> None:
    """B restarts until 60 and is stopped at 80. A: 30 s of work by 60, 20/3 more by 80, the last 63.3 s at 1/2."""
    machines = Machines(FOUR, costs=ExecutorCosts(stop_latency_s=30.0, checkpoint_s=5.0))
    a, b = machines.launch(1, 100.0, on(0, 1)), machines.launch(2, 100.0, on(0, 1), number=2)
    machines.until(50.0)
    machines.stop(b)
    machines.until(500.0)
    assert machines.end(b).at_s == 85.0
    assert machines.end(b).iteration == pytest.approx(10.0 * 20.0 / 3.0)
    assert machines.ends()[a] == pytest.approx(80.0 + 2.0 * (100.0 - 30.0 - 20.0 / 3.0))


def test_a_lost_server_frees_the_others_of_its_jobs() -> None:
    """B on 1-2 dies with server 2 at 30; A on 0-1 has 10 s done, and 50 s left at 1/2. Its own server dies later."""
    machines = Machines(FOUR)
    a, b = machines.launch(1, 60.0, on(0, 1)), machines.launch(2, 60.0, on(1, 2))
    machines.until(30.0)
    machines.executor.fail_server(ServerIndex(2))
    machines.until(500.0)
    assert machines.ends() == {b: 30.0, a: pytest.approx(130.0)}


def test_a_server_that_takes_several_with_it() -> None:
    machines = Machines(FOUR)
    a, b, c = (machines.launch(job, 60.0, on(*where)) for job, where in ((1, (0, 1)), (2, (0, 2)), (3, (2, 3))))
    machines.until(30.0)
    machines.executor.fail_server(ServerIndex(0))
    machines.until(500.0)
    assert machines.ends() == {a: 30.0, b: 30.0, c: pytest.approx(130.0)}
    assert [report.kind for report in machines.reports if report.attempt == a][-1] is ReportKind.LOST


def test_an_attempt_that_was_running_before_goes_on_among_others() -> None:
    """From 40 to 100 it ran on the reserved network: 1 s of compute and 4 s through a quarter of a NIC, so 12 s of work."""
    machines = Machines(FOUR, start_s=100.0)
    machines.executor.adopt(machines.order(1, 30.0, on(0, 1)), 40.0)
    restarting = machines.order(2, 30.0, on(0, 1), number=2)
    machines.executor.adopt(restarting, 112.0)
    machines.until(500.0)
    # 12 s by 100, 6 more at 1/2 by 112, the last 12 at 1/3: 148. The other has done 12 by then, and goes on alone.
    assert machines.ends() == {AttemptId("1.1"): pytest.approx(148.0), restarting.attempt: pytest.approx(148.0 + 36.0)}


def test_a_change_of_speed_after_the_stop_was_sent_moves_the_finish() -> None:
    """B's stop comes at 50 and reaches it at 110. Until A ends at 90 B does 30 of its 39 s, the rest takes 18 s: it finishes."""
    for duration_s, code, end_s, iteration in ((39.0, 0, 108.0, 390.0), (41.0, 75, 110.0, 400.0)):
        machines = Machines(FOUR, costs=ExecutorCosts(stop_latency_s=60.0))
        machines.launch(1, 30.0, on(0, 1))
        b = machines.launch(2, duration_s, on(0, 1))
        machines.until(50.0)
        machines.stop(b)
        machines.until(500.0)
        end = machines.end(b)
        assert end.exit_code == code
        assert (end.at_s, end.iteration) == pytest.approx((end_s, iteration))


def test_events_that_were_overtaken_fall_due_once_and_breed_nothing() -> None:
    """A looks for its finish at 200 and finds 295, alone from 205 on 265; C and D put it off to 322.7: 295 means nothing then."""
    machines = Machines(FOUR)
    a = machines.launch(1, 100.0, on(0, 1))
    for at_s, job, duration_s in ((10.0, 2, 65.0), (206.0, 3, 1000.0), (210.0, 4, 1000.0)):
        machines.until(at_s)
        machines.launch(job, duration_s, on(0, 1))
    machines.until(300.0)
    before = machines.clock.events
    machines.until(330.0)
    assert machines.ends()[a] == pytest.approx(210.0 + 4.0 * (100.0 - 5.0 - 65.0 - 0.5 - 4.0 / 3.0))
    assert machines.clock.events == before + 1


# Against an independent integration.

PERIOD_S = 10.0
RESTART_S = 7.0
CHECKPOINT_S = 4.0


@dataclass
class Order:
    """What happens to one job: launches, and how each attempt is ended from outside (None: not at all)."""

    job: int
    duration_s: float
    where: tuple[int, ...]
    launches: Sequence[tuple[float, float | None, str]]
    """(start, end of the attempt by force, "stop" | "kill" | "crash")."""


@dataclass
class Plain:
    """The integrator's job: work that is safe, and of the present attempt the work, productive time and newest checkpoint."""

    order: Order
    number: int = 0
    safe_s: float = 0.0
    work_s: float = 0.0
    productive_s: float = 0.0
    saved_s: float = 0.0
    works_from_s: float = inf
    running: bool = False
    ends: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Attempt -> (when it ended, iterations that were safe then)."""

    def left_s(self) -> float:
        return self.order.duration_s - self.safe_s - self.work_s

    def end(self, at_s: float, kept_s: float) -> None:
        self.safe_s += kept_s
        self.ends[self.number] = (at_s, 10.0 * self.safe_s)
        self.running = False
        self.work_s = 0.0
        self.works_from_s = inf


def integrate(orders: Sequence[Order], contention: Contention) -> dict[AttemptId, tuple[float, float]]:
    """Go from one instant at which anything changes to the next, everybody at a constant speed in between.

    No index, no event queue and no formula of the product: crowds are counted anew, checkpoints are instants of their own.
    """
    jobs = [Plain(order) for order in orders]
    forced = sorted(
        {
            at_s
            for order in orders
            for start_s, end_s, _ in order.launches
            for at_s in (start_s, end_s)
            if at_s is not None
        }
    )
    now_s = 0.0
    while True:
        _carry_out(jobs, now_s)
        speeds = _speeds(jobs, now_s, contention)
        next_s = min([at_s for at_s in forced if at_s > now_s], default=inf)
        for job, speed in zip(jobs, speeds, strict=True):
            if job.running and job.works_from_s > now_s:
                next_s = min(next_s, job.works_from_s)
            elif job.running:
                next_s = min(next_s, now_s + job.left_s() / speed, now_s + PERIOD_S - job.productive_s % PERIOD_S)
        if next_s == inf:
            break
        for job, speed in zip(jobs, speeds, strict=True):
            if job.running and job.works_from_s <= now_s:
                job.work_s += (next_s - now_s) * speed
                job.productive_s += next_s - now_s
                if abs(job.productive_s - PERIOD_S * round(job.productive_s / PERIOD_S)) < 1e-9:
                    job.productive_s = PERIOD_S * round(job.productive_s / PERIOD_S)
                    job.saved_s = job.work_s
                if job.left_s() < 1e-9:
                    job.end(next_s, job.order.duration_s - job.safe_s)
        now_s = next_s
    return {AttemptId(f"{job.order.job}.{number}"): end for job in jobs for number, end in job.ends.items()}


def _carry_out(jobs: Sequence[Plain], now_s: float) -> None:
    for job in jobs:
        for number, (start_s, end_s, how) in enumerate(job.order.launches, 1):
            if end_s == now_s and job.running and job.number == number:
                if how == "stop":
                    job.end(now_s + CHECKPOINT_S, job.work_s)
                else:
                    job.end(now_s, job.saved_s)
            if start_s == now_s and job.safe_s < job.order.duration_s:
                job.number, job.running = number, True
                job.work_s = job.productive_s = job.saved_s = 0.0
                job.works_from_s = now_s + (RESTART_S if number > 1 else 0.0)


def _speeds(jobs: Sequence[Plain], now_s: float, contention: Contention) -> list[float]:
    """One second of compute and, where the job straddles, f(k) seconds of ring and its latency."""
    sending = [job for job in jobs if job.running and job.works_from_s <= now_s and len(set(job.order.where)) > 1]
    speeds = []
    for job in jobs:
        servers_used = set(job.order.where)
        if len(servers_used) == 1:
            speeds.append(1.0)
            continue
        most = max([sum(m in other.order.where for other in sending) for m in servers_used])
        k = max(1.0, contention.xi1 * most)
        seconds = 1.0 + k + contention.a * (k - 1.0) + contention.xi2 * len(servers_used)
        speeds.append(1.0 / seconds)
    return speeds


@st.composite
def stories(draw: st.DrawFn, forced: bool = True) -> list[Order]:
    """Up to six jobs on four servers; times of starts and stops are all different, so that no tie has to be broken."""
    count = draw(st.integers(1, 6))
    instants = iter(draw(st.lists(st.integers(1, 160), min_size=4 * count, max_size=4 * count, unique=True)))
    orders = []
    for job in range(1, count + 1):
        where = tuple(sorted(draw(st.lists(st.integers(0, 3), min_size=2, max_size=4))))
        duration_s = draw(st.integers(5, 60)) + 0.137 * job
        first_s, stop_s, second_s, kill_s = sorted(next(instants) for _ in range(4))
        launches: list[tuple[float, float | None, str]] = [(float(first_s), None, "")]
        if forced and draw(st.booleans()):
            launches[0] = (float(first_s), stop_s + 0.25, draw(st.sampled_from(("stop", "kill", "crash"))))
            second = max(float(second_s), stop_s + 5.0) + 0.5
            kill = draw(st.sampled_from((None, second + kill_s + 0.125)))
            launches.append((second, kill, draw(st.sampled_from(("kill", "crash")))))
        orders.append(Order(job, duration_s, where, launches))
    return orders


def simulate(orders: Sequence[Order], contention: Contention) -> Mapping[AttemptId, tuple[float, float]]:
    """The same on the simulated executor."""
    costs = ExecutorCosts(checkpoint_s=CHECKPOINT_S, restart_s=RESTART_S)
    machines = Machines(FOUR, contention, costs)
    happenings: list[tuple[float, Order, int, str]] = []
    for order in orders:
        for number, (start_s, end_s, how) in enumerate(order.launches, 1):
            happenings.append((start_s, order, number, "launch"))
            if end_s is not None:
                happenings.append((end_s, order, number, how))
    for at_s, order, number, how in sorted(happenings, key=lambda each: each[0]):
        machines.until(at_s)
        attempt = attempt_id(JobId(order.job), number)
        if how == "launch":
            truth = machines.truths.get(JobId(order.job))
            if truth is None or truth.done_s < truth.duration_s:
                machines.launch(order.job, order.duration_s, on(*order.where), number, PERIOD_S)
        elif how == "crash":
            machines.executor.crash(attempt)
        elif attempt in machines.executor.observed():
            machines.executor.send([Stop(attempt, graceful=how == "stop")])
    machines.until(20_000.0)
    return {
        report.attempt: (report.at_s, report.iteration)
        for report in machines.reports
        if report.attempt is not None and report.kind is ReportKind.EXITED and report.iteration is not None
    }


CONTENTIONS = st.builds(Contention, st.sampled_from((1.0, 0.7, 0.0)), st.sampled_from((0.0, 0.275)), st.just(0.01))


@given(stories(), CONTENTIONS)
@settings(max_examples=150, deadline=None)
def test_every_end_is_where_an_independent_integration_puts_it(orders: list[Order], contention: Contention) -> None:
    expected, found = integrate(orders, contention), simulate(orders, contention)
    assert found.keys() == expected.keys()
    for attempt, (at_s, iterations) in expected.items():
        assert found[attempt][0] == pytest.approx(at_s, abs=1e-6)
        assert found[attempt][1] == pytest.approx(iterations, abs=1e-6)


@given(stories(forced=False), CONTENTIONS)
@settings(max_examples=60, deadline=None)
def test_one_job_more_makes_no_other_end_earlier(orders: list[Order], contention: Contention) -> None:
    """By induction over time: where nobody has ended earlier so far, every server carries at least as many."""
    fewer, more = simulate(orders[1:], contention), simulate(orders, contention)
    assert all(more[attempt][0] >= at_s - 1e-6 for attempt, (at_s, _) in fewer.items())


@given(stories(), CONTENTIONS)
@settings(max_examples=60, deadline=None)
def test_all_work_is_done_once(orders: list[Order], contention: Contention) -> None:
    """A job whose last attempt nobody ends finishes with all its iterations, however often its speed has changed."""
    found = simulate(orders, contention)
    for order in orders:
        attempts = [end for attempt, end in found.items() if attempt.startswith(f"{order.job}.")]
        assert all(earlier[1] <= later[1] for earlier, later in pairwise(attempts))
        if order.launches[-1][1] is None:
            assert attempts[-1][1] == pytest.approx(10.0 * order.duration_s, rel=1e-12)
