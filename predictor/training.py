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
from predictor.aggregation import AGGREGATION, WITHOUT_MODELS, Aggregation
from predictor.boosting import Boosting
from predictor.conformal import SpreadCalibration
from predictor.dataset import UNITS, Example, Knowledge, replay
from predictor.errors import TrainingError
from predictor.estimator import Estimator
from predictor.evaluation import by_history
from predictor.experts import BASIC
from predictor.feature_schema import schema
from predictor.forest import QuantileForest, RandomForest, RawQuantileForest
from predictor.rows import EndedRow

ESTIMATORS: Final[Mapping[str, Callable[[], Estimator]]] = {
    RandomForest.kind: RandomForest,
    Boosting.kind: Boosting,
    QuantileForest.kind: QuantileForest,
    RawQuantileForest.kind: RawQuantileForest,
}
"""Every model that is trained."""
HEAD_ROWS_MIN: Final = 100
"""Labelled jobs that a head needs before it is trained, each submitted after the end of another one."""
TEST_RATIO: Final = 0.4
TEST_ROWS_MAX: Final = 2_000
"""The gate tests on the newest 40% of the jobs, at most this many: the workload as it is now."""
CHUNK_ROWS_MIN: Final = 500
CHUNKS_MAX: Final = 4
GROWTH_RATIO: Final = 0.1
"""The test fits the models again when the history has grown by so much, as a service trains anew."""

PINBALL_RATIO_MAX: Final = 1.01
"""As much is chance on some hundred jobs, and models learn on."""
CONCORDANCE_LOSS_MAX: Final = 0.005
UNDER_4X_GAIN_MAX: Final = 0.02
COVERAGE_MIN: Final = 0.75
COVERAGE_MAX: Final = 0.95


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the models of a head may serve: with them, what is served must be no worse than without. ``reasons`` are the
    criteria that it failed.
    """

    passed: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The models of one unit, with the aggregation and calibration as they were after the test: a service starts from them.
    ``metrics`` are those of each expert and of the aggregation, on the test jobs.
    """

    unit: Unit
    rows: int
    estimators: Mapping[str, Estimator]
    aggregation: Aggregation
    calibration: SpreadCalibration
    verdict: Verdict
    metrics: Mapping[str, Any]

    @property
    def best(self) -> str:
        """The single model with the least pinball loss."""
        return min(self.estimators, key=lambda kind: (self.metrics[kind]["pinball_log"], kind))


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
        """Whether the aggregation of any head passed the gate."""
        return any(head.verdict.passed for head in self.heads.values())


def library_versions() -> dict[str, str]:
    """Versions of the libraries that a model's bytes depend on. Two distributions provide xgboost."""
    found = {name: version(name) for name in ("numpy", "scikit-learn", "quantile-forest", "skops")}
    for name in ("xgboost-cpu", "xgboost"):
        try:
            return {**found, "xgboost": version(name)}
        except PackageNotFoundError:
            continue
    raise PackageNotFoundError("xgboost")


