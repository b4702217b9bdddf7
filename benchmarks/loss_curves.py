"""Prints how much a job's loss curve takes off the error of its estimate while it runs.

python -m benchmarks.loss_curves [--programs 30] [--runs 50] [--noise 0.03]
python -m benchmarks.loss_curves --simulate [--seed 0]

Generated programs, each with ``--runs`` runs one after the other, whose hyperparameters decide how fast and how far the loss
falls (a power law with ``--noise``). What ends a run:

- ``target``: the loss is low enough;
- ``patience``: it has hardly fallen lately;
- ``pruned``: after a sixteenth or a quarter of the iterations it is among the worse 60% of the runs so far (successive halving);
- ``unrelated``: a number that has nothing to do with the loss;
- ``fixed``: always the same number;
- ``argument``: the number that the command line says.

The predictor of the service predicts each run at its submission, is told its losses while it runs, and learns from its end. Of
the runs from the 16th on: mean |ln(estimate / total)| after 10, 25 and 50% of the iterations, with the totals left out that the
job has exceeded. ``survival`` is the prediction as it was made at the submission, ``losses`` the one that follows the loss
curve; then the mean pinball loss of ``losses`` over that of ``survival`` at eleven levels.

``--simulate`` submits four programs of each kind in sweeps of ten runs, at load 0.9 under ``asrpt`` with a predictor that trains
itself. It prints the mean JCT where programs report their losses, where they do not, without estimates, and with the truth.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.workloads import GPUS_A_SERVER, cluster_of
from policies.model.estimate import EndedJob, Estimate, LossCurve, PredictionRequest, Reported, with_loss
from policies.model.ids import AttemptId, JobId
from policies.model.job import JobSpec
from policies.rank import OverRun, remaining_units
from policies.registry import make_policy
from predictor.intervals import quantile_of
from predictor.serving import LivePredictor
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus
from service.sim import experiment
from service.sim.clock import Priority
from service.sim.executor import SimulatedExecutor
from service.sim.jobs import prepare
from service.sim.work import Run
from service.sim.workloads.model import Workload, WorkloadJob

SHARES = (0.1, 0.25, 0.5)
TESTED_FROM = 15
LEVELS = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
S_PER_ITERATION = 0.5
KINDS = ("target", "patience", "pruned", "unrelated", "fixed", "argument")
PROGRAMS_OF_A_KIND, SWEEP, LOAD, SERVERS, SIMULATED_S_PER_ITERATION = 4, 10, 0.9, 2, 5.0

Falls = Callable[[float], float]


class Program:
    """The runs of one program: each has a total and a loss by iteration."""

    def __init__(self, ends_by: str, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._ends_by = ends_by
        self._scale = math.exp(self._draw.normal(6.0, 1.0))
        self._height, self._power = self._draw.uniform(1.0, 5.0), self._draw.uniform(0.3, 1.0)
        self._patience = self._scale * self._draw.uniform(0.1, 0.5)
        self._rungs: dict[float, list[float]] = defaultdict(list)

    def run(self) -> tuple[float, Falls]:
        """The iterations of the next run, and its loss without noise."""
        pace = 0.05 * self._scale * math.exp(self._draw.normal(0.0, 0.6))
        floor = 0.0 if self._ends_by == "target" else self._draw.uniform(0.2, 0.5)

        def loss(iteration: float) -> float:
            return float(floor + self._height * (1.0 + iteration / pace) ** -self._power)

        return max(3.0, round(self._total(pace, loss))), loss

    def _total(self, pace: float, loss: Falls) -> float:
        if self._ends_by == "target":
            return float(pace * (0.15 ** (-1.0 / self._power) - 1.0))
        if self._ends_by == "patience":
            total = self._patience
            while loss(total - self._patience) - loss(total) > 0.02 * self._height:
                total *= 1.02
            return total
        if self._ends_by == "pruned":
            for rung in (self._scale / 16.0, self._scale / 4.0):
                here = self._rungs[rung]
                here.append(loss(rung))
                if len(here) > 3 and here[-1] > np.quantile(here[:-1], 0.4):
                    return rung
        spread = {"unrelated": 0.5, "fixed": 0.02, "argument": 1.0}.get(self._ends_by, 0.0)
        return self._scale * math.exp(spread * self._draw.normal())


def curve_of(total: float, loss: Falls, noise: float, draw: np.random.Generator) -> list[LossCurve]:
    """The curve after each of its points, of a run that reports its loss after every iteration."""
    curves: list[LossCurve] = []
    iteration = 1.0
    while iteration <= total:
        noisy = loss(iteration) * math.exp(noise * draw.normal())
        grown = with_loss(curves[-1] if curves else None, iteration, noisy)
        if grown is not None:
            curves.append(grown)
        iteration += 1.0 if iteration < 1e4 else 100.0
    return curves


def looks(ends_by: str, seed: int, runs: int, noise: float) -> Iterator[tuple[float, float, Estimate, Estimate]]:
    """(share of the total, total, estimate at the submission, estimate by the losses) of the tested runs."""
    program, predictor, draw = Program(ends_by, seed), LivePredictor(), np.random.default_rng([seed, 1])
    for number in range(runs):
        total, loss = program.run()
        said_total = ("--steps", f"{total:.0f}") if ends_by == "argument" else ()
        spec = JobSpec("program", "user", 1, command=("python", "train.py", *said_total))
        curves = curve_of(total, loss, noise, draw)
        asked = PredictionRequest(JobId(number + 1), spec, 1e6 * number)
        [said] = predictor.predict(asked.submitted_at_s, [asked])
        now = first = None if said is None else said.estimate
        for curve in curves:
            done, ahead = curve.iterations[-1], curves[min(len(curves) - 1, len(curve.iterations))]
            if now is not None and first is not None:
                report = Reported(
                    asked,
                    now,
                    done,
                    S_PER_ITERATION * done,
                    None,
                    None,
                    S_PER_ITERATION,
                    None,
                    curve,
                    curve_counts=True,
                )
                [answer] = predictor.revise(asked.submitted_at_s, [report])
                now = now if answer is None else answer.estimate
                for share in SHARES:
                    if number >= TESTED_FROM and done <= share * total < ahead.iterations[-1]:
                        yield share, total, first, now
        ended_at_s, spent_s = asked.submitted_at_s + S_PER_ITERATION * total, S_PER_ITERATION * total
        label = EndedJob(asked.job, spec, asked.submitted_at_s, ended_at_s, total, spent_s, "", S_PER_ITERATION)
        predictor.ended(replace(label, loss_curve=curves[-1]))


def _surviving(estimate: Estimate, done: float) -> np.ndarray:
    """Log quantiles of the totals that are not exceeded yet, at :data:`LEVELS`."""
    alive = [point for point in estimate.points if point > done]
    return quantile_of(np.log(alive or [done + remaining_units(estimate.points, done, OverRun.DOUBLE)[0]]), LEVELS)


class LossReports(SimulatedExecutor):
    """Programs report their losses: those of ``curves``, by the number of the job."""

    def __init__(self, *arguments: Any, curves: Mapping[JobId, LossCurve]) -> None:
        super().__init__(*arguments)
        self._curves = curves

    def _begin(self, attempt: AttemptId, run: Run) -> None:
        super()._begin(attempt, run)
        curve, total = self._curves[run.launch.job], run.truth.iterations
        if run.status is AttemptStatus.RUNNING and total is not None:
            done = run.truth.iteration_at(run.truth.done_s) or 0.0
            for iteration, loss in zip(curve.iterations, curve.losses, strict=True):
                if done < iteration < total:
                    work_s = (iteration - done) / total * run.truth.duration_s
                    at_s = run.progress_from_s + work_s * run.stretch
                    self._clock.schedule(at_s, Priority.START, partial(self._progress, attempt, run, iteration, loss))

    def _progress(self, attempt: AttemptId, run: Run, iteration: float, loss: float) -> None:
        if run.status is AttemptStatus.RUNNING:
            self._report(Report(ReportKind.PROGRESS, self._clock.now_s(), attempt, iteration=iteration, loss=loss))


def mixed(runs: int, noise: float, seed: int) -> tuple[Workload, Mapping[JobId, LossCurve]]:
    """Sweeps of programs of every kind in random order, at equal distances, and the loss curve of each job."""
    draw = np.random.default_rng([seed, 2])
    programs = [(kind, Program(kind, 100 * seed + each)) for kind in KINDS for each in range(PROGRAMS_OF_A_KIND)]
    gpus = draw.choice([1, 2, 4], len(programs)).tolist()
    jobs: list[WorkloadJob] = []
    curves: dict[JobId, LossCurve] = {}
    sweeps = draw.permutation(np.repeat(np.arange(len(programs)), runs // SWEEP))
    for number in np.repeat(sweeps, SWEEP).tolist():
        kind, program = programs[number]
        total, loss = program.run()
        curves[JobId(len(jobs) + 1)] = curve_of(total, loss, noise, draw)[-1]
        jobs.append(
            WorkloadJob(
                str(len(jobs)),
                float(len(jobs) // SWEEP),
                gpus[number],
                SIMULATED_S_PER_ITERATION * total,
                user=f"user{number % 10}",
                name=f"{kind}{number}",
                iterations=int(total),
                declared_iterations=int(total) if kind == "argument" else None,
            )
        )
    apart_s = sum(job.gpus * job.duration_s for job in jobs) / (LOAD * SERVERS * GPUS_A_SERVER * len(sweeps))
    spread = tuple(replace(job, submit_time_s=apart_s * job.submit_time_s) for job in jobs)
    return Workload("programs", spread), curves


def simulate(runs: int, noise: float, seed: int) -> None:
    """Print the mean JCT with losses, without, without estimates, and with the truth."""
    workload, curves = mixed(runs, noise, seed)
    cluster = cluster_of(SERVERS, 100.0)
    print(f"{len(workload.jobs):,} jobs on {SERVERS} servers of {GPUS_A_SERVER} GPUs, load {LOAD}")
    reporting = partial(LossReports, curves=curves)
    rows = [
        ("losses", "trained", reporting),
        ("no losses", "trained", SimulatedExecutor),
        ("no estimates", "none", SimulatedExecutor),
        ("truth", "oracle", SimulatedExecutor),
    ]
    for label, predictor, executor in rows:
        with mock.patch.object(experiment, "SimulatedExecutor", executor):
            options = experiment.SimulationOptions(seed=seed)
            ran = experiment.run_jobs(prepare(workload, cluster), cluster, make_policy("asrpt"), predictor, options)
        by_kind: dict[str, list[float]] = defaultdict(list)
        for job, outcome in zip(workload.jobs, ran.outcomes, strict=True):
            by_kind[job.name.rstrip("0123456789")].append(outcome.finish_time_s - outcome.submit_time_s)
        kinds = ", ".join(f"{kind} {np.mean(each):,.0f}" for kind, each in sorted(by_kind.items()))
        print(f"{label:14}{ran.result.mean_jct_s:10,.0f} s   {kinds}", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=30, help="of each kind")
    parser.add_argument("--runs", type=int, default=50, help="of each program")
    parser.add_argument("--noise", type=float, default=0.03, help="standard deviation of the log of a loss")
    parser.add_argument("--simulate", action="store_true", help="print the mean JCT instead")
    parser.add_argument("--seed", type=int, default=0, help="of --simulate")
    arguments = parser.parse_args()
    if arguments.simulate:
        simulate(arguments.runs, arguments.noise, arguments.seed)
        return
    print(f"{'ended by':12}{'after':>7}{'looks':>8}{'survival':>10}{'losses':>8}{'pinball':>9}")
    for ends_by in KINDS:
        found = [
            look for seed in range(arguments.programs) for look in looks(ends_by, seed, arguments.runs, arguments.noise)
        ]
        for share in SHARES:
            here = [each for each in found if each[0] == share]
            truths = np.log([total for _, total, _, _ in here])[:, None]
            errors, pinballs = [], []
            for way in (2, 3):
                quantiles = np.array([_surviving(each[way], share * each[1]) for each in here])
                over = truths - quantiles
                errors.append(np.abs(over[:, LEVELS.tolist().index(0.5)]).mean())
                pinballs.append(np.maximum(LEVELS * over, (LEVELS - 1.0) * over).mean())
            print(
                f"{ends_by:12}{share:7.0%}{len(here):8,}{errors[0]:10.3f}{errors[1]:8.3f}{pinballs[1] / pinballs[0]:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
