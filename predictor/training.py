"""Training: from the newest ended jobs to a model with its calibration, its metrics and the gate's verdict."""

import hashlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from policies.model.estimate import Unit
from predictor import prequential
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.boosting import Boosting, SurvivalBoosting
from predictor.candidate_scores import CandidateScores
from predictor.dataset import UNITS, Example, Knowledge, replay
from predictor.errors import TrainingError
from predictor.estimator import Estimator
from predictor.evaluation import by_history
from predictor.feature_schema import SCHEMA
from predictor.forest import QuantileForest, RandomForest, RawQuantileForest
from predictor.intervals import ConformalCalibrator
from predictor.mix import BLEND, BLENDED, COMBINED
from predictor.rows import EndedRow

ESTIMATORS: Final[Mapping[str, Callable[[], Estimator]]] = {
    RandomForest.kind: RandomForest,
    Boosting.kind: Boosting,
    QuantileForest.kind: QuantileForest,
    RawQuantileForest.kind: RawQuantileForest,
}
"""Every model that is trained. The champion is the best that passes the gate, of these and their blend."""
CHALLENGERS: Final[Mapping[str, Callable[[], Estimator]]] = {SurvivalBoosting.kind: SurvivalBoosting}
"""Evaluated at every training and reported with the others, but never stored."""
HEAD_ROWS_MIN: Final = 100
"""Labelled jobs that a head needs before it is trained."""
TEST_RATIO: Final = 0.4
TEST_ROWS_MAX: Final = 2_000
"""The gate tests on the newest 40% of the jobs, at most this many: the workload as it is now."""
CHUNK_ROWS: Final = 500
CHUNKS_MAX: Final = 4

PINBALL_RATIO_MAX: Final = 0.97
CONCORDANCE_LOSS_MAX: Final = 0.005
UNDER_4X_GAIN_MAX: Final = 0.02
COVERAGE_MIN: Final = 0.75
COVERAGE_MAX: Final = 0.88


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a model may serve: it must beat the best baseline. ``reasons`` are the criteria that it failed."""

    kind: str
    passed: bool
    best_baseline: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The models of one unit. ``champion`` is None where no model passed the gate: then the baselines serve."""

    unit: Unit
    rows: int
    estimators: Mapping[str, Estimator]
    calibrators: Mapping[str, ConformalCalibrator]
    champion: str | None
    verdicts: tuple[Verdict, ...]
    metrics: Mapping[str, Any]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that can serve: the models, and their combinations where all parts are among them."""
        return (*self.estimators, *(COMBINED if all(part in self.estimators for part in BLENDED) else ()))

    @property
    def best(self) -> str:
        """The model with the least pinball loss, whether or not it passed the gate."""
        return min(self.kinds, key=lambda kind: (self.metrics[kind]["pinball_log"], kind))

    def beats_baselines(self, kind: str, bucket: int) -> bool:
        """Whether the kind won this history bucket in the test, by the rule of :mod:`predictor.mix`."""
        return CandidateScores((*BASELINE_NAMES, kind), self.metrics).mix().distribution[bucket] == kind


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """All heads of one training run. ``version`` is a digest of the data, seed, features and library versions."""

    version: str
    heads: Mapping[Unit, TrainedHead]
    seed: int
    rows: int
    trained_until_s: float
    feature_schema: str
    libraries: Mapping[str, str]

    @property
    def promotable(self) -> bool:
        """Whether any head has a champion that passed the gate."""
        return any(head.champion is not None for head in self.heads.values())


def library_versions() -> dict[str, str]:
    """Versions of the libraries that a model's bytes depend on. Two distributions provide xgboost."""
    found = {name: version(name) for name in ("numpy", "scikit-learn", "quantile-forest", "skops")}
    for name in ("xgboost-cpu", "xgboost"):
        try:
            return {**found, "xgboost": version(name)}
        except PackageNotFoundError:
            continue
    raise PackageNotFoundError("xgboost")


