"""The data of the charts of an evaluation: errors by user, kind of job and time.

Quantiles and labels are natural logarithms of seconds, as in :mod:`predictor.evaluation`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation import inside, middle, pinball_rows
from predictor.experts import FIRST
from predictor.intervals import Array, at_levels
from predictor.recurrence import BUCKETS
from service.reports.comparison_data import gang_class
from service.sim.evaluate import SERVED, Evaluation

TIME_PARTS: Final = 24
USERS_SHOWN: Final = 12
WORST_SHOWN: Final = 12
NOMINAL_LEVELS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
DENSITY_CELLS: Final = 48
WEIGHT_SHOWN_MIN: Final = 0.1
"""An expert is drawn if it ever has this share of a weight in the median."""

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
    """One test job and its prediction, in seconds."""

    job_id: str
    submit_time_s: float
    user: str
    program: str
    gpus: int
    runs: int
    predicted_s: float
    low_s: float
    high_s: float
    actual_s: float


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of an expert in the served median: ``shares`` (times, history buckets) from ``at_s`` on, seconds of
    submission."""

    name: str
    at_s: Sequence[float]
    shares: Array


def judged(evaluation: Evaluation) -> list[Judged]:
    """The errors of the served predictions, the recurrence median, and the model with the least pinball loss."""
    labels, by_name = evaluation.run.labels, quantiles_by_name(evaluation)
    names = (SERVED, FIRST, best_model(evaluation))
    return [_judge(name, labels, by_name[name]) for name in names if name is not None]


def quantiles_by_name(evaluation: Evaluation) -> dict[str, Array]:
    """The quantiles (n, 25) of the test jobs: those served, and those of each expert."""
    return {**evaluation.run.tested, SERVED: evaluation.served.tested(evaluation.run)}


def best_model(evaluation: Evaluation) -> str | None:
    """The model (no expert without a training) with the least pinball loss; None where none was trained."""
    models = evaluation.document["models"]
    trained = [name for name, fits_s in evaluation.run.fit_s.items() if fits_s]
    return min(trained, key=lambda name: (models[name]["pinball_log"], name), default=None)


def _judge(name: str, labels: Array, quantiles: Array) -> Judged:
    predicted = middle(quantiles)
    return Judged(
        name,
        pinball_rows(labels, quantiles),
        np.abs(np.exp(predicted) - np.exp(labels)),
        predicted - labels,
        inside(labels, quantiles, 0.8),
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


def calibration(labels: Array, quantiles: Array) -> list[float]:
    """Share of the jobs below the predicted quantile of each of :data:`NOMINAL_LEVELS`. A job exactly at it counts half.

    Halves matter where a program always takes the same time: it is then exactly at many quantiles at once.
    """
    gap = np.sign(np.round(at_levels(quantiles, np.array(NOMINAL_LEVELS)) - labels[:, None], 9))
    return [float(share) for share in np.mean((gap + 1.0) / 2.0, axis=0)]


def density(evaluation: Evaluation) -> tuple[Array, Array]:
    """The number of test jobs by actual (rows) and predicted duration (columns), and the edges of both, seconds."""
    actual, predicted = evaluation.run.labels, middle(evaluation.served.tested(evaluation.run))
    low, high = float(min(actual.min(), predicted.min())), float(max(actual.max(), predicted.max()))
    edges = np.linspace(low, max(high, low + 1.0), DENSITY_CELLS + 1)
    counts, _, _ = np.histogram2d(actual, predicted, bins=(edges, edges))
    return counts, np.exp(edges)


def worst(evaluation: Evaluation, size: Callable[[Judged], Array]) -> list[Worst]:
    """The test jobs with the largest ``size`` of the served predictions' errors, the largest first."""
    run, served = evaluation.run, evaluation.served.tested(evaluation.run)
    sizes = size(_judge(SERVED, run.labels, served))
    predicted, ends = middle(served), at_levels(served, np.array([0.1, 0.9]))
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
                float(np.exp(predicted[row])),
                float(np.exp(ends[row, 0])),
                float(np.exp(ends[row, 1])),
                job.duration_s,
            )
        )
    return found


def weights(evaluation: Evaluation) -> list[Weights]:
    """The experts that ever have :data:`WEIGHT_SHOWN_MIN` of a bucket's weight, at the opening of each chunk; the heaviest first.

    The last weights stand until the last submission.
    """
    served, run = evaluation.served, evaluation.run
    at_s = [*(chunk.opened_s for chunk in run.chunks), run.examples[-1].submission.submitted_at_s]
    shares = np.concatenate([served.weights, served.weights[-1:]])
    shown = np.flatnonzero(served.weights.max(axis=(0, 1)) >= WEIGHT_SHOWN_MIN).tolist()
    shown.sort(key=lambda index: -float(served.weights[..., index].mean()))
    return [Weights(served.experts[index], at_s, shares[..., index]) for index in shown]
