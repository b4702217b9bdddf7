"""Prints how right forecasts are: coverage, width and pinball loss by horizon, without and with arrivals, and calibrated.

python -m benchmarks.forecast_accuracy [--trace workload.csv ...] [--first 2500] [--every 1] [--jobs 1200] [--load 0.85]
        [--policy asrpt] [--instants 80] [--shared-error 0.25] [--mtbf-s 172800 --mttr-s 7200]

Each trace, or a generated workload if none is given, runs on as many eight-GPU servers as make the load, with a predictor that
learns as it goes (``trained``). Of a trace every ``--every``-th job counts, so that few jobs span many days. After the first 20 %
of the arrivals the queue is forecast at ``--instants`` instants with equally many arrivals between them; what then happens, later
arrivals included, is the truth. Three forecasts of each instant are compared: futures in which no job arrives, futures with
arrivals, and those calibrated by the record of the instants before, as the service does it. The first fifth of the instants
is only learnt from. With ``--mtbf-s`` servers fail, and futures with arrivals and failures are compared with those with arrivals
alone.

Rows: forecasts and jobs, and of each kind the share inside 80 % intervals, their mean width, and the mean pinball loss.
"""

import argparse
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.ranking import hastened
from benchmarks.workloads import cluster_of, servers_for
from policies.model.estimate import Estimate, Prediction
from policies.model.ids import JobId, ServerIndex
from policies.registry import make_policy
from service.domain.duration import words_of
from service.domain.forecast_calibration import OUTCOMES_MAX, Calibration, Outcome
from service.domain.forecast_scores import Milestone, Scored, Tally, accuracy, score
from service.engine.ports import Predictor
from service.engine.record import ServerRecord
from service.forecast.arrivals import NO_RHYTHM, PastArrival, Rhythm
from service.forecast.failures import NO_FAILURES, Failures, failures_of
from service.forecast.forecast import Forecast, ForecastOptions, JobForecast, NoForecast, Spread, forecast
from service.forecast.outages import outages_of
from service.forecast.past import ARRIVALS_MAX, WINDOW_S, calibrated
from service.history.snapshot import WorldSnapshot, take
from service.sim import experiment
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.faults import NO_FAULTS, FaultPlan
from service.sim.jobs import SimJob, prepare
from service.sim.predictors import ListenedPredictor, make_predictor
from service.sim.results import JobOutcome
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload

WARM_SHARE = 0.2
"""The first part of the arrivals, and then of the instants, is only learnt from."""


