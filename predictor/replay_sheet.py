"""What each candidate said of the jobs that the gate tested: the hand-over from a training to whoever replays those jobs.

No candidate had seen a job of which it speaks. A new model's answers are those of the prequential test. The champion that
serves now answers itself for jobs submitted after its training; for older ones, which it learnt from, stands what models of its
kind said that were fitted before. Answers are distributions of the log total, held to what the gate lets a model serve.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import numpy as np

from policies.model.estimate import Unit
from predictor.dataset import UNITS, Example
from predictor.intervals import Array
from predictor.mix import SIMPLEST, blended
from predictor.prequential import Run
from predictor.recurrence import BUCKETS
from predictor.rows import EndedRow, open_text, row_from_dict, row_to_dict
from predictor.training import TrainedHead, TrainedModel

BASELINES: Final = "baselines"
"""The arm in which no model serves."""
CHAMPION: Final = "champion"
"""The arm of the model that serves now."""


@dataclass(frozen=True, slots=True)
class SheetJob:
    """A tested job, its truth, and per arm 32 equal-mass points of its total in ``unit``."""

    row: EndedRow
    unit: Unit
    said: Mapping[str, Sequence[float]]


def arms_of(model: TrainedModel) -> dict[str, dict[Unit, str | None]]:
    """Who would be champion of each head: for every kind that passed the gate of some head, that kind wherever it passed."""
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
    answers: dict[int, dict[Unit, dict[str, Array]]] = {}
    examples: dict[int, dict[Unit, Example]] = {}
    for unit, run in runs.items():
        said = _said(unit, run, model, champion)
        for row, example in enumerate(run.examples[run.test_start :]):
            examples.setdefault(example.submission.job, {})[unit] = example
            answers.setdefault(example.submission.job, {})[unit] = {arm: points[row] for arm, points in said.items()}
    # Every label of iterations belongs to a job that has one of seconds, and a replay cannot do without those.
    jobs = sorted((found for found in examples.values() if Unit.SERVICE_S in found), key=_end)[-jobs_max:]
    with open_text(path, "w") as stream:
        for found in sorted(jobs, key=_submission):
            stream.write(json.dumps(_line(found, answers[_job(found)]), allow_nan=False) + "\n")
    return len(jobs)


def read_sheet(path: Path) -> Iterator[SheetJob]:
    """The jobs of a sheet, in order of submission."""
    with open_text(path, "r") as stream:
        for line in stream:
            values = json.loads(line)
            said = {arm: [math.exp(point) for point in points] for arm, points in values["said"].items()}
            yield SheetJob(row_from_dict(values["row"]), Unit(values["unit"]), said)


def _job(found: Mapping[Unit, Example]) -> int:
    return found[Unit.SERVICE_S].submission.job


def _end(found: Mapping[Unit, Example]) -> tuple[float, int]:
    return found[Unit.SERVICE_S].ended_at_s, _job(found)


def _submission(found: Mapping[Unit, Example]) -> tuple[float, int]:
    return found[Unit.SERVICE_S].submission.submitted_at_s, _job(found)


def _line(found: Mapping[Unit, Example], answers: Mapping[Unit, Mapping[str, Array]]) -> dict[str, Any]:
    unit = next(unit for unit in UNITS if unit in found)
    example = found[Unit.SERVICE_S]
    totals = {each: math.exp(of.label) for each, of in found.items() if of.label is not None}
    row = EndedRow(example.submission, example.ended_at_s, totals.get(Unit.ITERATIONS), totals[Unit.SERVICE_S])
    said = {arm: np.round(points, 4).tolist() for arm, points in answers[unit].items()}
    return {"row": row_to_dict(row), "unit": unit.value, "said": said}


def _said(unit: Unit, run: Run, model: TrainedModel, champion: TrainedModel | None) -> dict[str, Array]:
    """Per arm the points of each test row of a head."""
    candidates = run.candidates
    head = model.heads[unit]
    said = {BASELINES: candidates[SIMPLEST]}
    for arm, kinds in arms_of(model).items():
        said[arm] = _held(run.buckets, head, kinds[unit], candidates, candidates)
    if champion is not None:
        said[CHAMPION] = _of_champion(unit, run, candidates, champion)
    return said


def _of_champion(unit: Unit, run: Run, candidates: Mapping[str, Array], champion: TrainedModel) -> Array:
    head = champion.heads.get(unit)
    if head is None:
        return candidates[SIMPLEST]
    own = {kind: points.copy() for kind, points in candidates.items()}
    tested = run.examples[run.test_start :]
    fresh = [row for row, each in enumerate(tested) if each.submission.submitted_at_s > champion.trained_until_s]
    if fresh:
        answered = _answers(head, [tested[row] for row in fresh])
        for kind in head.kinds:
            own.setdefault(kind, candidates[SIMPLEST].copy())[fresh] = answered[kind]
    return _held(run.buckets, head, head.champion, own, candidates)


def _held(
    buckets: Sequence[int],
    head: TrainedHead,
    kind: str | None,
    said: Mapping[str, Array],
    candidates: Mapping[str, Array],
) -> Array:
    """The kind where it serves, by history bucket, and the recurrence median where it does not."""
    points = candidates[SIMPLEST].copy()
    if kind is not None and kind in said:
        won = {bucket for bucket in range(len(BUCKETS)) if head.beats_baselines(kind, bucket)}
        rows = [row for row, bucket in enumerate(buckets) if bucket in won]
        points[rows] = said[kind][rows]
    return points


def _answers(head: TrainedHead, examples: Sequence[Example]) -> dict[str, Array]:
    """What a stored model says of jobs in order of submission; its calibration rolls on as they end, as it does live."""
    features = np.array([example.features for example in examples])
    base = np.array([example.base for example in examples])
    raw = {kind: base[:, None] + estimator.predict_points(features) for kind, estimator in head.estimators.items()}
    calibrators = {kind: deepcopy(one) for kind, one in head.calibrators.items()}
    said = {kind: np.empty_like(points) for kind, points in raw.items()}
    open_rows: list[tuple[float, int]] = []
    for row, example in enumerate(examples):
        while open_rows and open_rows[0][0] <= example.submission.submitted_at_s:
            _, ended = heappop(open_rows)
            label = examples[ended].label
            assert label is not None, "tested jobs have ended"
            for kind, calibrator in calibrators.items():
                calibrator.observe(examples[ended].bucket, label, raw[kind][ended])
        for kind, calibrator in calibrators.items():
            said[kind][row] = calibrator.calibrate(example.bucket, raw[kind][row])
        heappush(open_rows, (example.ended_at_s, row))
    return blended(said, base)
