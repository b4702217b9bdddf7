"""The data of the charts of an evaluation: errors by user, kind of job and time.

Points and labels are natural logarithms of seconds, as in :mod:`predictor.evaluation`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation import inside, middle, pinball_rows
from predictor.intervals import Array, quantile_of
from predictor.mix import SIMPLEST
from predictor.recurrence import BUCKETS
from service.reports.comparison_data import gang_class
from service.sim.evaluate import SERVED, Evaluation

TIME_PARTS: Final = 24
USERS_SHOWN: Final = 12
WORST_SHOWN: Final = 12
NOMINAL_LEVELS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
DENSITY_CELLS: Final = 48

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Judged:
    """The errors of one predictor, one entry per test job. ``log_factor`` is log(predicted / actual); ``inside``: within the
    80% interval.
    """

    name: str
    loss: Array
    error_s: Array
    log_factor: Array
    inside: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of test jobs, by their positions in the test."""

    label: str
    rows: Rows


@dataclass(frozen=True, slots=True)
class Worst:
    """One test job and its prediction, in seconds. ``point_by`` names the candidate of the point."""

    job_id: str
    submit_time_s: float
    user: str
    program: str
    gpus: int
    runs: int
    point_by: str
    predicted_s: float
    low_s: float
    high_s: float
    actual_s: float


@dataclass(frozen=True, slots=True)
class ChampionPeriod:
    """A champion of one history bucket from ``start_s`` to ``end_s``, seconds of submission."""

    bucket: int
    name: str
    start_s: float
    end_s: float


def judged(evaluation: Evaluation) -> list[Judged]:
    """The errors of the served predictions, the recurrence median, and the model with the least pinball loss."""
    run, served = evaluation.run, evaluation.served
    found = [_judge(SERVED, run.labels, served.points, served.predicted)]
    for name in (SIMPLEST, best_model(evaluation)):
        if name is not None:
            points = run.candidates[name]
            found.append(_judge(name, run.labels, points, middle(points)))
    return found


def best_model(evaluation: Evaluation) -> str | None:
    """The model (no baseline or mix) with the least pinball loss; None where none was trained."""
    models = evaluation.document["models"]
    trained = [name for name in models if name in evaluation.run.candidates and models[name]["fit_s"] > 0.0]
    return min(trained, key=lambda name: (models[name]["pinball_log"], name), default=None)


def _judge(name: str, labels: Array, points: Array, predicted: Array) -> Judged:
    return Judged(
        name,
        pinball_rows(labels, points),
        np.abs(np.exp(predicted) - np.exp(labels)),
        predicted - labels,
        inside(labels, points, 0.8),
    )


def buckets(evaluation: Evaluation) -> list[Group]:
    """By how often the program had run."""
    names = [f"{bucket} runs" for bucket in BUCKETS]
    return _groups([names[bucket] for bucket in evaluation.run.buckets], names)


def gangs(evaluation: Evaluation) -> list[Group]:
    """By gang size."""
    sizes = [job.gpus for job in evaluation.test_jobs]
    return _groups([gang_class(gpus) for gpus in sizes], [gang_class(gpus) for gpus in sorted(set(sizes))])


def users(evaluation: Evaluation) -> list[Group]:
    """The busiest users of the test, and all others as one group; empty where the workload names none."""
    names = [job.user for job in evaluation.test_jobs]
    found = sorted(_groups([name for name in names if name], ()), key=lambda group: (-len(group.rows), group.label))
    if not found:
        return []
    shown = [group.label for group in found[:USERS_SHOWN]]
    others = f"{len(found) - len(shown)} others" if len(found) > len(shown) else "others"
    return _groups([name if name in shown else others for name in names], (*shown, others))


def _groups(labels: Sequence[str], order: Sequence[str]) -> list[Group]:
    """The rows of each label, in this order (others after it, as they come); labels without a row are left out."""
    rows: dict[str, list[int]] = {label: [] for label in order}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return [Group(label, np.array(own, dtype=np.intp)) for label, own in rows.items() if own]


def over_time(evaluation: Evaluation) -> list[tuple[float, Rows]]:
    """Parts of the test with equally many jobs: the middle time of submission, seconds, and the rows."""
    parts = np.array_split(np.arange(len(evaluation.test_jobs)), TIME_PARTS)
    times_s = np.array([job.submit_time_s for job in evaluation.test_jobs])
    return [(float(np.median(times_s[part])), part) for part in parts if len(part)]


def calibration(labels: Array, points: Array) -> list[float]:
    """Share of the jobs below the predicted quantile of each of :data:`NOMINAL_LEVELS`. A job exactly at it counts half.

    Halves matter where a program always takes the same time: it is then exactly at many quantiles at once.
    """
    quantiles = quantile_of(points, np.array(NOMINAL_LEVELS))
    gap = np.sign(np.round(quantiles - labels[:, None], 9))
    return [float(share) for share in np.mean((gap + 1.0) / 2.0, axis=0)]


def density(evaluation: Evaluation) -> tuple[Array, Array]:
    """The number of test jobs by actual (rows) and predicted duration (columns), and the edges of both, seconds."""
    actual, predicted = evaluation.run.labels, evaluation.served.predicted
    low, high = float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))
    edges = np.linspace(low, max(high, low + 1.0), DENSITY_CELLS + 1)
    counts, _, _ = np.histogram2d(actual, predicted, bins=(edges, edges))
    return counts, np.exp(edges)


def worst(evaluation: Evaluation, size: Callable[[Judged], Array]) -> list[Worst]:
    """The test jobs with the largest ``size`` of the served predictions' errors, the largest first."""
    run, served = evaluation.run, evaluation.served
    sizes = size(_judge(SERVED, run.labels, served.points, served.predicted))
    ends = quantile_of(served.points, np.array([0.1, 0.9]))
    found = []
    for row in np.argsort(-sizes, kind="stable")[:WORST_SHOWN].tolist():
        job, example = evaluation.test_jobs[row], run.examples[run.test_start + row]
        found.append(
            Worst(
                job.job_id,
                job.submit_time_s,
                job.user,
                "/".join(part for part in (job.project, job.name) if part),
                job.gpus,
                example.runs,
                served.point_by[row],
                float(np.exp(served.predicted[row])),
                float(np.exp(ends[row, 0])),
                float(np.exp(ends[row, 1])),
                job.duration_s,
            )
        )
    return found


def champion_periods(evaluation: Evaluation, *, point: bool) -> list[ChampionPeriod]:
    """The champions of each bucket over time, for the point or the distribution: from one job to the next with another."""
    run, served = evaluation.run, evaluation.served
    times_s = [job.submit_time_s for job in evaluation.test_jobs]
    found: list[ChampionPeriod] = []
    for bucket in range(len(BUCKETS)):
        rows = [row for row, of in enumerate(run.buckets) if of == bucket]
        names = served.point_by if point else served.distribution_by
        for row in rows:
            if row != rows[0]:
                found[-1] = replace(found[-1], end_s=times_s[row])
            if row == rows[0] or found[-1].name != names[row]:
                found.append(ChampionPeriod(bucket, names[row], times_s[row], times_s[row]))
        if rows:
            found[-1] = replace(found[-1], end_s=times_s[-1])
    return found