@dataclass(frozen=True, slots=True)
class Instant:
    """The queue at one instant, the policy's state, and the submissions and failures before it."""

    world: WorldSnapshot
    dump: dict[str, Any]
    rhythm: Rhythm
    failures: Failures


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at some instants of a simulation, and what happened."""

    instants: Sequence[Instant]
    outcomes: Mapping[JobId, JobOutcome]


class Told(NamedTuple):
    """One forecast of a milestone as it was shown, as it was drawn, and the actual time."""

    milestone: Milestone
    job: JobId
    gpus: int
    made_at_s: float
    shown: Spread
    drawn: Spread
    actual_s: float


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, nargs="*", default=[], help="workload tables; none: generated work")
    parser.add_argument("--first", type=int, default=2_500, help="jobs of each table")
    parser.add_argument("--every", type=int, default=1, help="take every so manieth job of a table, over a longer time")
    parser.add_argument("--jobs", type=int, default=1_200, help="jobs of generated work")
    parser.add_argument("--policy", default="asrpt")
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--instants", type=int, default=80, help="forecasts of the whole queue")
    parser.add_argument("--samples", type=int, default=ForecastOptions().samples)
    parser.add_argument("--shared-error", type=float, default=ForecastOptions().shared_error)
    parser.add_argument("--mtbf-s", type=float, help="mean time to a server's next failure; none: no failures")
    parser.add_argument("--mttr-s", type=float, default=FaultPlan().mttr_s, help="mean time of a repair")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    options = ForecastOptions(arguments.samples, shared_error=arguments.shared_error)
    faults = FaultPlan(mtbf_s=arguments.mtbf_s, mttr_s=arguments.mttr_s)
    with _quiet("predictor"):
        for workload in _workloads(arguments):
            servers = servers_for(workload, arguments.load)
            workload = hastened(workload, servers, arguments.load)
            seen = see(workload, servers, arguments.policy, arguments.instants, faults)
            measure(workload.name, seen, arguments.policy, options)


def _workloads(arguments: argparse.Namespace) -> Iterator[Workload]:
    if not arguments.trace:
        yield generate(arguments.seed, arguments.jobs, gpus=64, load=arguments.load, communication=False)
    for trace in arguments.trace:
        workload = read_workload(trace, first=arguments.first * arguments.every)
        yield replace(workload, jobs=workload.jobs[:: arguments.every])


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Only errors of this logger while it lasts: a line for each switch of trust would stand between the rows."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def see(workload: Workload, servers: int, policy: str, instants: int, faults: FaultPlan = NO_FAULTS) -> Seen:
    """Simulate the workload, and copy what the service would know at the instants."""
    cluster = cluster_of(servers, 100.0)
    # The simulator does not end jobs at their walltime, which a forecast would expect.
    workload = replace(workload, jobs=tuple(replace(job, walltime_s=None) for job in workload.jobs))
    jobs = prepare(workload, cluster).jobs
    said: dict[JobId, Estimate] = {}

    def heard(job: JobId, prediction: Prediction) -> None:
        said[job] = prediction.estimate

    def listening(name: str, rows: Sequence[SimJob], of: int, present: Mapping[JobId, SimJob] | None) -> Predictor:
        return ListenedPredictor(make_predictor(name, rows, of, present), heard)

    # The simulator makes its predictor by name; what it says of each job is wanted here.
    with mock.patch.object(experiment, "make_predictor", listening):
        options = SimulationOptions(keep_spans=True, faults=faults)
        simulator = Simulator(jobs, cluster, make_policy(policy), "trained", options)
    first = int(WARM_SHARE * len(jobs))
    due_s = [jobs[first + index * (len(jobs) - first) // instants].row.submit_time_s for index in range(instants)]
    found: list[Instant] = []
    watched = _Servers(dict.fromkeys(map(ServerIndex, range(servers)), False))
    while simulator.step():
        now_s = simulator.clock.now_s()
        watched.look(simulator.engine.world.servers, now_s)
        if len(found) < instants and now_s >= due_s[len(found)]:
            world = take(simulator.engine.world, now_s)
            rhythm = _rhythm(jobs, simulator, said, now_s)
            failures = watched.failures(max(jobs[0].row.submit_time_s, now_s - WINDOW_S), now_s)
            found.append(Instant(world, simulator.engine.dump(), rhythm, failures))
    truth = {outcome.job_id: outcome for outcome in simulator.outcomes()}
    return Seen(found, {job.id: truth[job.row.job_id] for job in jobs if job.row.job_id in truth})


@dataclass(slots=True)
class _Servers:
    """Whether each server is down, and all changes."""

    down: dict[ServerIndex, bool]
    changes: list[tuple[ServerIndex, float, str]] = field(default_factory=list)

    def look(self, servers: Sequence[ServerRecord], now_s: float) -> None:
        for index, record in enumerate(servers):
            server = ServerIndex(index)
            if record.down != self.down[server]:
                self.down[server] = record.down
                self.changes.append((server, now_s, "down" if record.down else "up"))

    def failures(self, since_s: float, now_s: float) -> Failures:
        """As :class:`service.forecast.past.RecordedPast`, of the simulation's servers."""
        newer = [change for change in self.changes if change[1] >= since_s]
        outages, up_s = outages_of(newer, self.down, since_s, now_s)
        return failures_of(outages, up_s, ())


def _rhythm(jobs: Sequence[SimJob], simulator: Simulator, said: Mapping[JobId, Estimate], now_s: float) -> Rhythm:
    """As :func:`service.forecast.past.rhythm_of`, of the simulation's jobs."""
    present = simulator.engine.world.jobs
    found = []
    for job in [job for job in jobs if now_s - WINDOW_S <= job.row.submit_time_s < now_s][-ARRIVALS_MAX:]:
        estimate, record = said.get(job.id), present.get(job.id)
        submitted_at_s = job.row.submit_time_s
        if record is None:
            truth = job.truth()
            past = PastArrival(submitted_at_s, job.spec, job.times, estimate, truth.duration_s, truth.iterations)
        else:
            done = record.done(estimate.unit, now_s) if estimate is not None else 0.0
            past = PastArrival(submitted_at_s, job.spec, job.times, estimate, None, None, done)
        found.append(past)
    return Rhythm(found[0].submitted_at_s, found) if found else NO_RHYTHM


