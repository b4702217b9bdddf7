"""The replay sheet: each candidate's predictions for the jobs that the gate tested, which a training leaves for a replay.

No candidate had seen the jobs that it predicts. A new model's predictions are those of the prequential test. The champion that
serves now predicts the jobs submitted after its training itself; for older ones, which it was trained on, the predictions of
models of its kind that were fitted before stand in. Where the gate does not let a model serve, the baseline does.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.model.estimate import Unit
from predictor.dataset import UNITS, Example
from predictor.intervals import Array
from predictor.mix import SIMPLEST, blended
from predictor.prequential import Run, calibrate_in_order, label_of
from predictor.recurrence import BUCKETS
from predictor.rows import EndedRow, open_text, row_from_dict, row_to_dict
from predictor.training import TrainedHead, TrainedModel

BASELINES: Final = "baselines"
"""The arm in which no model serves."""
CHAMPION: Final = "champion"
"""The arm of the model that serves now."""


@dataclass(frozen=True, slots=True)
class SheetJob:
    """A tested job with its actual total, and per arm 32 equal-mass points of its total in ``unit``."""

    row: EndedRow
    unit: Unit
    points: Mapping[str, Sequence[float]]


def arms_of(model: TrainedModel) -> dict[str, dict[Unit, str | None]]:
    """The champions of the heads in each arm: for every kind that passed the gate of some head, that kind wherever it passed."""
    passed = {verdict.kind for head in model.heads.values() for verdict in head.verdicts if verdict.passed}
    return {
        kind: {
            unit: kind if any(v.passed and v.kind == kind for v in head.verdicts) else head.champion
            for unit, head in model.heads.items()
        }
        for kind in sorted(passed)
    }


def write_sheet(
    path: Path, model: TrainedModel, runs: Mapping[Unit, Run], champion: TrainedModel | None, jobs_max: int
) -> int:
    """Write the ``jobs_max`` newest tested jobs, in order of submission; returns how many."""
    predicted: dict[int, dict[Unit, dict[str, Array]]] = {}
    examples: dict[int, dict[Unit, Example]] = {}
    for unit, run in runs.items():
        arms = _points_by_arm(unit, run, model, champion)
        for row, example in enumerate(run.examples[run.test_start :]):
            examples.setdefault(example.submission.job, {})[unit] = example
            predicted.setdefault(example.submission.job, {})[unit] = {arm: points[row] for arm, points in arms.items()}
    # A job with a label of iterations also has one of seconds, and a replay needs the seconds.
    ended = [units[Unit.SERVICE_S] for units in examples.values() if Unit.SERVICE_S in units]
    newest = sorted(ended, key=lambda example: (example.ended_at_s, example.submission.job))[-jobs_max:]
    newest.sort(key=lambda example: (example.submission.submitted_at_s, example.submission.job))
    with open_text(path, "w") as stream:
        for example in newest:
            line = _line(examples[example.submission.job], predicted[example.submission.job])
            stream.write(json.dumps(line, allow_nan=False) + "\n")
    return len(newest)


def read_sheet(path: Path) -> Iterator[SheetJob]:
    """The jobs of a sheet, in order of submission."""
    with open_text(path, "r") as stream:
        for line in stream:
            values = json.loads(line)
            points = {arm: [math.exp(point) for point in log_points] for arm, log_points in values["said"].items()}
            yield SheetJob(row_from_dict(values["row"]), Unit(values["unit"]), points)


def _line(units: Mapping[Unit, Example], predicted: Mapping[Unit, Mapping[str, Array]]) -> dict[str, Any]:
    unit = next(unit for unit in UNITS if unit in units)
    example = units[Unit.SERVICE_S]
    totals = {each: math.exp(label_of(labelled)) for each, labelled in units.items()}
    row = EndedRow(example.submission, example.ended_at_s, totals.get(Unit.ITERATIONS), totals[Unit.SERVICE_S])
    points = {arm: np.round(log_points, 4).tolist() for arm, log_points in predicted[unit].items()}
    return {"row": row_to_dict(row), "unit": unit.value, "said": points}


def _points_by_arm(unit: Unit, run: Run, model: TrainedModel, champion: TrainedModel | None) -> dict[str, Array]:
    """Per arm the points of each test row of a head."""
    candidates = run.candidates
    arms = {BASELINES: candidates[SIMPLEST]}
    for arm, kinds in arms_of(model).items():
        arms[arm] = _where_it_serves(run, model.heads[unit], kinds[unit], candidates)
    if champion is not None:
        arms[CHAMPION] = _of_champion(run, champion.heads.get(unit), candidates, champion.trained_until_s)
    return arms


def _of_champion(run: Run, head: TrainedHead | None, candidates: Mapping[str, Array], trained_until_s: float) -> Array:
    if head is None:
        return candidates[SIMPLEST]
    own = {kind: points.copy() for kind, points in candidates.items()}
    tested = run.examples[run.test_start :]
    fresh = [row for row, each in enumerate(tested) if each.submission.submitted_at_s > trained_until_s]
    if fresh:
        predicted = _predict(head, [tested[row] for row in fresh])
        for kind in head.kinds:
            own.setdefault(kind, candidates[SIMPLEST].copy())[fresh] = predicted[kind]
    return _where_it_serves(run, head, head.champion, own)


def _where_it_serves(run: Run, head: TrainedHead, kind: str | None, points: Mapping[str, Array]) -> Array:
    """The kind's points in the history buckets that it serves, and those of the recurrence median in the others."""
    found = points[SIMPLEST].copy()
    if kind is not None and kind in points:
        won = {bucket for bucket in range(len(BUCKETS)) if head.beats_baselines(kind, bucket)}
        rows = [row for row, bucket in enumerate(run.buckets) if bucket in won]
        found[rows] = points[kind][rows]
    return found


def _predict(head: TrainedHead, examples: Sequence[Example]) -> dict[str, Array]:
    """A stored model's predictions for jobs in order of submission; its calibration learns as they end."""
    features = np.array([example.features for example in examples])
    base = np.array([example.base for example in examples])
    raw = {kind: base[:, None] + estimator.predict_points(features) for kind, estimator in head.estimators.items()}
    calibrators = {kind: deepcopy(calibrator) for kind, calibrator in head.calibrators.items()}
    return blended(calibrate_in_order(examples, raw, calibrators), base)
