"""The live choice of champions equals the evaluation's on the same jobs; jobs in service replace those of the test."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import candidate_scores, mix
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.candidate_scores import CandidateScores
from predictor.evaluation import by_history, measure
from predictor.intervals import NORMAL_POINTS, Array

POINTS: Array = NORMAL_POINTS[2::4]
NAMES = (*BASELINE_NAMES, "model", "other")


def _jobs(count: int, seed: int) -> tuple[Array, np.ndarray, dict[str, Array]]:
    """Labels, history buckets and what candidates of different skill said, eight points each."""
    rng = np.random.default_rng(seed)
    labels = rng.normal(6.0, 1.0, count)
    said = {}
    for name in NAMES:
        error = rng.uniform(0.2, 0.8)
        said[name] = (labels + error * rng.normal(size=count))[:, None] + POINTS * rng.uniform(0.7, 1.3) * error
    return labels, rng.integers(0, 4, count), said


def _observed(found: CandidateScores, labels: Array, buckets: np.ndarray, said: dict[str, Array]) -> CandidateScores:
    for row, (label, bucket) in enumerate(zip(labels.tolist(), buckets.tolist(), strict=True)):
        found.observe(bucket, label, {name: points[row] for name, points in said.items()})
    return found


def _chosen(labels: Array, buckets: np.ndarray, said: dict[str, Array], found: CandidateScores) -> mix.Mix:
    """The champions, by the metrics of the rows that count for each bucket, and as many independent ones as were ``found``."""
    chosen = []
    for bucket in range(4):
        rows = np.flatnonzero(buckets == bucket)
        if len(rows) < candidate_scores.ROWS_MIN and bucket > 0:
            rows = np.flatnonzero(buckets > 0)
        scores = {}
        for name, points in said.items() if len(rows) >= candidate_scores.ROWS_MIN else ():
            metrics = measure(labels[rows], points[rows])
            scores[name] = mix.Scores(metrics.pinball_log, metrics.coverage_80, metrics.mae, metrics.within_2x)
        independent = found._counted(bucket).independent
        assert independent <= len(rows)
        chosen.append(mix.champions(scores, independent))
    return mix.Mix(tuple(shape for shape, _ in chosen), tuple(point for _, point in chosen))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 400))
def test_the_choice_is_that_by_the_metrics_of_all_jobs_that_count(seed: int, count: int) -> None:
    labels, buckets, said = _jobs(count, seed)
    found = _observed(CandidateScores(NAMES), labels, buckets, said)
    assert found.mix() == _chosen(labels, buckets, said, found)


def test_only_the_newest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_scores, "ROWS_MAX", 80)
    labels, buckets, said = _jobs(1_000, 3)
    found = _observed(CandidateScores(NAMES), labels, buckets, said)
    newest = np.sort(np.concatenate([np.flatnonzero(buckets == bucket)[-80:] for bucket in range(4)]))
    kept = {name: points[newest] for name, points in said.items()}
    assert found.mix() == _chosen(labels[newest], buckets[newest], kept, found)
    assert [found.jobs(bucket) for bucket in range(4)] == [80] * 4


def _tested(labels: Array, buckets: np.ndarray, said: dict[str, Array]) -> dict[str, dict[str, object]]:
    return {name: by_history(labels, points, buckets.tolist()) for name, points in said.items()}


def test_a_models_test_and_the_jobs_of_its_service_are_one_record() -> None:
    labels, buckets, said = _jobs(600, 5)
    half = slice(300, None)
    test = _tested(labels[:300], buckets[:300], {name: points[:300] for name, points in said.items()})
    both = _observed(
        CandidateScores(NAMES, test), labels[half], buckets[half], {name: points[half] for name, points in said.items()}
    )
    alone = _observed(CandidateScores(NAMES), labels, buckets, said)
    assert both.mix() == alone.mix()
    for bucket in range(4):
        assert both.jobs(bucket) == alone.jobs(bucket)
        for name, scores in both._scores(bucket).items():
            assert scores == pytest.approx(alone._scores(bucket)[name])


def test_the_test_gives_way_as_jobs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_scores, "ROWS_MAX", 100)
    labels, _, said = _jobs(400, 5)
    found = CandidateScores(NAMES, _tested(labels, np.full(400, 3), said))
    assert found.jobs(3) == 100
    _observed(found, labels[:100], np.full(100, 3), {name: points[:100] for name, points in said.items()})
    alone = _observed(
        CandidateScores(NAMES), labels[:100], np.full(100, 3), {name: points[:100] for name, points in said.items()}
    )
    assert found._scores(3) == alone._scores(3), "nothing of the test is left"


def test_only_the_models_that_may_rank_serve_a_distribution_but_any_a_point() -> None:
    labels = np.random.default_rng(0).normal(6.0, 1.0, 200)
    noise = np.random.default_rng(1).normal(size=200)
    said = dict.fromkeys(BASELINE_NAMES, (labels + 0.5 * noise)[:, None] + POINTS * 0.5)
    said |= {
        "model": (labels + 0.4 * noise)[:, None] + POINTS * 0.4,
        "other": (labels + 0.1 * noise)[:, None] + POINTS * 0.1,
    }
    found = _observed(CandidateScores(NAMES, models=("model",)), labels, np.full(200, 3), said)
    assert (found.mix().distribution[3], found.mix().point[3]) == ("model", "model")
    barred = _observed(CandidateScores(NAMES, models=()), labels, np.full(200, 3), said)
    assert (barred.mix().distribution[3], barred.mix().point[3]) == (mix.SIMPLEST, "other")


def test_a_candidate_that_says_nothing_is_scored_as_the_simplest_and_nothing_without_that() -> None:
    labels, buckets, said = _jobs(200, 7)
    silent = {name: points for name, points in said.items() if name != "model"}
    filled = {**said, "model": said[mix.SIMPLEST]}
    found = _observed(CandidateScores(NAMES), labels, buckets, silent)
    assert found._scores(3) == _observed(CandidateScores(NAMES), labels, buckets, filled)._scores(3)
    before = found.jobs(0)
    found.observe(0, 5.0, {"model": POINTS})
    assert found.jobs(0) == before


def test_where_nobody_ever_errs_the_simplest_serves() -> None:
    labels = np.full(100, 5.0)
    said = {name: np.full((100, 8), 5.0) for name in NAMES}
    assert _observed(CandidateScores(NAMES), labels, np.full(100, 3), said).mix().name == mix.SIMPLEST


# Arrays of jobs are not so many observations


def test_the_share_of_independent_jobs_by_hand() -> None:
    """Sixteen losses, four of each kind in a row: batches of four are all that there is to see, so four tell as much."""
    arrays = np.repeat([0.0, 4.0, 0.0, 4.0], 4)
    # Variance 4; the means of the batches vary by 16/3, times four jobs a batch.
    assert candidate_scores.independent_share(arrays) == pytest.approx(4.0 / (4 * 16.0 / 3.0))
    assert candidate_scores.independent_share(np.array([0.0, 4.0] * 8)) == 1.0, (
        "batches are alike: chance would do more"
    )
    assert candidate_scores.independent_share(np.zeros(16)) == 1.0
    assert [candidate_scores.independent_share(np.arange(float(count))) for count in (0, 1)] == [1.0, 1.0]


@pytest.mark.parametrize(("array", "at_least", "at_most"), [(1, 0.7, 1.0), (25, 0.02, 0.1)])
def test_arrays_of_alike_jobs_count_as_few(array: int, at_least: float, at_most: float) -> None:
    losses = np.repeat(np.random.default_rng(0).exponential(size=2_000 // array), array)
    assert at_least <= candidate_scores.independent_share(losses) <= at_most


def test_who_is_better_by_one_array_alone_does_not_serve() -> None:
    """A model that is better by 10%: on 400 jobs each for itself that is enough, on four arrays of a hundred it is chance."""
    rng = np.random.default_rng(0)
    for array, wins in ((1, True), (100, False)):
        labels, noise = np.full(400, 6.0), np.repeat(rng.permutation(np.linspace(-2.0, 2.0, 400 // array)), array)
        said = dict.fromkeys(NAMES, (labels + 0.5 * noise)[:, None] + POINTS * 0.5)
        said["model"] = (labels + 0.45 * noise)[:, None] + POINTS * 0.45
        found = _observed(CandidateScores(NAMES), labels, np.full(400, 3), said)
        assert found.jobs(3) == 400
        assert (found.mix().distribution[3] == "model") is wins
