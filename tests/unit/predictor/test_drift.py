"""ADWIN and the drift alarm: known changes are detected soon, constant streams raise none, and the alarm is stable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import drift
from predictor.drift import Adwin, DriftMonitor


def _errors(count: int, scale: float, seed: int) -> list[float]:
    return [abs(error) for error in np.random.default_rng(seed).normal(0.0, scale, count).tolist()]


def _fed(values: list[float]) -> tuple[Adwin, list[int]]:
    window = Adwin()
    return window, [position for position, value in enumerate(values) if window.update(value)]


@pytest.mark.parametrize("seed", range(5))
def test_a_doubled_error_is_found_within_a_hundred_jobs_and_the_past_is_forgotten(seed: int) -> None:
    window, cuts = _fed(_errors(1_500, 0.4, seed) + _errors(1_000, 0.8, seed + 100))
    assert 1_500 <= cuts[0] < 1_600
    assert window.width <= 1_100, "what came before the change is dropped"
    assert window.mean == pytest.approx(0.8 * np.sqrt(2.0 / np.pi), rel=0.1)


def test_false_alarms_are_rare_on_steady_streams() -> None:
    """200 streams of 1,000 values: at 31 looks each and a chance of 0.002 a look, 12 would be as promised."""
    assert sum(bool(_fed(_errors(1_000, 0.4, seed))[1]) for seed in range(200)) <= 4


def test_a_change_by_hand_is_cut_as_far_as_the_bound_reaches() -> None:
    """32 zeros, 32 ones: at 1/28 + 1/28, variance 1/4 and ln(2 ln 64 / 0.002) = 8.33 the bound is 0.545 + 0.397 < 1.

    Without the oldest five zeros it is 1/23 + 1/28, variance 0.248 and ln(2 ln 59 / 0.002) = 8.31: 0.572 + 0.439 > 1.
    """
    window, cuts = _fed([0.0] * 32 + [1.0] * 32)
    assert cuts == [63]
    assert (window.width, window.mean) == (59, 32 / 59)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 4.0), max_size=400))
def test_the_window_is_the_newest_values(values: list[float]) -> None:
    window = Adwin()
    for count, value in enumerate(values, start=1):
        window.update(value)
        newest = values[count - window.width : count]
        assert window.mean == pytest.approx(sum(newest) / len(newest), abs=1e-9)


def test_the_window_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "WINDOW_MAX", 64)
    window, cuts = _fed([*[1.0] * 20, *[1.25] * 100])
    assert (window.width, window.mean, cuts) == (64, 1.25, [])


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 4.0), st.integers(1, 500))
def test_constant_errors_are_never_a_change(value: float, count: int) -> None:
    assert _fed([value] * count)[1] == []


def _watched(monitor: DriftMonitor, errors: list[float], at_s: float = 0.0) -> list[int]:
    """Positions at which the alarm went on or off."""
    changes = []
    for position, error in enumerate(errors):
        before = monitor.alarm
        monitor.observe(error, at_s + position)
        if monitor.alarm is not before:
            changes.append(position)
    return changes


def test_the_alarm_is_raised_once_and_cleared_by_usual_errors() -> None:
    monitor = DriftMonitor()
    assert _watched(monitor, _errors(1_500, 0.4, 1)) == []
    (raised,) = _watched(monitor, _errors(600, 1.0, 2), at_s=1_500.0)
    assert raised < 150
    assert monitor.recent_mean == pytest.approx(0.8, abs=0.3)
    (cleared,) = _watched(monitor, _errors(2_000, 0.4, 3), at_s=2_100.0)
    assert cleared > 0


def test_smaller_errors_are_no_reason_to_complain() -> None:
    monitor = DriftMonitor()
    assert _watched(monitor, _errors(1_000, 0.8, 1) + _errors(1_000, 0.3, 2)) == []


def test_a_slow_rise_is_measured_from_its_foot() -> None:
    """Ten steps of 12%: none alone is worth an alarm, all together treble the error."""
    monitor = DriftMonitor()
    errors = [error for step in range(10) for error in _errors(600, 0.4 * 1.12**step, step)]
    _watched(monitor, errors)
    assert monitor.alarm


def test_one_absurd_job_is_no_drift() -> None:
    monitor = DriftMonitor()
    assert _watched(monitor, [*_errors(600, 0.4, 1), 1e9, *_errors(600, 0.4, 2)]) == []


def _bursts(jobs: int, seed: int, scale: float = 0.5) -> list[tuple[float, float, str]]:
    """(log error, end, user): heavy tails (Student's t, 2 degrees of freedom), and forty runs at a time that err alike."""
    rng = np.random.default_rng(seed)
    found: list[tuple[float, float, str]] = []
    at_s = 0.0
    while len(found) < jobs:
        shared, user = scale * rng.standard_t(2), f"user{int(rng.integers(20))}"
        for _ in range(1 + int(rng.geometric(1 / 40))):
            at_s += float(rng.exponential(60.0))
            found.append((float(shared + 0.2 * scale * rng.normal()), at_s, user))
    return found[:jobs]


def _alarms(errors: list[tuple[float, float, str]], *, by_user: bool) -> list[int]:
    """Positions at which the alarm was raised."""
    monitor, raised = DriftMonitor(), []
    for position, (error, at_s, user) in enumerate(errors):
        before = monitor.alarm
        monitor.observe(error, at_s, user if by_user else None)
        if monitor.alarm and not before:
            raised.append(position)
    return raised


def test_bursts_with_heavy_tails_are_no_drift() -> None:
    """Nothing changes in 20 streams of 4,000 jobs: taken for independent, they raise the alarm several times each."""
    streams = [_bursts(4_000, seed) for seed in range(20)]
    assert sum(len(_alarms(stream, by_user=False)) for stream in streams) >= 20
    assert sum(len(_alarms(stream, by_user=True)) for stream in streams) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_real_change_is_found_through_the_bursts(seed: int) -> None:
    """Errors four times as large from the 4,000th job on: some hundred bursts, a few thousand jobs, are enough to see it."""
    later = [(4.0 * error, at_s + 1e6, user) for error, at_s, user in _bursts(6_000, seed + 50)]
    raised = _alarms([*_bursts(4_000, seed), *later], by_user=True)
    assert any(4_000 <= position < 9_000 for position in raised)


def test_a_burst_counts_once_and_when_its_hour_is_over() -> None:
    monitor = DriftMonitor()
    for second in range(100):
        monitor.observe(1.0, float(second), "ada")
        monitor.observe(3.0, float(second), "bob")
    assert monitor._window.width == 0
    assert monitor.recent_mean > 1.0, "people see each error at once"
    monitor.observe(0.5, 3_600.0, "ada")
    assert (monitor._window.width, monitor._window.mean) == (2, 2.0)
    monitor.observe(0.5, 3_601.0)
    assert monitor._window.width == 3, "an error that is nobody's counts alone"
