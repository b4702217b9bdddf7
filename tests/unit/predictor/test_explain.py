"""Explanations of predictions, from the stored feature vector."""

import math

import numpy as np
import pytest

from policies.model.estimate import Unit
from predictor import features
from predictor.boosting import FITTED_LEVELS, Boosting
from predictor.explain import TOP, Trust, contributions, history_basis, readable, trust_of, words
from predictor.feature_schema import schema
from predictor.recurrence import Level
from predictor.serving import LivePredictor
from tests.unit.predictor.predictor_history import recurring_history, request, small_model


def _vector(name: str, user: str, gpus: int = 4) -> tuple[float, ...]:
    predictor = LivePredictor()
    predictor.warm(recurring_history(300, reports=False))
    (said,) = predictor.predict(0.0, [request(9_000, name=name, user=user, gpus=gpus)])
    assert said is not None
    assert readable(said.feature_schema, said.features)
    return said.features


def test_the_factors_multiply_to_the_models_median() -> None:
    model, vector = small_model(), _vector(name="program3", user="user3", gpus=2)
    head = model.heads[Unit.SERVICE_S]
    found = contributions(model, Unit.SERVICE_S, vector)
    assert found is not None
    assert found.model_version == f"{model.version}/xgboost"
    assert len(found.top) == TOP
    strength = [abs(math.log(each.factor)) for each in found.top]
    assert strength == sorted(strength, reverse=True)
    product = found.history_median * found.usual_factor * found.others_factor
    for each in found.top:
        product *= each.factor
    assert product == pytest.approx(found.total, rel=1e-6)
    boosting = head.estimators["xgboost"]
    assert isinstance(boosting, Boosting)
    fitted = boosting._model.inplace_predict(np.array([vector]))[0]
    assert math.log(found.total / found.history_median) == pytest.approx(
        fitted[FITTED_LEVELS.tolist().index(0.5)], abs=1e-5
    )
    assert found.history_median == pytest.approx(math.exp(vector[features.NAMES.index("base")]))


def test_a_group_without_history_is_one_contribution() -> None:
    vector = _vector(name="unheard", user="user3")
    found = contributions(small_model(), Unit.SERVICE_S, vector)
    assert found is not None
    said = [each.words for each in found.top]
    assert len(set(said)) == len(said), "nothing is said twice"
    boosting = small_model().heads[Unit.SERVICE_S].estimators["xgboost"]
    assert isinstance(boosting, Boosting)
    moved = dict(zip(features.NAMES, boosting.contributions(np.array([vector]))[0], strict=False))
    none = [each for each in found.top if each.words == "runs of this program with as many GPUs: none"]
    missing = sum(
        change
        for (name, change), value in zip(moved.items(), vector, strict=True)
        if name.startswith("recurrence_gpus.") and value == features.MISSING
    )
    assert [each.feature for each in none] == ["recurrence_gpus"]
    assert none[0].factor == pytest.approx(math.exp(missing))


def test_a_feature_that_the_model_follows_is_named_first() -> None:
    # One feature says everything about the label: no other may be said to have moved the prediction as much.
    draw = np.random.default_rng(3)
    rows = draw.normal(size=(600, len(features.NAMES)))
    which = features.NAMES.index("log_gpus")
    model = Boosting()
    model.fit(rows, 2.0 * np.sign(rows[:, which]), seed=1)
    moved = model.contributions(rows[:50])
    assert moved.shape == (50, len(features.NAMES) + 1)
    assert (np.argmax(np.abs(moved[:, :-1]), axis=1) == which).mean() > 0.95
    assert (np.sign(moved[:, which]) == np.sign(rows[:50, which])).all()


def test_without_xgboost_or_history_there_are_no_contributions() -> None:
    vector = _vector(name="program3", user="user3")
    assert contributions(small_model(), Unit.SERVICE_S, vector) is not None
    assert contributions(small_model(), Unit.ITERATIONS, vector) is None, "it has no head for iterations"
    nothing = list(vector)
    nothing[features.NAMES.index("base")] = features.MISSING
    assert contributions(small_model(), Unit.SERVICE_S, nothing) is None
    assert not readable("features/0:abc", vector)
    assert not readable(schema(), vector[:-1])


def test_the_history_basis_equals_the_known_history() -> None:
    history = recurring_history(300, reports=False)
    runs = sum((row.spec.user, row.spec.name, row.spec.gpus) == ("user3", "program3", 2) for row in history)
    found = history_basis(_vector(name="program3", user="user3", gpus=2))
    assert (found.past_runs, found.level) == (runs, Level.RECURRENCE_GPUS)
    assert found.bucket == ("5-19" if runs < 20 else "20+")
    stranger = history_basis(_vector(name="unheard", user="nobody"))
    assert (stranger.past_runs, stranger.bucket, stranger.level) == (0, "0", Level.CLUSTER)
    assert history_basis(_vector(name="unheard", user="user3")).level == Level.USER


def test_trust_falls_from_the_model_to_attained_service() -> None:
    assert [trust_of("m1/xgboost", True), trust_of("", True), trust_of("", False)] == list(Trust)
    assert trust_of("m1/xgboost", False) == Trust.ATTAINED_SERVICE


@pytest.mark.parametrize("name", features.NAMES)
def test_every_feature_has_a_description(name: str) -> None:
    assert words(name, features.MISSING, 1.0, Unit.ITERATIONS)
    assert "none" not in words(name, 1.0, 1.0, Unit.SERVICE_S)


def test_descriptions_contain_amounts_instead_of_logarithms() -> None:
    base = math.log(5_000.0)
    assert words("recurrence_gpus.median", base, base, Unit.ITERATIONS) == (
        "median of runs of this program with as many GPUs: 5,000 iterations"
    )
    assert words("recurrence.last", math.log(0.5), base, Unit.SERVICE_S) == (
        "the newest of runs of this program: 2,500 s"
    )
    assert words("user.log_count", math.log1p(12.0), base, Unit.SERVICE_S) == "number of the user's jobs: 12"
    assert words("log_gpus", math.log(8.0), base, Unit.SERVICE_S) == "GPUs: 8"
    assert words("recurrence.median", features.MISSING, base, Unit.SERVICE_S) == "runs of this program: none"
    assert words("request_last_submitted", math.log(0.5), base, Unit.SERVICE_S) == (
        "the ended one of the jobs with the same request that was submitted last: 2,500 s"
    )
    assert words("cluster_open_log_age_s", features.MISSING, base, Unit.SERVICE_S) == (
        "age of the oldest of all jobs that is unfinished, s: none"
    )
