"""Prints how much estimates gain while jobs wait and run.

python -m benchmarks.revision [--trace workload.csv ...] [--first 6000] [--skip 0] [--sweeps 60] [--runs 30] [--seed 0]

Jobs are submitted and end as in the table, and a predictor that trains itself learns from them. Of the last 40% the total is
estimated at the submission, at the start, and after 10, 25 and 50% of the running time, in three ways: ``submission`` is the
estimate as it was made at the submission; ``survival`` leaves out of it the totals that the job has exceeded, as ranks do;
``revised`` does so with the estimate as the engine refreshes it when runs of the same program end. Per time and way: mean
|ln(estimate / total)|, the share of jobs within a factor of two, and the mean error in seconds.

Without a trace it simulates ``--sweeps`` of new programs, each of ``--runs`` that are submitted at once, at load 0.85: the mean
JCT under ``asrpt`` where estimates are refreshed, where the first ones stay, without any, and with the truth. Totals of a
sweep's runs differ by a third or so, those of sweeps by a factor of four.
"""

import argparse
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.workloads import GPUS_A_SERVER, cluster_of
from policies.model.estimate import EndedJob, Estimate, PredictionRequest
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.rank import OverRun, remaining_units
from policies.registry import make_policy
from predictor.retraining import RetrainingPredictor
from predictor.training import TEST_RATIO
from service.engine.ports import Predictor
from service.sim import experiment
from service.sim.jobs import prepare
from service.sim.predictors import ListenedPredictor
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import read_workload

SHARES = (0.0, 0.1, 0.25, 0.5)
"""Of the running time, after which a job is looked at."""
LOAD, SERVERS = 0.85, 4
WAYS = ("submission", "survival", "revised")
_END, _LOOK, _SUBMIT = range(3)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, nargs="+", default=(), help="workload tables")
    parser.add_argument("--first", type=int, default=6_000, help="jobs of each table")
    parser.add_argument("--skip", type=int, default=0, help="jobs of each table to leave out before those")
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--runs", type=int, default=30, help="of each sweep")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.trace:
        simulate(sweeps(arguments.sweeps, arguments.runs, arguments.seed), arguments.seed)
    for trace in arguments.trace:
        jobs = read_workload(trace, first=arguments.skip + arguments.first).jobs[arguments.skip :]
        print(f"{trace.stem}: {len(jobs):,} jobs")
        print(f"{'':16}{'jobs':>8}" + "".join(f"{way:>12}{'in 2x':>8}{'seconds':>10}" for way in WAYS), flush=True)
        found = list(looks(jobs, arguments.seed))
        for share in SHARES:
            here = [(total, estimates) for at, total, estimates in found if at == share]
            row = f"{f'after {share:.0%}' if share else 'at the start':16}{len(here):8,}"
            for way in range(len(WAYS)):
                errors = [abs(math.log(estimates[way] / total)) for total, estimates in here]
                seconds = [abs(estimates[way] - total) for total, estimates in here]
                row += (
                    f"{sum(errors) / len(errors):12.3f}{sum(each <= math.log(2.0) for each in errors) / len(errors):8.3f}"
                    f"{sum(seconds) / len(seconds):10,.0f}"
                )
            print(row, flush=True)


