"""Tracked interval ends: single steps by hand, which distribution serves, and the coverage of drifting streams."""

import dataclasses
import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import Unit
from predictor import tracking
from predictor.evaluation import inside, middle
from predictor.intervals import NORMAL_POINTS, Array, ConformalCalibrator
from predictor.pending import TRACKED, UNTRACKED, PendingPrediction, thin, tracked_shadows
from predictor.tracking import JOBS_MIN, IntervalTracker, Tracked

BUCKET = 3
POINTS = 6.0 + NORMAL_POINTS
"""Log points whose 80% interval is 6 +- 1.28."""


def _told(*labels: float, points: Array = POINTS, bucket: int = BUCKET) -> IntervalTracker:
    tracker = IntervalTracker()
    for label in labels:
        tracker.observe(bucket, label, tracker.track(bucket, points))
    return tracker


def test_a_miss_moves_its_end_out_and_a_hit_moves_both_in() -> None:
    assert _told().margins(BUCKET) == (0.0, 0.0)
    assert _told(6.0).margins(BUCKET) == pytest.approx((-0.001, -0.001))
    assert _told(9.0).margins(BUCKET) == pytest.approx((-0.001, 0.009))
    assert _told(3.0, 3.0, 6.0).margins(BUCKET) == pytest.approx((0.017, -0.003))
    assert _told(9.0).margins(0) == (0.0, 0.0), "of its own bucket alone"


def test_the_points_move_with_their_end_and_the_middle_stays() -> None:
    """200 misses above: the upper end goes up by 1.8 and the lower one, always hit, up by 0.2."""
    tracker = _told(*[100.0] * 200)
    assert tracker.margins(BUCKET) == pytest.approx((-0.2, 1.8))
    moved = tracker.track(BUCKET, POINTS).moved
    assert tracking._ends(moved) == pytest.approx((6.0 - 1.2816 + 0.2, 6.0, 6.0 + 1.2816 + 1.8), abs=0.01)
    assert middle(moved[None, :]) == pytest.approx(6.0)
    assert (np.diff(moved) >= 0.0).all()


def test_an_interval_never_turns_inside_out_and_does_not_wind_up() -> None:
    """Everybody takes as long as the middle says: the ends come in as far as they may and stop there."""
    tracker = _told(*[6.0] * 5_000, points=6.0 + 0.1 * NORMAL_POINTS)
    assert -0.14 < tracker.margins(BUCKET)[0] < -0.1
    moved = tracker.track(BUCKET, 6.0 + 0.1 * NORMAL_POINTS).moved
    assert (np.diff(moved) >= 0.0).all()
    assert np.ptp(moved) < 0.1
    assert np.ptp(_told(*[6.0] * 100, points=np.full(32, 6.0)).track(BUCKET, np.full(32, 6.0)).moved) == 0.0


def test_tracked_ends_serve_where_they_lose_less_and_not_before_50_jobs() -> None:
    """All truths are inside either way, and nearer to the middle than the wider one claims."""
    tracker = IntervalTracker()
    for job in range(JOBS_MIN):
        assert not tracker.serves(BUCKET)
        tracker.observe(BUCKET, 6.0 + 0.1 * (job % 3), Tracked(POINTS, 6.0 + 0.5 * NORMAL_POINTS, False))
    assert tracker.serves(BUCKET)
    assert not tracker.serves(0)
    for job in range(JOBS_MIN + 1):
        tracker.observe(BUCKET, 6.0 + 0.1 * (job % 3), Tracked(6.0 + 0.5 * NORMAL_POINTS, POINTS, False))
    assert not tracker.serves(BUCKET), "by now it has lost more"


def test_after_a_burst_the_ends_of_all_others_do_not_pay() -> None:
    """60 misses at once, said before any of them ended; then all is as it was: wide ends would cost and do not serve."""
    rng = np.random.default_rng(0)
    tracker = _told(*(6.0 + rng.standard_normal(1_000)).tolist())
    before = tracker.track(BUCKET, POINTS)
    for _ in range(60):
        tracker.observe(BUCKET, 8.0, before)
    for label in (6.0 + rng.standard_normal(60)).tolist():
        tracker.observe(BUCKET, label, tracker.track(BUCKET, POINTS))
    assert tracker.margins(BUCKET)[1] > 0.3
    assert not tracker.serves(BUCKET)


def test_too_small_a_share_inside_makes_tracked_ends_serve_whatever_they_cost() -> None:
    tracker = IntervalTracker()
    costly = Tracked(POINTS, 6.0 + 50.0 * NORMAL_POINTS, False)
    for job in range(100):
        tracker.observe(BUCKET, 6.0 if job % 4 else 7.5, costly)
    assert not tracker.serves(BUCKET), "75 of 100 are inside"
    tracker.observe(BUCKET, 7.5, costly)
    assert tracker.serves(BUCKET)