def measure(name: str, seen: Seen, policy: str, options: ForecastOptions) -> None:
    """Print the table of one workload."""
    failing = any(instant.failures != NO_FAILURES for instant in seen.instants)
    kinds = ("arrivals", "failures", "calibrated") if failing else ("without", "arrivals", "calibrated")
    told: dict[str, list[list[Told]]] = {kind: [] for kind in kinds}
    cost_s = dict.fromkeys(kinds[:2], 0.0)
    for instant in seen.instants:
        for kind in kinds[:2]:
            began_s = time.process_time()
            rhythm = NO_RHYTHM if kind == "without" else instant.rhythm
            made = _made(instant, policy, options, rhythm, instant.failures if kind == "failures" else NO_FAILURES)
            cost_s[kind] += time.process_time() - began_s
            told[kind].append(list(_told(made, seen.outcomes)))
        now_s = instant.world.now_s
        record = [each for earlier in told["calibrated"] for each in earlier]
        told["calibrated"].append(list(_told(calibrated(made, _calibration(record, now_s)), seen.outcomes)))
    cost = ", ".join(f"{kind} {each / max(1, len(seen.instants)):.2f} s" for kind, each in cost_s.items())
    print(f"{name}: CPU time of a forecast: {cost}")
    print(
        f"{'of':8}{'ahead':14}{'count':>7}{'jobs':>6}"
        + "".join(f"{kind:>12}{'width':>13}{'pinball':>13}" for kind in kinds)
    )
    first = int(WARM_SHARE * len(seen.instants))
    scored = {kind: [_scored(each) for part in parts[first:] for each in part] for kind, parts in told.items()}
    found = {kind: accuracy(each) for kind, each in scored.items()}
    for milestone in Milestone:
        _print(milestone, "all", [found[kind][milestone].all for kind in kinds])
        lows = {each.low for kind in kinds for each in found[kind][milestone].by_horizon}
        for low in sorted(lows, key=lambda low: low or 0.0):
            rows = [_of_class(found[kind][milestone].by_horizon, low) for kind in kinds]
            _print(milestone, f">= {words_of(low or 0.0)}", rows)


def _of_class(tallies: Sequence[Tally], low: float | None) -> Tally | None:
    return next((each for each in tallies if each.low == low), None)


def _print(milestone: Milestone, which: str, tallies: Sequence[Tally | None]) -> None:
    last = tallies[-1]
    counts = f"{last.forecasts:7}{last.jobs:6}" if last is not None else f"{0:7}{0:6}"
    cells = "".join(
        f"{each.coverage_80:12.0%}{words_of(each.mean_width_s):>13}{words_of(each.mean_pinball_s):>13}"
        if each is not None
        else f"{'-':>12}{'-':>13}{'-':>13}"
        for each in tallies
    )
    print(f"{milestone:8}{which:14}{counts}{cells}", flush=True)


def _made(
    instant: Instant, policy: str, options: ForecastOptions, rhythm: Rhythm, failures: Failures = NO_FAILURES
) -> Forecast:
    try:
        return forecast(instant.world, make_policy(policy), instant.dump, options, rhythm=rhythm, failures=failures)
    except NoForecast:
        return Forecast(instant.world.now_s, 0, {})


def _told(made: Forecast, outcomes: Mapping[JobId, JobOutcome]) -> Iterator[Told]:
    for job, each in made.jobs.items():
        outcome = outcomes.get(job)
        if outcome is not None:
            yield from _of_job(made.now_s, each, outcome)


def _of_job(now_s: float, job: JobForecast, outcome: JobOutcome) -> Iterator[Told]:
    start_s = min((span.start_s for span in outcome.spans if span.start_s >= now_s), default=None)
    for milestone, shown, drawn, actual_s in (
        (Milestone.START, job.start, job.drawn_start, start_s),
        (Milestone.FINISH, job.finish, job.drawn_finish, outcome.finish_time_s),
    ):
        if shown is not None and actual_s is not None:
            yield Told(milestone, job.job, outcome.gpus, now_s, shown, drawn or shown, actual_s)


def _calibration(record: Sequence[Told], now_s: float) -> Calibration:
    """What :func:`service.db.forecasts.known_forecasts` reads."""
    known = [each for each in record if min(each.actual_s, each.shown.p90_s) < now_s]
    return Calibration(
        Outcome(each.milestone, _ahead_s(each), min(each.actual_s, now_s) - each.made_at_s)
        for each in known[-OUTCOMES_MAX:]
    )


def _ahead_s(told: Told) -> Sequence[float]:
    drawn = told.drawn
    return [at_s - told.made_at_s for at_s in (drawn.p10_s, drawn.p50_s, drawn.p90_s)]


def _scored(told: Told) -> Scored:
    p10_s, p50_s, p90_s = told.shown.p10_s, told.shown.p50_s, told.shown.p90_s
    found = score((p10_s, p50_s, p90_s), told.actual_s)
    return Scored(told.milestone, told.job, p50_s - told.made_at_s, told.gpus, found, p90_s - p10_s)


if __name__ == "__main__":
    main()
