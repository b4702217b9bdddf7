"""Prints what predictions are worth to the order of jobs: mean JCT with trained estimates, the oracle's, and without any.

python -m benchmarks.ranking --trace workload.csv [more.csv ...] [--first 2000] [--skip 0] [--every 1] [--bounds]
        [--load 0.85 | --servers 8] [--policy asrpt] [--seed 0]

Each row of a table is one simulation of the same jobs on as many eight-GPU servers as make the load. Where the largest gang
needs more servers than that, the jobs come faster instead: times between submissions are shortened until they make the load.
With ``--servers`` the cluster is what it is, and gangs that it cannot hold are left out. ``trained`` learns from what has ended
in the simulation, as the service does; ``las`` ranks by attained service; ``none`` is the policy under test without estimates.

``--bounds`` says what the rest of the way to the oracle is made of. What ``trained`` said first of each job is replayed with the
truth in its place for the jobs of one history bucket at a time (how often the program had run before), then for the jobs that
were off by more than a factor of two, of four either way: the row that gains most names the errors that cost most.
"""

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.workloads import GPUS_A_SERVER, cluster_of, load_of, servers_for
from policies.model.cluster import Cluster
from policies.registry import make_policy
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import SimJobs, prepare
from service.sim.results import Result
from service.sim.value import PARTS, Told, gpu_hours, tell
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, nargs="+", required=True, help="workload tables")
    parser.add_argument("--first", type=int, default=2_000, help="jobs of each table")
    parser.add_argument("--skip", type=int, default=0, help="jobs of each table to leave out before those")
    parser.add_argument("--every", type=int, default=1, help="take every so manieth job, over a longer time")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--load", type=float, default=0.85, help="GPU-seconds of work over those that there are")
    size.add_argument("--servers", type=int, help="servers of eight GPUs, whatever load that makes")
    parser.add_argument("--policy", default="asrpt")
    parser.add_argument("--bounds", action="store_true", help="also what the way to the oracle is made of")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for trace in arguments.trace:
        workload = read_workload(trace, first=arguments.skip + arguments.first * arguments.every)
        workload = replace(workload, jobs=workload.jobs[arguments.skip :: arguments.every])
        if arguments.servers is None:
            servers = servers_for(workload, arguments.load)
            workload = hastened(workload, servers, arguments.load)
        else:
            servers = arguments.servers
            held = tuple(job for job in workload.jobs if job.gpus <= GPUS_A_SERVER * servers)
            workload = replace(workload, jobs=held)
        measure(workload, servers, arguments.policy, arguments.seed, bounds=arguments.bounds)


def hastened(workload: Workload, servers: int, load: float) -> Workload:
    """The workload with times between submissions shortened until it offers the load; as it is where it offers it already."""
    ratio = load_of(workload, GPUS_A_SERVER * servers) / load
    if ratio >= 0.99:
        return workload
    start_s = workload.jobs[0].submit_time_s
    return replace(
        workload,
        jobs=tuple(
            replace(job, submit_time_s=start_s + ratio * (job.submit_time_s - start_s)) for job in workload.jobs
        ),
    )


def measure(workload: Workload, servers: int, policy: str, seed: int, *, bounds: bool) -> None:
    """Print the table of one workload."""
    cluster = cluster_of(servers, 100.0)
    jobs = prepare(workload, cluster)
    load = load_of(workload, GPUS_A_SERVER * servers)
    print(f"{workload.name}: {len(jobs.jobs):,} jobs on {servers} servers of {GPUS_A_SERVER} GPUs, load {load:.2f}")
    print(f"{'':34}{'mean JCT s':>12}{'/ oracle':>10}{'/ las':>8}{'slowdown':>10}{'preempted':>11}", flush=True)
    options = SimulationOptions(seed=seed)
    table = _Table(jobs, cluster, options)
    table.oracle_s = table.row(f"{policy}, oracle", policy, "oracle")
    table.las_s = table.row("las", "las", "none")
    table.row(f"{policy}, none", policy, "none")
    told, trained = tell(jobs, cluster, make_policy(policy), options)
    table.show(f"{policy}, trained", trained.result)
    _errors(told)
    if bounds:
        table.row("as said", policy, "recorded", told.as_said())
        for name, chosen in PARTS.items():
            table.row(f"truth for {name}", policy, "recorded", told.with_truth(chosen))


def _errors(told: Told) -> None:
    print(f"{'':10}{'past runs':>12}{'jobs':>8}{'of work':>9}{'within 2x':>11}{'< 1/4':>8}{'> 4x':>7}{'trusted':>9}")
    work = gpu_hours(told.jobs.jobs)
    for each in told.accuracy():
        print(
            f"{'':10}{each.past_runs:>12}{each.jobs:8,}{each.gpu_hours / work:9.0%}{each.within_2x:11.2f}"
            f"{each.below_quarter:8.2f}{each.above_4x:7.2f}{each.trusted:9.0%}",
            flush=True,
        )


@dataclass(slots=True)
class _Table:
    jobs: SimJobs
    cluster: Cluster
    options: SimulationOptions
    oracle_s: float = math.nan
    las_s: float = math.nan

    def row(self, label: str, policy: str, predictor: str, jobs: SimJobs | None = None) -> float:
        """Simulate and print; returns the mean JCT in seconds."""
        return self.show(
            label, run_jobs(jobs or self.jobs, self.cluster, make_policy(policy), predictor, self.options).result
        )

    def show(self, label: str, result: Result) -> float:
        """Print one run; returns the mean JCT in seconds."""
        mean_s = result.mean_jct_s
        print(
            f"{label:34}{mean_s:12,.0f}{mean_s / self.oracle_s:10.3f}{mean_s / self.las_s:8.3f}"
            f"{result.mean_slowdown:10.1f}{result.preemptions:11,}",
            flush=True,
        )
        return mean_s


if __name__ == "__main__":
    main()
