"""The choice of champions on scores made by hand, and that no unknown label affects it."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import candidate_scores, mix
from predictor.backtest import backtest
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.candidate_scores import ROWS_MAX, ROWS_MIN, CandidateScores, scores_of
from predictor.dataset import Example
from predictor.evaluation import middle
from predictor.intervals import NORMAL_POINTS, Array
from predictor.prequential import BaselineScores, Chunk, Run
from predictor.rows import Submission

ROWS = 400


def _said(labels: Array, error: float, spread: float, *, seed: int) -> Array:
    """A predictor whose log error has this standard deviation and who claims ``spread``."""
    noise = np.random.default_rng(seed).standard_normal(len(labels)) * error
    return (labels + noise)[:, None] + NORMAL_POINTS * spread


def _candidate_scores(**models: tuple[float, float]) -> tuple[Array, dict[str, Array]]:
    labels = np.random.default_rng(0).normal(6.0, 1.0, ROWS)
    candidates = {name: _said(labels, 0.5, 0.5, seed=1) for name in BASELINE_NAMES}
    for name, (error, spread) in models.items():
        candidates[name] = _said(labels, error, spread, seed=1)
    return labels, candidates


def _choose(labels: Array, buckets: np.ndarray, candidates: dict[str, Array]) -> mix.Mix:
    """Who serves once all of these jobs have ended, oldest first."""
    collected = CandidateScores(tuple(candidates))
    scored = np.stack([scores_of(labels, points) for points in candidates.values()], axis=1)
    for bucket, scores in zip(buckets.tolist(), scored, strict=True):
        collected.add(bucket, scores)
    return collected.mix()


def _buckets(*shares: int) -> np.ndarray:
    """``shares`` rows of each bucket, in turn."""
    return np.repeat(np.arange(len(shares)), shares)


def test_each_bucket_has_its_own_champion() -> None:
    labels, candidates = _candidate_scores(good=(0.25, 0.25))
    buckets = _buckets(100, 100, 100, 100)
    candidates["good"][100:200] = _said(labels, 2.0, 2.0, seed=2)[100:200]
    chosen = _choose(labels, buckets, candidates)
    assert chosen.distribution == ("good", mix.SIMPLEST, "good", "good")
    assert chosen.point[0] == chosen.point[2] == "good"
    assert chosen.point[1] in BASELINE_NAMES


@pytest.mark.parametrize(("error", "wins"), [(0.5, False), (0.48, False), (0.45, True)])
def test_a_model_must_beat_the_best_baseline_by_the_margin(error: float, wins: bool) -> None:
    labels, candidates = _candidate_scores(model=(error, error))
    chosen = _choose(labels, _buckets(0, 0, 0, ROWS), candidates)
    assert (chosen.distribution[3] == "model") is wins


def test_a_model_that_claims_too_much_does_not_serve_its_distribution() -> None:
    """The pinball loss of a far better but overconfident model is lower; its 80% interval holds half of the truths."""
    labels, candidates = _candidate_scores(bold=(0.2, 0.11))
    buckets = _buckets(0, 0, 0, ROWS)
    assert _choose(labels, buckets, candidates).distribution[3] in BASELINE_NAMES
    # Where the baselines are as far off, there is no reason to keep them.
    for name in BASELINE_NAMES:
        candidates[name] = _said(labels, 0.5, 0.2, seed=1)
    assert _choose(labels, buckets, candidates).distribution[3] == "bold"


def test_a_bucket_with_little_candidate_scores_follows_the_seen_jobs_but_cold_jobs_do_not() -> None:
    labels, candidates = _candidate_scores(good=(0.25, 0.25))
    few = ROWS_MIN - 1
    chosen = _choose(labels, _buckets(few, few, ROWS - 2 * few, 0), candidates)
    assert chosen.distribution == (mix.SIMPLEST, "good", "good", "good")
    nobody = _choose(labels[:few], _buckets(0, few), {name: points[:few] for name, points in candidates.items()})
    assert nobody == mix.Mix((mix.SIMPLEST,) * 4, (mix.SIMPLEST,) * 4)
    assert nobody.name == mix.SIMPLEST


def test_the_point_may_come_from_another_than_the_distribution() -> None:
    """The simplest knows the middle and nothing about its own spread; the model is less sharp, and calibrated."""
    labels, candidates = _candidate_scores(model=(0.4, 0.4))
    candidates[mix.SIMPLEST] = _said(labels, 0.1, 4.0, seed=4)
    chosen = _choose(labels, _buckets(0, 0, 0, ROWS), candidates)
    assert (chosen.distribution[3], chosen.point[3]) == ("model", mix.SIMPLEST)
    assert chosen.name.endswith("20+: model, point recurrence_median20")


@pytest.mark.parametrize(("factor", "wins"), [(1.0, False), (0.95, False), (0.92, True)])
def test_the_simplest_keeps_the_point_unless_the_mean_error_falls_by_the_margin(factor: float, wins: bool) -> None:
    labels, candidates = _candidate_scores()
    wrong = np.exp(labels) * (1.0 + 0.5 * factor)  # a mean error of half the truth, times the factor
    candidates["model"] = np.log(wrong)[:, None] + NORMAL_POINTS * 0.5
    for name in BASELINE_NAMES:
        candidates[name] = np.log(1.5 * np.exp(labels))[:, None] + NORMAL_POINTS * 0.5
    assert (_choose(labels, _buckets(0, 0, 0, ROWS), candidates).point[3] == "model") is wins


def test_a_lower_mean_error_does_not_pay_for_fewer_jobs_within_a_factor_of_two() -> None:
    labels, candidates = _candidate_scores()
    for name in BASELINE_NAMES:
        candidates[name] = _said(labels, 0.0, 0.5, seed=1)
    long_jobs = labels > np.quantile(labels, 0.9)
    candidates[mix.SIMPLEST][long_jobs] -= 3.0  # most of the mean error, a tenth of the jobs
    short = np.zeros((ROWS, 1))
    short[~long_jobs] = np.where(np.arange((~long_jobs).sum()) % 5 == 0, 1.0, 0.0)[:, None]
    candidates["model"] = candidates["user_mean"] + short  # a fifth of the others is off by e
    others = [name for name in BASELINE_NAMES if name != mix.SIMPLEST]
    for name in others:
        candidates[name] = candidates[name] + 1.0
    assert _choose(labels, _buckets(0, 0, 0, ROWS), candidates).point[3] == mix.SIMPLEST
    candidates["model"] = candidates["model"] - short
    assert _choose(labels, _buckets(0, 0, 0, ROWS), candidates).point[3] == "model"


def test_only_the_newest_candidate_scores_counts() -> None:
    labels, candidates = _candidate_scores(old=(0.2, 0.2), new=(1.0, 1.0))
    candidates = {name: np.tile(points, (10, 1)) for name, points in candidates.items()}
    truth = np.tile(labels, 10)
    switch = len(truth) - ROWS_MAX
    candidates["old"], candidates["new"] = (
        np.concatenate([candidates["old"][:switch], candidates["new"][switch:]]),
        np.concatenate([candidates["new"][:switch], candidates["old"][switch:]]),
    )
    assert _choose(truth, _buckets(0, 0, 0, len(truth)), candidates).distribution[3] == "new"


def test_the_blend_is_the_mean_of_the_quantiles() -> None:
    labels, candidates = _candidate_scores(
        xgboost=(0.3, 0.3), quantile_forest=(0.4, 0.5), raw_quantile_forest=(0.5, 0.7)
    )
    blend = mix.blended(candidates, labels)[mix.BLEND]
    assert blend == pytest.approx(np.mean([candidates[name] for name in mix.BLENDED], axis=0))
    assert (np.diff(blend, axis=1) >= 0.0).all()
    del candidates["raw_quantile_forest"]
    blend = mix.blended(candidates, labels)[mix.BLEND]
    assert blend == pytest.approx((candidates["xgboost"] + candidates["quantile_forest"]) / 2.0)
    assert not {*mix.COMBINED} & mix.blended({"xgboost": candidates["xgboost"]}, labels).keys()


def test_the_consensus_is_the_blend_moved_to_the_median_of_all_points() -> None:
    """Points 1, 2 and 9 and the recurrence median 4: in the middle lie 2 and 4, so 3, where the mean of the models is 4."""
    shape = np.linspace(-1.0, 1.0, 32)
    points = {name: at + shape[None, :] for name, at in zip(mix.BLENDED, (1.0, 2.0, 9.0), strict=True)}
    found = mix.blended(points, np.array([4.0]))
    assert middle(found[mix.BLEND])[0] == pytest.approx(4.0)
    assert found[mix.CONSENSUS][0] == pytest.approx(3.0 + shape)


def _agreed(candidates: dict[str, Array], shift: float) -> dict[str, Array]:
    """With a consensus that is ``shift`` (log) off where the simplest is half off."""
    return {**candidates, mix.CONSENSUS: candidates["perfect"] + shift}


@pytest.mark.parametrize(("shift", "wins"), [(0.1, True), (0.49, True), (0.5, False), (0.51, False)])
def test_the_consensus_serves_the_point_without_a_margin_and_beside_it_no_single_model(
    shift: float, wins: bool
) -> None:
    labels, candidates = _candidate_scores(perfect=(0.0, 0.3))
    for name in BASELINE_NAMES:
        candidates[name] = candidates["perfect"] + 0.5
    point = _choose(labels, _buckets(0, 0, 0, ROWS), _agreed(candidates, shift)).point[3]
    assert point == (mix.CONSENSUS if wins else mix.SIMPLEST)
    assert _choose(labels, _buckets(0, 0, 0, ROWS), candidates).point[3] == "perfect", "where there is no consensus"


def test_the_consensus_never_serves_a_distribution() -> None:
    labels, candidates = _candidate_scores(perfect=(0.0, 0.3))
    del candidates["perfect"]
    candidates[mix.CONSENSUS] = _said(labels, 0.1, 0.1, seed=2)
    chosen = _choose(labels, _buckets(0, 0, 0, ROWS), candidates)
    assert (chosen.distribution[3] in BASELINE_NAMES, chosen.point[3]) == (True, mix.CONSENSUS)


@pytest.mark.parametrize(("error", "wins"), [(0.30, False), (0.295, False), (0.27, True)])
def test_of_models_that_may_serve_the_blend_does_unless_one_beats_it_clearly(error: float, wins: bool) -> None:
    labels, candidates = _candidate_scores(blend=(0.3, 0.3), model=(error, error))
    assert _choose(labels, _buckets(0, 0, 0, ROWS), candidates).distribution[3] == ("model" if wins else mix.BLEND)


def test_a_mix_says_who_serves_where() -> None:
    assert mix.Mix(("a",) * 4, ("a",) * 4).name == "a"
    assert mix.Mix(("a", "b", "b", "b"), ("a", "a", "b", "b")).name == "0: a; 1-4: b, point a; 5-19: b; 20+: b"


# Nothing unknown decides


def _run(labels: Array, ended_at_s: Array, models: dict[str, Array]) -> Run:
    """100 rows for calibration, then three chunks; job i is submitted at second i."""
    examples = [
        Example(
            Submission(i, "u", "", "n", 1, float(i)),
            (),
            30,
            (6.0,) * 8,
            float(labels[i]),
            float(ended_at_s[i]),
            math.exp(labels[i]),
        )
        for i in range(len(labels))
    ]
    edges = [0, 100, 150, 200, len(labels)]
    chunks = [Chunk(a, b, float(a)) for a, b in pairwise(edges)]
    return Run(examples, 100, chunks, models, {}, BaselineScores(), {}, {})


def _rotating(labels: Array) -> dict[str, Array]:
    """Two models that take turns at being good, so that the choice hangs on what is known."""
    good, bad = _said(labels, 0.1, 0.1, seed=5), _said(labels, 3.0, 3.0, seed=6)
    turn = (np.arange(len(labels)) // 100 % 2).astype(bool)[:, None]
    own = {name: _said(labels, 1.0, 1.0, seed=7) for name in BASELINE_NAMES}
    return {**own, "odd": np.where(turn, good, bad), "even": np.where(turn, bad, good)}


def test_a_job_is_served_by_who_was_best_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_scores, "ROWS_MAX", 100)
    labels = np.random.default_rng(0).normal(6.0, 1.0, 250)
    models = _rotating(labels)
    served = backtest(_run(labels, np.arange(250) + 0.5, models))
    assert served.distribution_by[0] == served.point_by[0] == "even"
    # But for its ends, which are tracked.
    assert served.points[0] == pytest.approx(models["even"][100], abs=0.2)
    assert middle(served.points[:1]) == pytest.approx(middle(models["even"][100:101]))
    assert served.predicted[0] == pytest.approx(middle(models["even"][100:101])[0])
    # From there on the other is the good one. It overtakes within the second chunk, as jobs end, and not where the third opens.
    assert served.distribution_by[50] != served.distribution_by[99] == "odd"
    assert served.mix.distribution[3] == served.distribution_by[-1]
    # Had none of them ended, nobody could know.
    late = backtest(_run(labels, np.arange(250) + 1e6, models))
    assert {*late.distribution_by, *late.point_by} == {mix.SIMPLEST}


@pytest.mark.parametrize(("overtime_s", "held"), [(1.0, True), (60.0, False)])
def test_no_answer_lies_beyond_a_walltime_that_is_enforced(overtime_s: float, held: bool) -> None:
    """Every job asks for the time it takes; in the second case one in twenty runs longer, so nobody ends them."""
    labels = np.log(np.full(250, 100.0))
    labels[::20] = math.log(100.0 + overtime_s)
    run = _run(labels, np.arange(250) + 0.5, {name: _said(labels, 1.0, 1.0, seed=7) for name in BASELINE_NAMES})
    limited = [
        dataclasses.replace(each, submission=dataclasses.replace(each.submission, walltime_s=100.0))
        for each in run.examples
    ]
    served = backtest(dataclasses.replace(run, examples=limited))
    assert bool((served.points <= math.log(100.0)).all() and (served.predicted <= math.log(100.0)).all()) is held
    assert (backtest(run).points > math.log(100.0)).any(), "without walltimes there is no limit"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), delay_s=st.floats(0.0, 120.0), job=st.integers(100, 249))
def test_a_label_that_is_not_known_at_a_submission_changes_no_choice(seed: int, delay_s: float, job: int) -> None:
    labels = np.random.default_rng(0).normal(6.0, 1.0, 250)
    ended_at_s = np.arange(250) + delay_s * np.random.default_rng(seed).random(250)
    run = _run(labels, ended_at_s, _rotating(labels))
    at_s = run.examples[job].submission.submitted_at_s
    changed = [
        dataclasses.replace(example, label=0.0) if example.ended_at_s > at_s else example for example in run.examples
    ]
    before, after = backtest(run), backtest(dataclasses.replace(run, examples=changed))
    tested = job + 1 - run.test_start
    assert after.distribution_by[:tested] == before.distribution_by[:tested]
    assert after.point_by[:tested] == before.point_by[:tested]
    assert after.predicted[:tested].tolist() == before.predicted[:tested].tolist()
