"""Prints what a forecast of a whole queue costs, and what looking at ranks less often saves and changes.

python -m benchmarks.forecast [--jobs 100 500 2000] [--policies asrpt,fifo] [--samples 16] [--servers 8] [--points 20] [--seed 1]

A queue of jobs with log-normal distributions of ``--points`` points, on servers of eight GPUs, all of them waiting. CPU
seconds of this process. ``exact`` follows every wake that the policy asks for, ``told`` is what the service does: its ratio
to exact, and by how much it moves the p50 of the jobs' ends (median over jobs, and of their mean).
"""

import argparse
import time
from dataclasses import replace

import numpy as np

from benchmarks.calibration import calibrate, line
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec, PreemptionSignal
from policies.registry import make_policy
from service.engine.record import JobRecord, ServerRecord
from service.engine.world import Costs
from service.forecast.forecast import Forecast, ForecastOptions, forecast
from service.history.snapshot import WorldSnapshot

GANGS = (1, 1, 1, 1, 2, 2, 4, 4, 8, 16)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--policies", default="asrpt,fifo", help="policies by name")
    parser.add_argument("--samples", type=int, default=ForecastOptions().samples)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    unit_s = calibrate()
    print(line(unit_s))
    print(
        f"{'policy':10}{'jobs':>7}{'futures':>9}{'CPU s':>8}{'units':>8}{'ms a job and future':>21}"
        f"{'of exact':>10}{'p50 moves':>11}{'mean moves':>12}"
    )
    for policy in arguments.policies.split(","):
        for jobs in arguments.jobs:
            world = queue(jobs, arguments.servers, arguments.points, arguments.seed)
            options = ForecastOptions(arguments.samples, jobs_max=jobs)
            told_s, told = _timed(world, policy, options)
            exact_s, exact = _timed(world, policy, replace(options, wake_slack=0.0))
            before, after = _ends_s(exact), _ends_s(told)
            print(
                f"{policy:10}{jobs:7,}{told.samples:9}{told_s:8.2f}{told_s / unit_s:8.1f}"
                f"{1000.0 * told_s / (jobs * told.samples):21.3f}{told_s / exact_s:10.2f}"
                f"{float(np.median(np.abs(after / before - 1.0))):11.2%}{float(after.mean() / before.mean() - 1.0):+12.2%}",
                flush=True,
            )


def queue(jobs: int, servers: int, points: int, seed: int) -> WorldSnapshot:
    """Waiting jobs, each with a distribution of its own."""
    draw = np.random.default_rng(seed)
    cluster = Cluster("c", tuple(Server(f"s{number}", 8) for number in range(servers)))
    records = []
    for number in range(1, jobs + 1):
        totals = float(draw.lognormal(8.0, 1.5)) * draw.lognormal(0.0, 0.7, points)
        spec = JobSpec(f"j{number}", f"u{number % 7}", int(draw.choice(GANGS)), preemption=PreemptionSignal())
        estimate = Estimate(tuple(sorted(totals.tolist())), Unit.SERVICE_S, "drawn", seconds_per_unit=1.0)
        records.append(JobRecord(JobId(number), spec, float(number - jobs), estimate=estimate))
    return WorldSnapshot(0.0, cluster, Costs(), tuple(ServerRecord() for _ in cluster.servers), tuple(records))


def _timed(world: WorldSnapshot, policy: str, options: ForecastOptions) -> tuple[float, Forecast]:
    started_s = time.process_time()
    found = forecast(world, make_policy(policy), None, options)
    return time.process_time() - started_s, found


def _ends_s(found: Forecast) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([each.finish.p50_s for each in found.jobs.values() if each.finish is not None])


if __name__ == "__main__":
    main()
