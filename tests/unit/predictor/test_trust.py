"""Trust: each limit by hand, hysteresis, and that a rung is judged by its own record alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import trust
from predictor.intervals import NORMAL_POINTS, Array
from predictor.trust import RETRAIN_GRACE_S, Switch, Trust, TrustRung, Watch

POINTS = NORMAL_POINTS[::4] + 5.0
"""Eight log points around 5, the 80% interval about 5 +- 1.2."""


def _covered(inside: int, outside: int, watch: Watch | None = None) -> Watch:
    """Jobs all alike in what was said of them, so no order is claimed; the misses spread evenly."""
    watch = Watch() if watch is None else watch
    total = inside + outside
    for job in range(total):
        misses = (job + 1) * outside // total > job * outside // total
        watch.observe(9.0 if misses else 5.0, POINTS)
    return watch


@pytest.mark.parametrize(("inside", "outside", "broken"), [(32, 17, False), (33, 17, False), (32, 18, True)])
def test_coverage_under_65_percent_of_50_jobs_breaks(inside: int, outside: int, broken: bool) -> None:
    watch = _covered(inside, outside)
    assert watch.jobs == inside + outside
    assert bool(watch.fault) is broken
    assert watch.coverage == (None if watch.jobs < 50 else inside / 50)
    assert watch.concordance is None, "who says the same of all jobs claims no order"


def test_coverage_must_come_back_above_70_percent() -> None:
    watch = _covered(60, 40)
    assert watch.fault == "60% of the newest 100 such jobs were inside their 80% interval"
    _covered(30, 0, watch)  # 90 of 130: 69%
    assert watch.coverage == pytest.approx(90 / 130)
    assert watch.fault
    _covered(4, 0, watch)  # 94 of 134: 70.1%
    assert not watch.fault


def _ordered(right_share: float, jobs: int, watch: Watch | None = None) -> Watch:
    """Of runs in twos of 100 s and 1,000 s, this share is told apart the right way round; the intervals are wide enough."""
    watch = Watch() if watch is None else watch
    for job in range(jobs):
        label = math.log(100.0) if job % 2 else math.log(1_000.0)
        wrong = int((job + 1) * (1.0 - right_share)) > int(job * (1.0 - right_share))
        said = math.log(100_000.0) - label if wrong else label
        watch.observe(label, said + 3.0 * NORMAL_POINTS[::4])
    return watch


def test_concordance_breaks_and_comes_back() -> None:
    assert not _ordered(1.0, 60).fault
    assert _ordered(1.0, 60).concordance == 1.0
    watch = _ordered(0.3, 200)
    assert watch.concordance is not None
    assert watch.concordance < 0.52
    assert watch.fault.endswith("of the newest pairs of such jobs were in the right order")
    _ordered(1.0, 250, watch)
    assert watch.concordance == 1.0
    assert not watch.fault


def test_concordance_is_that_of_all_claimed_pairs_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    labels, said = rng.normal(5.0, 1.0, 120), rng.normal(5.0, 1.0, 120)
    watch = Watch()
    for label, middle in zip(labels, said, strict=True):
        watch.observe(float(label), np.full(8, middle))
    pairs = [
        ((said[j] - said[i]) * (labels[j] - labels[i]) > 0.0)
        for j in range(120)
        for i in range(max(0, j - trust.PAIR_SPAN), j)
        if abs(said[j] - said[i]) >= math.log(1.1)
    ]
    assert watch.concordance == pytest.approx(np.mean(pairs))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 20.0)), max_size=320))
def test_the_window_holds_the_newest_200_and_its_sums_never_drift(jobs: list[tuple[float, float]]) -> None:
    watch = Watch()
    for label, middle in jobs:
        watch.observe(label, np.linspace(middle - 1.0, middle + 1.0, 8))
    assert watch.jobs == min(len(jobs), 200)
    newest = [abs(label - middle) <= 0.5 * 1.4 + 1e-6 for label, middle in jobs[-200:]]
    if watch.coverage is not None:
        # The ends of the interval lie between points: whatever falls between both readings may count either way.
        assert watch.coverage >= np.mean(newest) - 1e-9


def _standing(ladder: Trust, bucket: int) -> TrustRung:
    return ladder.standing(bucket).rung


def _feed(ladder: Trust, jobs: int, *, model: bool, group: bool, bucket: int = 2) -> list[Switch]:
    """``model`` and ``group``: whether each has the truth inside its interval."""
    far: Array = POINTS + 20.0
    switches = []
    for _ in range(jobs):
        said = {"model": POINTS if model else far, "group": POINTS if group else far}
        switches += ladder.observe(bucket, 5.0, **said, alarm_age_s=None)
    return switches


def test_trust_goes_down_rung_by_rung_and_up_again_in_that_bucket_alone() -> None:
    ladder = Trust()
    assert _feed(ladder, 49, model=False, group=True) == []
    (down,) = _feed(ladder, 1, model=False, group=True)
    assert down == Switch(
        "5-19", TrustRung.MODEL, TrustRung.GROUP, "0% of the newest 50 such jobs were inside their 80% interval"
    )
    assert [_standing(ladder, bucket) for bucket in range(4)] == [
        *(TrustRung.MODEL, TrustRung.MODEL, TrustRung.GROUP, TrustRung.MODEL)
    ]
    (further,) = _feed(ladder, 40, model=False, group=False)
    assert (further.before, further.after) == (TrustRung.GROUP, TrustRung.ATTAINED_SERVICE)
    # The model is right again: no need to climb by way of the group's distribution, which still is not.
    (up,) = _feed(ladder, 150, model=True, group=False)
    assert (up.before, up.after, up.reason) == (TrustRung.ATTAINED_SERVICE, TrustRung.MODEL, "")
    assert ladder.switches == 3


def test_a_drift_alarm_sets_the_model_aside_after_a_day_without_a_better_one() -> None:
    ladder = Trust()
    young = RETRAIN_GRACE_S - 1.0
    assert ladder.observe(0, 5.0, model=POINTS, group=POINTS, alarm_age_s=young) == []
    switches = ladder.observe(0, 5.0, model=POINTS, group=POINTS, alarm_age_s=RETRAIN_GRACE_S)
    assert [switch.after for switch in switches] == [TrustRung.GROUP] * 4, "errors are watched over all buckets"
    assert switches[0].reason == "errors have grown for a day and no better model was trained"
    assert [switch.after for switch in ladder.new_model()] == [TrustRung.MODEL] * 4
    assert ladder.switches == 8


def test_a_new_model_is_not_blamed_but_the_groups_record_stays() -> None:
    ladder = Trust()
    _feed(ladder, 60, model=False, group=False)
    assert _standing(ladder, 2) is TrustRung.ATTAINED_SERVICE
    (back,) = ladder.new_model()
    assert back.after is TrustRung.MODEL
    (down,) = _feed(ladder, 50, model=False, group=False)
    assert down.after is TrustRung.ATTAINED_SERVICE


def test_truths_on_the_edge_of_a_degenerate_interval_are_inside() -> None:
    """Constant labels: what was written as a total and read as a logarithm differs in the last digit."""
    watch = Watch()
    for _ in range(60):
        watch.observe(math.log(737.0), np.log(np.full(8, math.exp(math.log(737.0)))))
    assert watch.coverage == 1.0
    assert not watch.fault
