"""Prints what predictions are worth to the order of jobs: mean JCT with trained estimates, the oracle's, and without any.

python -m benchmarks.ranking --trace workload.csv [more.csv ...] [--first 2000] [--skip 0] [--every 1] [--bounds]
        [--load 0.85 | --servers 8] [--policy asrpt] [--seed 0]

Each row of a table is one simulation of the same jobs on as many eight-GPU servers as make the load. Where the largest gang
needs more servers than that, the jobs come faster instead: times between submissions are shortened until they make the load.
With ``--servers`` the cluster is what it is, and gangs that it cannot hold are left out. ``trained`` learns from what has ended
in the simulation, as the service does; ``las`` ranks by attained service; ``none`` is the policy under test without estimates.

``--bounds`` says what the rest of the way to the oracle is made of. What ``trained`` said of each job is replayed with the
truth in its place for the jobs of one history bucket at a time (how often the program had run before), then for the jobs that
were off by more than a factor of two, of four either way: the row that gains most names the errors that cost most.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from benchmarks.workloads import GPUS_A_SERVER, cluster_of, load_of, servers_for
from policies.model.cluster import Cluster
from policies.model.estimate import EndedJob, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.ids import JobId
from policies.registry import make_policy
from predictor.features import NAMES
from predictor.recurrence import BUCKETS, bucket_of
from service.engine.ports import Predictor
from service.sim import experiment
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import SimJob, SimJobs, prepare
from service.sim.predictors import make_predictor
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload

_RUNS = NAMES.index("recurrence_gpus.log_count")


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of a job at its submission, and of how many past runs."""

    estimate: Estimate
    bucket: int

    def log_error(self, job: SimJob) -> float:
        """ln(median / truth), in the estimate's unit."""
        return math.log(self.estimate.median / _truth(job, self.estimate.unit))


def _truth(job: SimJob, unit: Unit) -> float:
    return job.row.duration_s if unit is Unit.SERVICE_S or job.iterations is None else float(job.iterations)


class Listening:
    """A predictor whose answers are written down. Implements :class:`service.engine.ports.Predictor`."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner
        self.said: dict[JobId, Said] = {}

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """What the inner one says."""
        answers = self._inner.predict(now_s, requests)
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None:
                runs = round(math.expm1(answer.features[_RUNS])) if answer.features else 0
                self.said[request.job] = Said(answer.estimate, bucket_of(runs))
        return answers

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """Passed on."""
        return self._inner.revise(now_s, reported)

    def ended(self, label: EndedJob) -> None:
        """Passed on."""
        self._inner.ended(label)


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
    heard: list[Listening] = []

    def listening(name: str, rows: Sequence[SimJob], of: int, present: Mapping[JobId, SimJob] | None) -> Predictor:
        heard.append(Listening(make_predictor(name, rows, of, present)))
        return heard[-1]

    table = _Table(jobs, cluster, options)
    table.oracle_s = table.row(f"{policy}, oracle", policy, "oracle")
    table.las_s = table.row("las", "las", "none")
    table.row(f"{policy}, none", policy, "none")
    # The simulator makes its predictor by name; what it says of each job is wanted here.
    with mock.patch.object(experiment, "make_predictor", listening):
        table.row(f"{policy}, trained", policy, "trained")
    said = heard[0].said
    _errors(jobs.jobs, said)
    if bounds:
        for name, chosen in _swaps().items():
            table.row(f"as said, {name}", policy, "recorded", _swapped(jobs, said, chosen))


Chosen = Callable[[Said, float], bool]


def _swaps() -> dict[str, Chosen]:
    found: dict[str, Chosen] = {"nothing": lambda said, error: False}
    for bucket, runs in enumerate(BUCKETS):
        found[f"truth of {runs} runs"] = _in_bucket(bucket)
    for factor in (2, 4):
        found[f"truth of < 1/{factor}"] = _below(-math.log(factor))
        found[f"truth of > {factor}x"] = _above(math.log(factor))
    return found


def _in_bucket(bucket: int) -> Chosen:
    return lambda said, error: said.bucket == bucket


def _below(limit: float) -> Chosen:
    return lambda said, error: error < limit


def _above(limit: float) -> Chosen:
    return lambda said, error: error > limit


def _swapped(jobs: SimJobs, said: Mapping[JobId, Said], chosen: Chosen) -> SimJobs:
    """The jobs as they were predicted, but for those that are chosen: of them the truth is known."""
    found = []
    for job in jobs.jobs:
        each = said.get(job.id)
        estimate = each.estimate if each is not None else None
        if each is not None and chosen(each, each.log_error(job)):
            estimate = replace(each.estimate, points=(_truth(job, each.estimate.unit),), trusted=True)
        found.append(replace(job, predicted=estimate))
    return SimJobs(found, jobs.skipped)


def _errors(jobs: Sequence[SimJob], said: Mapping[JobId, Said]) -> None:
    print(f"{'':10}{'past runs':>12}{'jobs':>8}{'of work':>9}{'within 2x':>11}{'< 1/4':>8}{'> 4x':>7}{'trusted':>9}")
    work_s = sum(job.row.gpus * job.row.duration_s for job in jobs)
    for bucket, runs in enumerate(BUCKETS):
        own = [(job, said[job.id]) for job in jobs if job.id in said and said[job.id].bucket == bucket]
        if own:
            errors = [each.log_error(job) for job, each in own]
            share = sum(job.row.gpus * job.row.duration_s for job, _ in own) / work_s
            close, low, high, trusted = (
                sum(flags) / len(own)
                for flags in (
                    [abs(error) <= math.log(2.0) for error in errors],
                    [error < -math.log(4.0) for error in errors],
                    [error > math.log(4.0) for error in errors],
                    [each.estimate.trusted for _, each in own],
                )
            )
            print(
                f"{'':10}{runs:>12}{len(own):8,}{share:9.0%}{close:11.2f}{low:8.2f}{high:7.2f}{trusted:9.0%}",
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
        result = run_jobs(jobs or self.jobs, self.cluster, make_policy(policy), predictor, self.options).result
        mean_s = result.mean_jct_s
        print(
            f"{label:34}{mean_s:12,.0f}{mean_s / self.oracle_s:10.3f}{mean_s / self.las_s:8.3f}"
            f"{result.mean_slowdown:10.1f}{result.preemptions:11,}",
            flush=True,
        )
        return mean_s


if __name__ == "__main__":
    main()
