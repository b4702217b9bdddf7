"""Prints how right forecasts are on generated work: coverage and errors by horizon, with jobs arriving all the time.

python -m benchmarks.forecast_accuracy [--jobs 1500] [--policies fifo,asrpt] [--load 0.8] [--tellings 60] [--shared-error 0.25]

A simulated service on 8 servers of 8 GPUs learns as it goes (predictor ``trained``). In the second half of the arrivals the
queue is forecast at evenly spaced instants, as the service does it; what then happens, later arrivals included, is the truth.
``--shared-error 0`` draws the jobs' totals independently. Rows: forecasts, share of them inside 80 % intervals, median bias
and absolute error, that over the horizon.
"""

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId
from policies.registry import make_policy
from service.domain.forecast_scores import Milestone, Scored, Tally, accuracy, score
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast, forecast
from service.history.snapshot import take
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.jobs import SimJob, prepare
from service.sim.results import JobOutcome
from service.sim.workloads.generate import generate

SERVERS, GPUS = 8, 8


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--policies", default="fifo,asrpt", help="policies by name")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--tellings", type=int, default=60, help="forecasts of the whole queue")
    parser.add_argument("--samples", type=int, default=ForecastOptions().samples)
    parser.add_argument("--shared-error", type=float, default=ForecastOptions().shared_error)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with _quiet("predictor"):
        _measure(arguments)


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


def _measure(arguments: argparse.Namespace) -> None:
    print(
        f"{'policy':8}{'of':>8}  {'ahead':16}{'count':>7}{'jobs':>6}{'inside':>8}{'bias s':>9}{'error s':>9}{'of horizon':>12}"
    )
    options = ForecastOptions(arguments.samples, shared_error=arguments.shared_error)
    cluster = Cluster("benchmark", tuple(Server(f"s{number}", GPUS) for number in range(SERVERS)))
    workload = generate(arguments.seed, arguments.jobs, gpus=SERVERS * GPUS, load=arguments.load, communication=False)
    jobs = prepare(workload, cluster).jobs
    for policy in arguments.policies.split(","):
        scored = list(_scored(jobs, cluster, policy, arguments.tellings, options))
        for milestone, found in accuracy(scored).items():
            if found.all is not None:
                print(_line(policy, milestone, "all", found.all))
            for tally in found.by_horizon:
                print(
                    _line(policy, milestone, f"{tally.low or 0:g}-{tally.high or float('inf'):g} s", tally), flush=True
                )


def _line(policy: str, milestone: Milestone, which: str, tally: Tally) -> str:
    relative = "-" if tally.median_relative_error is None else f"{tally.median_relative_error:.0%}"
    return (
        f"{policy:8}{milestone:>8}  {which:16}{tally.forecasts:7}{tally.jobs:6}{tally.coverage_80:8.0%}"
        f"{tally.median_error_s:9.0f}{tally.median_absolute_error_s:9.0f}{relative:>12}"
    )


def _scored(
    jobs: Sequence[SimJob], cluster: Cluster, policy: str, tellings: int, options: ForecastOptions
) -> Iterator[Scored]:
    simulator = Simulator(jobs, cluster, make_policy(policy), "trained", SimulationOptions(keep_spans=True))
    first_s, last_s = (jobs[int(share * (len(jobs) - 1))].row.submit_time_s for share in (0.5, 1.0))
    told: list[Forecast] = []
    while simulator.step():
        now_s = simulator.clock.now_s()
        due_s = first_s + (last_s - first_s) * len(told) / tellings
        if len(told) < tellings and now_s >= due_s:
            try:
                world, dump = take(simulator.engine.world, now_s), simulator.engine.dump()
                told.append(forecast(world, make_policy(policy), dump, options))
            except NoForecast:
                told.append(Forecast(now_s, 0, {}))
    truth = {outcome.job_id: outcome for outcome in simulator.outcomes()}
    outcomes = {job.id: truth[job.row.job_id] for job in jobs if job.row.job_id in truth}
    for each in told:
        yield from _of_one(each, outcomes)


def _of_one(told: Forecast, outcomes: dict[JobId, JobOutcome]) -> Iterator[Scored]:
    for job, each in told.jobs.items():
        outcome = outcomes.get(job)
        if outcome is None:
            continue
        start_s = min((span.start_s for span in outcome.spans if span.start_s >= told.now_s), default=None)
        for milestone, spread, actual_s in (
            (Milestone.START, each.start, start_s),
            (Milestone.FINISH, each.finish, outcome.finish_time_s),
        ):
            if spread is not None and actual_s is not None:
                found = score((spread.p10_s, spread.p50_s, spread.p90_s), actual_s)
                yield Scored(milestone, job, spread.p50_s - told.now_s, outcome.gpus, found)


if __name__ == "__main__":
    main()
