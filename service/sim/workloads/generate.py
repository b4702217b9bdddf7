"""A seeded generator of synthetic workloads: recurring training programs of a few users, labelled synthetic.

It is for places where no trace may be shipped (the demo's history, examples, tests). Its shape follows public studies of GPU
clusters (:mod:`.population`): most runs of a program are near its median, and some are off by more than a factor of two (early
stops, longer trainings). Its numbers say nothing about a real cluster.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from service.sim.draws import normal, uniform
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.population import Family, Zipf, make_families, submissions
from service.sim.workloads.rhythm import Rhythm

__all__ = ["JOBS_MAX", "LABELS", "PROGRAMS", "USERS", "Family", "generate", "make_families"]

LABELS = {"synthetic": "true"}
JOBS_MAX = 10_000_000
"""More rows than any public trace; memory is about 300 bytes per row."""
PROGRAMS, USERS = 40, 12
"""Defaults: recurring programs at any time, and users."""

_OFF_SHARE = 0.12
"""Share of runs off by more than a factor of two without any cause in history; studies report 8 to 25%, drift included."""
_OFF_FACTORS = ((0.02, 0.45, "failed"), (0.02, 0.45, "killed"), (2.2, 8.0, "succeeded"))
_ITERATION_NOISE = 0.03
"""Log-normal spread of an iteration's time between runs of one program."""


def generate(
    seed: int,
    jobs: int,
    families: Sequence[Family] | None = None,
    *,
    gpus: int = 64,
    load: float = 0.7,
    programs: int = PROGRAMS,
    users: int = USERS,
    communication: bool = True,
    steady: bool = False,
) -> Workload:
    """``jobs`` runs with Poisson arrivals that offer ``load`` of ``gpus`` GPUs. Equal arguments give an equal workload.

    Without ``families`` a population of ``users`` with ``programs`` recurring programs at a time submits them: the load of
    the whole is exactly the one asked for, and unless ``steady`` its rate follows days and weeks (:mod:`.rhythm`), time 0
    being a Monday's midnight. ``families`` instead are run as given, earlier ones more often, at that load on average and
    at a steady rate. Without ``communication`` no job names a model, so that all placements are equally good.
    Raises ValueError for arguments out of range.
    """
    if not 0 <= jobs <= JOBS_MAX:
        raise ValueError(f"jobs must be from 0 to {JOBS_MAX} (got {jobs})")
    if not 0.0 < load <= 10.0:
        raise ValueError(f"load must be above 0 and at most 10 (got {load:g})")
    least = {"gpus": gpus, "programs": programs, "users": users, "families": 1 if families is None else len(families)}
    for name, number in least.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1 (got {number})")
    waits = [-math.log(uniform(seed, str(index), "arrival")) if index else 0.0 for index in range(jobs)]
    if families is not None:
        popularity = Zipf(len(families))
        chosen = (families[popularity.pick(uniform(seed, str(index), "choice"))] for index in range(jobs))
        rows = [_run(seed, index, family, 1.0) for index, family in enumerate(chosen)]
        mean_gpu_s = sum(share * family.gpu_s for share, family in zip(popularity.shares, families, strict=True))
        times_s = [mean_gpu_s / (load * gpus) * passed for passed in accumulate(waits)]
    else:
        # A gang of more than half the cluster would block it.
        drawn = submissions(seed, jobs, programs, users, max(1, gpus // 2))
        rows = [_run(seed, index, *submission) for index, submission in enumerate(drawn)]
        work_gpu_s = sum(row.gpus * row.duration_s for row in rows)
        times_s = _spread(list(accumulate(waits)), work_gpu_s / (load * gpus), steady)
    return Workload(
        f"synthetic, seed {seed}",
        tuple(
            replace(row, submit_time_s=round(at_s, 3), model=row.model if communication else "")
            for row, at_s in zip(rows, times_s, strict=True)
        ),
        labels=LABELS,
    )


def _spread(passed: list[float], span_s: float, steady: bool) -> list[float]:
    """Arrivals over ``span_s``, from the times of a Poisson process of any rate."""
    if len(passed) < 2:
        return passed
    if steady:
        return [span_s * (at / passed[-1]) for at in passed]
    return Rhythm().spread(passed, span_s)


def _run(seed: int, index: int, family: Family, drift: float) -> WorkloadJob:
    """One run of a program whose median has changed by the factor ``drift``; its submission time is not set."""
    name = str(index)
    factor = math.exp(family.sigma * normal(seed, name, "iterations"))
    final_state = "succeeded"
    off = uniform(seed, name, "off")
    if off < _OFF_SHARE:
        least, most, final_state = _OFF_FACTORS[int(off / _OFF_SHARE * len(_OFF_FACTORS))]
        factor = least * (most / least) ** uniform(seed, name, "factor")
    iterations = max(1, round(family.iterations_median * drift * factor))
    iteration_s = family.iteration_s * math.exp(_ITERATION_NOISE * normal(seed, name, "speed"))
    if family.walltime_s is not None and iterations * iteration_s > family.walltime_s:
        iterations, final_state = max(1, int(family.walltime_s / iteration_s)), "killed"
    return WorkloadJob(
        job_id=f"synthetic-{index + 1:06d}",
        submit_time_s=0.0,
        gpus=family.gpus,
        duration_s=round(iterations * iteration_s, 6),
        user=family.user,
        project=family.project,
        name=family.name,
        iterations=iterations,
        model=family.model,
        declared_iterations=family.declared_iterations,
        walltime_s=family.walltime_s,
        final_state=final_state,
    )