def test_only_the_newest_jobs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "COVERED_MAX", 60)
    tracker = _told(*[100.0] * 60)
    assert tracker.serves(BUCKET)
    cheap = Tracked(POINTS, POINTS, False)
    for _ in range(90):
        tracker.observe(BUCKET, 6.0, cheap)
    assert tracker._inside[BUCKET].total == len(tracker._inside[BUCKET]) == 60


@pytest.mark.parametrize("points", [8, 32])
def test_the_ends_of_thinned_points_are_those_of_all(points: int) -> None:
    said = POINTS if points == 32 else thin(POINTS)
    assert tracking._ends(said) == pytest.approx((6.0 - 1.2816, 6.0, 6.0 + 1.2816), abs=0.02)


@pytest.mark.parametrize("serves", [True, False])
def test_what_was_said_is_read_again_from_its_shadows(serves: bool) -> None:
    plain, moved = thin(POINTS), thin(6.0 + 2.0 * NORMAL_POINTS)
    pending = PendingPrediction(
        {}, Unit.SERVICE_S, version="m-1", shadow_points=tracked_shadows("m-1", Tracked(plain, moved, serves))
    )
    assert pending.shadow_points.keys() == {"m-1/mix", UNTRACKED if serves else TRACKED}
    assert pending.mixed is (moved if serves else plain)
    tracked = pending.tracked
    assert tracked is not None
    assert (tracked.plain is plain, tracked.moved is moved, tracked.moved_serves) == (True, True, serves)
    same = PendingPrediction({}, Unit.SERVICE_S, shadow_points=tracked_shadows("", Tracked(plain, plain, False)))
    assert same.shadow_points.keys() == {"baseline/mix"}
    assert same.tracked == Tracked(plain, plain, False)
    assert PendingPrediction({}, Unit.SERVICE_S).tracked is None


# Coverage, whatever comes


@dataclasses.dataclass(frozen=True)
class _Coverage:
    calibrated: float
    tracked: float
    served: float


def _covered(labels: Array, delay: int) -> _Coverage:
    """Shares inside the 80% interval of rolling calibration alone, of tracked ends, and of what serves. A label is known
    ``delay`` jobs later.
    """
    tracker, calibrator = IntervalTracker(), ConformalCalibrator()
    raw = 6.0 + 0.5 * NORMAL_POINTS
    waiting: deque[tuple[float, Tracked]] = deque()
    said = []
    for label in labels.tolist():
        if len(waiting) == delay:
            ended, before = waiting.popleft()
            tracker.observe(BUCKET, ended, before)
            calibrator.observe(BUCKET, ended, raw)
        said.append(tracker.track(BUCKET, calibrator.calibrate(BUCKET, raw)))
        waiting.append((label, said[-1]))
    plain, moved, served = (np.array(each) for each in zip(*((s.plain, s.moved, s.served) for s in said), strict=True))
    return _Coverage(*(float(inside(labels, points, 0.8).mean()) for points in (plain, moved, served)))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    block=st.integers(50, 1_500),
    shift=st.floats(0.0, 1.0),
    spread=st.floats(0.0, 0.7),
    delay=st.integers(1, 40),
)
def test_a_stream_that_jumps_is_covered_in_the_long_run(
    seed: int, block: int, shift: float, spread: float, delay: int
) -> None:
    """Location and spread are drawn anew every so many jobs: by up to a factor e, and between half and twice as wide."""
    rng = np.random.default_rng(seed)
    blocks = np.arange(4_000) // block
    at, wide = rng.uniform(-shift, shift, blocks[-1] + 1), np.exp(rng.uniform(-spread, spread, blocks[-1] + 1))
    found = _covered(6.0 + at[blocks] + wide[blocks] * rng.standard_normal(4_000), delay)
    assert 0.75 <= found.tracked <= 0.87
    assert 0.75 <= found.served <= 0.87


@pytest.mark.slow
@pytest.mark.parametrize(
    "drift",
    [
        pytest.param(lambda job: 3.0 * np.sin(job / 500.0), id="it comes and goes"),
        pytest.param(lambda job: 0.002 * job, id="it only grows"),
        pytest.param(lambda job: np.where(job // 400 % 2, 1.5, -1.5), id="it jumps to and fro"),
    ],
)
def test_where_a_window_comes_late_tracked_ends_hold(drift: object) -> None:
    assert callable(drift)
    job = np.arange(6_000)
    labels = 6.0 + np.asarray(drift(job)) + 0.5 * np.random.default_rng(0).standard_normal(6_000)
    found = _covered(labels, 20)
    assert found.calibrated < 0.75
    assert 0.75 <= found.served <= 0.87


def test_steady_jobs_are_served_as_well_as_without() -> None:
    found = _covered(6.0 + 0.5 * np.random.default_rng(1).standard_normal(2_000), 5)
    assert abs(found.served - 0.8) < 0.02
    assert math.isclose(found.tracked, 0.8, abs_tol=0.02)
