"""Calibration: intervals move by the errors of past forecasts, and hold on pasts that were not used to build it."""

import json

import numpy as np
import pytest

from service.advice.calibration import Calibration, Checked, Kind, end_kind, instants, score, start_kind
from service.advice.learner import Learner
from service.advice.rehearsal import rehearse
from service.forecast.forecast import Spread
from tests.unit.service.advice.past_cluster import jobs_of, nodes_of, run

NOW_S = 1_700_000_000.0
AHEAD = Spread(NOW_S + 700.0, NOW_S + 1000.0, NOW_S + 1400.0)


def _learnt(errors: list[float]) -> Calibration:
    """Past forecasts, one after another, that were off by so many seconds."""
    found = Calibration()
    checked = [
        Checked(
            Kind.START_LATER,
            NOW_S + 5000.0 * number,
            str(number),
            Spread(*(at_s + 5000.0 * number for at_s in (AHEAD.p10_s, AHEAD.p50_s, AHEAD.p90_s))),
            AHEAD.p50_s + 5000.0 * number + error_s,
        )
        for number, error_s in enumerate(errors)
    ]
    found.learn(checked)
    return found


def test_without_a_past_the_interval_stays_about_as_it_is() -> None:
    found = Calibration().apply(Kind.START_LATER, AHEAD, NOW_S)
    assert found.p50_s == pytest.approx(AHEAD.p50_s, abs=1.0)
    assert found.p10_s == pytest.approx(AHEAD.p10_s, abs=100.0) and found.p90_s == pytest.approx(AHEAD.p90_s, abs=120.0)


def test_jobs_that_were_late_widen_the_late_side_alone() -> None:
    random = np.random.default_rng(1)
    late = _learnt([float(error_s) for error_s in random.uniform(-100.0, 2000.0, 300)])
    found = late.apply(Kind.START_LATER, AHEAD, NOW_S)
    assert found.p90_s > AHEAD.p50_s + 1500.0
    assert found.p10_s > AHEAD.p10_s


def test_forecasts_that_were_too_cautious_are_narrowed() -> None:
    random = np.random.default_rng(2)
    found = _learnt([float(error_s) for error_s in random.uniform(-10.0, 10.0, 300)]).apply(
        Kind.START_LATER, AHEAD, NOW_S
    )
    assert found.p90_s - found.p10_s < 60.0


def test_kinds_are_apart() -> None:
    late = _learnt([5000.0] * 200)
    assert late.apply(Kind.END_RUNNING, AHEAD, NOW_S) == Calibration().apply(Kind.END_RUNNING, AHEAD, NOW_S)


def test_no_quantile_lies_in_the_past() -> None:
    found = _learnt([-5000.0] * 200).apply(Kind.START_LATER, AHEAD, NOW_S)
    assert min(found.p10_s, found.p50_s, found.p90_s) >= NOW_S


def test_a_spread_is_judged_by_what_was_known_before_it() -> None:
    """The first forecast of all is shown as it is, whatever becomes of it and of later ones."""
    checked = [
        Checked(Kind.START_LATER, NOW_S + 5000.0 * number, str(number), AHEAD, NOW_S + 1e6) for number in range(50)
    ]
    shown = Calibration().learn(checked)
    assert shown[0] == Calibration().apply(Kind.START_LATER, AHEAD, NOW_S)


def test_a_calibration_survives_being_written() -> None:
    made = _learnt([100.0, -50.0, 3000.0] * 20)
    again = Calibration.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.apply(Kind.START_LATER, AHEAD, NOW_S).p90_s == pytest.approx(
        made.apply(Kind.START_LATER, AHEAD, NOW_S).p90_s, abs=0.1
    )


def test_kinds_of_forecasts() -> None:
    assert start_kind(Spread(NOW_S, NOW_S, NOW_S), NOW_S) is Kind.START_NOW
    assert start_kind(AHEAD, NOW_S) is Kind.START_LATER
    assert end_kind(running=True) is Kind.END_RUNNING and end_kind(running=False) is Kind.END_WAITING


def test_scores_are_in_widths_of_the_side() -> None:
    assert score(AHEAD, NOW_S, NOW_S + 1800.0) == pytest.approx(2.0)
    assert score(AHEAD, NOW_S, NOW_S + 400.0) == pytest.approx(-2.0)


def test_a_narrow_forecast_of_a_far_time_is_no_certainty() -> None:
    """The single jobs of a long queue average out; a tenth of the time ahead is in doubt all the same."""
    narrow = Spread(NOW_S + 999.0, NOW_S + 1000.0, NOW_S + 1001.0)
    found = Calibration().apply(Kind.START_LATER, narrow, NOW_S)
    assert found.p10_s < NOW_S + 900.0 and found.p90_s > NOW_S + 1100.0


def test_instants_divide_the_submissions_evenly() -> None:
    assert instants(range(100), 20.0, 59.0, 4) == [25, 35, 45, 55]
    assert instants([1.0, 2.0], 0.0, 9.0, 4) == [1.0, 2.0]


def test_intervals_of_starts_hold_on_clusters_that_they_were_not_made_for() -> None:
    """Three days of a cluster whose scheduler shares no code with the forecasts: 80% intervals hold 70% to 88%.

    The seeds are not those by which the method was chosen. Raw forecasts hold far less, so that the calibration is needed.
    """
    inside, raw = [], []
    for seed in (210, 211, 212):
        past = run(jobs_of(seed, 300, servers=6, load=0.95), 6, seed)
        learner = Learner()
        checked = rehearse(learner.replay(past), nodes_of(6), until_s=past[-1].asked.submitted_at_s, count=40)
        shown = Calibration().learn(checked)
        later = sorted({each.at_s for each in checked})[10]
        for each, spread in zip(checked, shown, strict=True):
            if each.at_s >= later and each.kind in (Kind.START_NOW, Kind.START_LATER):
                inside.append(spread.p10_s <= each.actual_s <= spread.p90_s)
                raw.append(each.spread.p10_s <= each.actual_s <= each.spread.p90_s)
    assert len(inside) > 200
    assert np.mean(raw) < 0.7
    assert 0.70 <= np.mean(inside) <= 0.88
