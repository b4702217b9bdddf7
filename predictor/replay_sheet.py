"""The replay sheet: what would have been served for the jobs that the gate tested, which a training leaves for a replay.

No model had seen the jobs that it predicts. A new model's predictions are those of the prequential test. The champion that
serves now predicts the jobs submitted after its training itself; for older ones, which it was trained on, the predictions
of models of its kinds that were fitted before stand in. Each arm has weights of its own, learnt in the order of time.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.model.estimate import Unit
from predictor.dataset import UNITS, Example
from predictor.intervals import Array, estimate_points
from predictor.prequential import HeadTest, Run, Served, label_of, serve
from predictor.rows import EndedRow, open_text, row_from_dict, row_to_dict
from predictor.training import TrainedHead, TrainedModel

BASELINES: Final = "baselines"
"""The arm of the experts without a model."""
NEW: Final = "new"
"""The arm of the model that was just trained."""
CHAMPION: Final = "champion"
"""The arm of the model that serves now."""


@dataclass(frozen=True, slots=True)
class SheetJob:
    """A tested job with its actual total, and per arm 32 equal-mass points of its total in ``unit``."""

    row: EndedRow
    unit: Unit
    points: Mapping[str, Sequence[float]]


def write_sheet(
    path: Path,
    tested: Mapping[Unit, HeadTest],
    champion: TrainedModel | None,
    jobs_max: int,
) -> int:
    """Write the ``jobs_max`` newest tested jobs, in order of submission; returns how many."""
    predicted: dict[int, dict[Unit, dict[str, Array]]] = {}
    examples: dict[int, dict[Unit, Example]] = {}
    for unit, test in tested.items():
        arms = _points_by_arm(unit, test, champion)
        for row, example in enumerate(test.run.examples[test.run.test_start :]):
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


def _points_by_arm(unit: Unit, test: HeadTest, champion: TrainedModel | None) -> dict[str, Array]:
    """Per arm the points of each test row of a head."""
    arms = {BASELINES: test.without, NEW: test.served}
    if champion is not None:
        head = champion.heads.get(unit)
        arms[CHAMPION] = test.without if head is None else _of_champion(test.run, head, champion.trained_until_s)
    return {arm: estimate_points(each.tested(test.run)) for arm, each in arms.items()}


def _of_champion(run: Run, head: TrainedHead, trained_until_s: float) -> Served:
    quantiles = run.quantiles.copy()
    fresh = [row for row, each in enumerate(run.examples) if each.submission.submitted_at_s > trained_until_s]
    if fresh:
        features = np.array([run.examples[row].features for row in fresh])
        bases = np.array([run.examples[row].base for row in fresh])
        for kind, estimator in head.estimators.items():
            quantiles[fresh, run.experts.index(kind)] = bases[:, None] + estimator.predict_quantiles(features)
    return serve(replace(run, quantiles=quantiles))