def looks(jobs: Sequence[WorkloadJob], seed: int) -> Iterator[tuple[float, float, tuple[float, ...]]]:
    """(share of the running time, total seconds, the estimate in each of :data:`WAYS`) of the last 40% of the jobs."""
    predictor = RetrainingPredictor(seed)
    requests: dict[JobId, PredictionRequest] = {}
    first: dict[JobId, Estimate] = {}
    newest: dict[JobId, Estimate] = {}
    order = count()
    tested = int(len(jobs) * (1.0 - TEST_RATIO))
    events: list[tuple[float, int, int, int, float]] = []
    for number, job in enumerate(jobs):
        heapq.heappush(events, (job.submit_time_s, _SUBMIT, next(order), number, 0.0))
    while events:
        now_s, kind, _, number, share = heapq.heappop(events)
        job, job_id = jobs[number], JobId(number + 1)
        if kind == _SUBMIT:
            requests[job_id] = PredictionRequest(job_id, _spec(job), now_s)
            [answer] = predictor.predict(now_s, [requests[job_id]])
            if answer is not None:
                first[job_id] = newest[job_id] = answer.estimate
            ended_at_s = _ended_at_s(job)
            heapq.heappush(events, (ended_at_s, _END, next(order), number, 1.0))
            if number >= tested and answer is not None:
                for each in SHARES:
                    at_s = ended_at_s - (1.0 - each) * job.duration_s
                    heapq.heappush(events, (at_s, _LOOK, next(order), number, each))
        elif kind == _LOOK:
            done_s = share * job.duration_s
            yield (
                share,
                job.duration_s,
                (
                    first[job_id].median,
                    _surviving(first[job_id], done_s),
                    _surviving(newest[job_id], done_s),
                ),
            )
        else:
            request = requests.pop(job_id)
            spent_s = job.duration_s
            label = EndedJob(job_id, request.spec, request.submitted_at_s, now_s, None, spent_s, job.final_state)
            outdated = [requests[each] for each in predictor.ended(label) if each in first and each in requests]
            for asked, answer in zip(outdated, predictor.predict(now_s, outdated), strict=True):
                if answer is not None:
                    newest[asked.job] = answer.estimate


class Unrefreshed(ListenedPredictor):
    """The inner predictor, never asked again about a job."""

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """Learn only."""
        super().ended(label)
        return ()


def sweeps(count: int, runs: int, seed: int) -> Workload:
    """Sweeps of new programs of ten users, in random order of size; the time between them makes the load."""
    draw = np.random.default_rng(seed)
    jobs: list[WorkloadJob] = []
    for sweep in range(count):
        median_s, gpus = math.exp(draw.normal(7.0, math.log(4.0))), int(draw.choice([1, 2, 4]))
        jobs += [
            WorkloadJob(
                f"{sweep}.{run}",
                float(sweep),
                user=f"user{sweep % 10}",
                name=f"sweep{sweep}",
                gpus=gpus,
                duration_s=median_s * math.exp(draw.normal(0.0, 0.3)),
            )
            for run in range(runs)
        ]
    apart_s = sum(job.gpus * job.duration_s for job in jobs) / (LOAD * SERVERS * GPUS_A_SERVER * count)
    return Workload("sweeps", tuple(replace(job, submit_time_s=apart_s * job.submit_time_s) for job in jobs))


def simulate(workload: Workload, seed: int) -> None:
    """Print the mean JCT with refreshed estimates, with first ones, without any, and with the truth."""
    cluster = cluster_of(SERVERS, 100.0)
    print(f"{len(workload.jobs):,} jobs of {workload.name} on {SERVERS} servers of {GPUS_A_SERVER} GPUs, load {LOAD}")
    made = experiment.make_predictor

    def unrefreshed(*arguments: Any) -> Predictor:
        return Unrefreshed(made(*arguments), lambda job, prediction: None)

    rows: list[tuple[str, str, Callable[..., Predictor]]] = [
        ("refreshed", "trained", made),
        ("first ones", "trained", unrefreshed),
        ("none", "none", made),
        ("truth", "oracle", made),
    ]
    for label, predictor, make in rows:
        with mock.patch.object(experiment, "make_predictor", make):
            options = experiment.SimulationOptions(seed=seed)
            jobs = prepare(workload, cluster)
            ran = experiment.run_jobs(jobs, cluster, make_policy("asrpt"), predictor, options)
        print(f"{label:12}{ran.result.mean_jct_s:12,.0f} s", flush=True)


def _spec(job: WorkloadJob) -> JobSpec:
    return JobSpec(
        job.name, job.user, job.gpus, project=job.project, model=job.model or None, walltime_s=job.walltime_s
    )


def _ended_at_s(job: WorkloadJob) -> float:
    return job.end_time_s if job.end_time_s is not None else job.submit_time_s + job.duration_s


def _surviving(estimate: Estimate, done_s: float) -> float:
    """The median of the totals that are not exceeded yet."""
    alive = [point for point in estimate.points if point > done_s]
    if not alive:
        return done_s + remaining_units(estimate.points, done_s, OverRun.DOUBLE)[0]
    return alive[len(alive) // 2]


if __name__ == "__main__":
    main()