def judge(metrics: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """The promotion gate: what is served with the models against what would be served without them, on the same jobs."""
    model, without = metrics[AGGREGATION], metrics[WITHOUT_MODELS]
    reasons: list[str] = []
    if not model["pinball_log"] <= PINBALL_RATIO_MAX * without["pinball_log"]:
        reasons.append(
            f"pinball {model['pinball_log']:.4f} is above {PINBALL_RATIO_MAX} x {without['pinball_log']:.4f}"
        )
    if model["concordance"] is None:
        reasons.append("all totals of the test are equal, so that there is nothing to rank")
    elif model["concordance"] < without["concordance"] - CONCORDANCE_LOSS_MAX:
        reasons.append(
            f"concordance {model['concordance']:.3f} is below {without['concordance']:.3f} - {CONCORDANCE_LOSS_MAX}"
        )
    if model["under_4x"] > without["under_4x"] + UNDER_4X_GAIN_MAX:
        reasons.append(f"under-4x {model['under_4x']:.3f} is above {without['under_4x']:.3f} + {UNDER_4X_GAIN_MAX}")
    if (
        not min(COVERAGE_MIN, without["coverage_80"])
        <= model["coverage_80"]
        <= max(COVERAGE_MAX, without["coverage_80"])
    ):
        reasons.append(f"80% coverage {model['coverage_80']:.3f} is outside {COVERAGE_MIN}-{COVERAGE_MAX}")
    return Verdict(not reasons, tuple(reasons))


OnTested = Callable[[Unit, prequential.HeadTest], None]
"""Called with the test of each head, by which the gate judged."""


def train_head(unit: Unit, examples: Sequence[Example], seed: int, on_tested: OnTested | None = None) -> TrainedHead:
    """Evaluate prequentially, judge, then fit every model on all of the examples (sorted by submission)."""
    test_rows = min(int(len(examples) * TEST_RATIO), TEST_ROWS_MAX)
    outcome = prequential.run(
        examples,
        ESTIMATORS,
        test_start=len(examples) - test_rows,
        chunks=_chunks(len(examples), test_rows),
        seed=seed,
        warm_rows_max=TEST_ROWS_MAX,
    )
    served, without = prequential.serve(outcome), prequential.serve(outcome, BASIC)
    if on_tested is not None:
        on_tested(unit, prequential.HeadTest(outcome, served, without))
    tested = {
        **outcome.tested,
        AGGREGATION: served.tested(outcome),
        WITHOUT_MODELS: without.tested(outcome),
    }
    metrics = {name: by_history(outcome.labels, quantiles, outcome.buckets) for name, quantiles in tested.items()}
    usable = [example for example in examples if example.base == example.base]
    estimators = prequential.fit(ESTIMATORS, usable, seed)
    return TrainedHead(unit, len(usable), estimators, served.aggregation, served.calibration, judge(metrics), metrics)


def _chunks(rows: int, test_rows: int) -> int:
    """How often the test fits the models again; 0 where it is short against the history."""
    grown = int(rows * GROWTH_RATIO)
    return 0 if test_rows < grown else max(1, min(CHUNKS_MAX, test_rows // max(CHUNK_ROWS_MIN, grown)))


def _version(heads: Mapping[Unit, Sequence[Example]], seed: int, libraries: Mapping[str, str]) -> str:
    digest = hashlib.sha256(repr((seed, schema(), sorted(libraries.items()))).encode())
    for unit, examples in heads.items():
        digest.update(unit.encode())
        digest.update(np.array([(example.label, example.ended_at_s) for example in examples]).tobytes())
    return f"m-{digest.hexdigest()[:12]}"


def _too_few(labelled: int, usable: int) -> str:
    needed = f"a training needs at least {HEAD_ROWS_MIN} labelled jobs"
    if labelled < HEAD_ROWS_MIN:
        return f"{needed} (got {labelled})"
    return f"{needed} that were submitted after the end of another one (got {usable} of {labelled})"


def train(rows: Iterable[EndedRow], *, seed: int, on_tested: OnTested | None = None) -> TrainedModel:
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
    # From a job that was submitted before the first of its unit ended, such as one of a first array, no model can learn.
    usable = {unit: sum(example.base == example.base for example in examples) for unit, examples in newest.items()}
    enough = {unit: tuple(newest[unit]) for unit in UNITS if usable[unit] >= HEAD_ROWS_MIN}
    if not enough:
        raise TrainingError(_too_few(max(map(len, newest.values())), max(usable.values())))
    libraries = library_versions()
    return TrainedModel(
        version=_version(enough, seed, libraries),
        heads={unit: train_head(unit, examples, seed, on_tested) for unit, examples in enough.items()},
        seed=seed,
        rows=count,
        trained_until_s=until_s,
        feature_schema=schema(),
        libraries=libraries,
    )