def judge(metrics: Mapping[str, Mapping[str, Any]], kind: str) -> Verdict:
    """The promotion gate: a model against the baseline with the least pinball loss, on the same test jobs."""
    best = min(BASELINE_NAMES, key=lambda name: (metrics[name]["pinball_log"], BASELINE_NAMES.index(name)))
    model, baseline = metrics[kind], metrics[best]
    reasons: list[str] = []
    if not model["pinball_log"] <= PINBALL_RATIO_MAX * baseline["pinball_log"]:
        reasons.append(
            f"pinball {model['pinball_log']:.4f} is not at most {PINBALL_RATIO_MAX} x {baseline['pinball_log']:.4f}"
        )
    # None where all labels are equal: then nothing can be ranked and no model is needed.
    if model["concordance"] is None or model["concordance"] < baseline["concordance"] - CONCORDANCE_LOSS_MAX:
        reasons.append(
            f"concordance {model['concordance']} is below {baseline['concordance']} - {CONCORDANCE_LOSS_MAX}"
        )
    if model["under_4x"] > baseline["under_4x"] + UNDER_4X_GAIN_MAX:
        reasons.append(f"under-4x {model['under_4x']:.3f} is above {baseline['under_4x']:.3f} + {UNDER_4X_GAIN_MAX}")
    if not COVERAGE_MIN <= model["coverage_80"] <= COVERAGE_MAX:
        reasons.append(f"80% coverage {model['coverage_80']:.3f} is outside {COVERAGE_MIN}-{COVERAGE_MAX}")
    return Verdict(kind, not reasons, best, tuple(reasons))


Tested = Callable[[Unit, prequential.Run], None]
"""Called with the test run of each head, by which the gate judged its candidates."""


def train_head(unit: Unit, examples: Sequence[Example], seed: int, on_tested: Tested | None = None) -> TrainedHead:
    """Evaluate prequentially, judge, then fit every model on all of the examples (sorted by submission)."""
    test_rows = min(int(len(examples) * TEST_RATIO), TEST_ROWS_MAX)
    chunks = max(1, min(CHUNKS_MAX, test_rows // CHUNK_ROWS))
    tried = {**ESTIMATORS, **CHALLENGERS}
    outcome = prequential.run(examples, tried, test_start=len(examples) - test_rows, chunks=chunks, seed=seed)
    if on_tested is not None:
        on_tested(unit, outcome)
    candidates = outcome.candidates.items()
    metrics = {name: by_history(outcome.labels, points, outcome.buckets) for name, points in candidates}
    verdicts = tuple(judge(metrics, kind) for kind in (*ESTIMATORS, BLEND))
    passed = [verdict.kind for verdict in verdicts if verdict.passed]
    champion = min(passed, key=lambda kind: (metrics[kind]["pinball_log"], kind)) if passed else None
    usable = [example for example in examples if example.base == example.base]
    estimators = prequential.fit(ESTIMATORS, usable, seed)
    calibrators = {kind: outcome.calibrators[kind] for kind in estimators}
    return TrainedHead(unit, len(usable), estimators, calibrators, champion, verdicts, metrics)


def _version(heads: Mapping[Unit, Sequence[Example]], seed: int, libraries: Mapping[str, str]) -> str:
    digest = hashlib.sha256(repr((seed, SCHEMA, sorted(libraries.items()))).encode())
    for unit, examples in heads.items():
        digest.update(unit.encode())
        digest.update(np.array([(example.label, example.ended_at_s) for example in examples]).tobytes())
    return f"m-{digest.hexdigest()[:12]}"


def train(rows: Iterable[EndedRow], *, seed: int, on_tested: Tested | None = None) -> TrainedModel:
    """Train from ended jobs, sorted by submission. Streams: memory holds the newest 40,000 examples of each head.

    Raises :class:`TrainingError` where no head has enough labelled jobs.
    """
    newest: dict[Unit, deque[Example]] = {unit: deque(maxlen=prequential.ROWS_MAX) for unit in UNITS}
    count, until_s = 0, 0.0
    for row, examples in replay(rows, Knowledge()):
        count, until_s = count + 1, max(until_s, row.ended_at_s)
        for unit, example in examples.items():
            # Packed: as Python numbers the features of 40,000 examples take 100 MB, in an array a quarter.
            newest[unit].append(replace(example, features=array("d", example.features)))
    enough = {unit: tuple(examples) for unit, examples in newest.items() if len(examples) >= HEAD_ROWS_MIN}
    if not enough:
        have = max(len(examples) for examples in newest.values())
        raise TrainingError(f"a training needs at least {HEAD_ROWS_MIN} labelled jobs (got {have})")
    libraries = library_versions()
    return TrainedModel(
        version=_version(enough, seed, libraries),
        heads={unit: train_head(unit, examples, seed, on_tested) for unit, examples in enough.items()},
        seed=seed,
        rows=count,
        trained_until_s=until_s,
        feature_schema=SCHEMA,
        libraries=libraries,
    )
