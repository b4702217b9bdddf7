"""Promised ends: the share that is kept, what comes before a job, and when its slack is gone."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.ids import JobId
from policies.state.promises import (
    HALVINGS_MAX,
    LATE_RATIO,
    RATIO_AT_FIRST,
    RATIOS_MAX,
    RATIOS_MIN,
    STEP,
    Calibration,
    Promise,
    Promises,
    Record,
    WaitingWork,
)


def _promise(calibration: Calibration, nominal_s: float = 100.0) -> Promise:
    return Promise(0.0, calibration.ratio(nominal_s) * nominal_s, 10.0, nominal_s)


def _kept(calibration: Calibration, needed_s: list[float]) -> float:
    """The share of jobs, one after the other, that end in time."""
    kept = 0
    for number, end_s in enumerate(needed_s):
        promise = _promise(calibration)
        in_time = end_s <= promise.end_s
        calibration.settle(JobId(number), promise, end_s if in_time else None)
        if not in_time:
            calibration.correct(JobId(number), promise, end_s)
        kept += in_time
    return kept / len(needed_s)


@pytest.mark.parametrize("wanted", [0.5, 0.9, 0.95])
def test_the_wanted_share_is_kept_although_the_workload_changes(wanted: float) -> None:
    dice = random.Random(3)
    needed_s = [100.0 * dice.lognormvariate(0.0, 0.5) for _ in range(1500)]
    needed_s += [100.0 * dice.lognormvariate(1.5, 1.0) for _ in range(1500)]
    assert _kept(Calibration(wanted), needed_s) == pytest.approx(wanted, abs=0.02)


def test_jobs_that_end_just_before_their_promise_make_later_promises_shorter() -> None:
    """As jobs do that come first when they must: without the moving level the promised ratio would prove itself for ever."""
    calibration = Calibration(0.9)
    dice = random.Random(1)
    first = None
    for number in range(2000):
        promise = _promise(calibration)
        first = first or promise.end_s
        natural_s = 100.0 * dice.lognormvariate(0.0, 1.0)
        end_s = natural_s if natural_s < promise.end_s else max(110.0, promise.end_s - 1.0)
        calibration.settle(JobId(number), promise, end_s if end_s <= promise.end_s else None)
    assert first is not None
    assert 100.0 < _promise(calibration).end_s < 0.5 * first


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), min_size=RATIOS_MIN, max_size=200), st.sampled_from([0.5, 0.8, 0.9]))
def test_the_share_follows_from_how_far_the_level_moved(kept: list[bool], wanted: float) -> None:
    record = Record(wanted)
    for number, each in enumerate(kept):
        before = record.level
        record.note(JobId(number), 1.0)
        record.move(wanted, kept=each)
        if 0.0 < record.level < 1.0:
            assert record.level - before == pytest.approx(STEP * (wanted - each))
    assert 0.0 <= record.level <= 1.0


def test_a_class_with_few_jobs_uses_the_record_of_all() -> None:
    calibration = Calibration(0.9)
    assert calibration.ratio(100.0) == RATIO_AT_FIRST
    for number in range(RATIOS_MIN):
        calibration.settle(JobId(number), Promise(0.0, 500.0, 0.0, 100.0), 200.0)
    assert calibration.ratio(100.0) == calibration.ratio(1e6) == 2.0
    for number in range(RATIOS_MIN):
        calibration.settle(JobId(100 + number), Promise(0.0, 5e6, 0.0, 1e6), 4e6)
    assert (calibration.ratio(100.0), calibration.ratio(1e6)) == (2.0, 4.0)


def test_a_late_job_counts_before_its_end_and_correctly_after_it() -> None:
    record = Record(0.9, ((JobId(number), 1.0) for number in range(RATIOS_MIN)))
    calibration = Calibration(0.9, {"all": [0.9, [[job, ratio] for job, ratio in record.ratios.items()]]})
    promise = Promise(0.0, 150.0, 0.0, 100.0)
    calibration.settle(JobId(99), promise, None)
    assert calibration.ratio(100.0) == LATE_RATIO * 1.5
    calibration.correct(JobId(99), promise, 160.0)
    assert calibration.ratio(100.0) == 1.6


def test_old_ratios_are_forgotten() -> None:
    record = Record(0.9)
    for number in range(3 * RATIOS_MAX):
        record.note(JobId(number), float(number))
    assert sorted(record.ratios) == list(range(2 * RATIOS_MAX, 3 * RATIOS_MAX))
    record.correct(JobId(0), 1e9)
    assert record.ratio < 3 * RATIOS_MAX


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 1e6), st.floats(0.0, 1e6)), max_size=40), st.randoms())
def test_the_sum_of_the_work_ahead_does_not_depend_on_the_order(
    jobs: list[tuple[int, float, float]], dice: random.Random
) -> None:
    last = {job: (rank, work_s) for job, rank, work_s in jobs}
    grown, fresh = WaitingWork(), WaitingWork()
    for job, rank, work_s in jobs:
        grown.add(JobId(job), rank, work_s)
    shuffled = list(last)
    dice.shuffle(shuffled)
    for job in shuffled:
        fresh.add(JobId(job), *last[job])
    for job in last:
        assert grown.ahead_s(JobId(job)) == fresh.ahead_s(JobId(job))
    for job in last:
        grown.remove(JobId(job))
    grown.add(JobId(77), 1.0, 1.0)
    assert grown.ahead_s(JobId(77)) == 0.0


def test_better_ranks_come_before_a_job_and_worse_ones_do_not() -> None:
    work = WaitingWork()
    for job, rank in ((1, 10.0), (2, 100.0), (3, 1000.0)):
        work.add(JobId(job), rank, rank)
    assert [work.ahead_s(JobId(job)) for job in (1, 2, 3)] == [0.0, 10.0, 110.0]
    work.add(JobId(4), 100.0, 50.0)
    assert work.ahead_s(JobId(2)) == 10.0 + 25.0


def test_each_halving_of_the_slack_counts_and_without_slack_the_promise_is_given_up() -> None:
    promises, job = Promises(0.9), JobId(1)
    promises.make(job, Promise(0.0, 100.0, 80.0, 20.0))
    told = [(promises.press(job, slack_s), promises.urgency.get(job)) for slack_s in (80.0, 41.0, 40.0, 20.0, 30.0)]
    assert told == [(40.0, None), (40.0, None), (20.0, 1), (10.0, 2), (10.0, 2)]
    assert promises.press(job, 1e-9) == 0.0
    assert promises.urgency[job] == HALVINGS_MAX
    assert promises.press(job, 0.0) is None
    assert promises.given_up == {job}
    assert promises.press(job, 50.0) is None
    assert not promises.urgency


def test_a_cancelled_job_teaches_nothing_and_every_other_one_once() -> None:
    promises = Promises(0.9)
    for number in range(3):
        promises.make(JobId(number), Promise(0.0, 100.0, 10.0, 50.0))
    promises.end(JobId(0), 60.0, counts=False)
    promises.end(JobId(1), 100.0, counts=True)
    promises.pass_end(JobId(2), 101.0)
    promises.pass_end(JobId(2), 102.0)
    promises.end(JobId(2), 150.0, counts=True)
    assert not promises.of
    assert promises.next_due_s() is None
    level, ratios = promises.calibration.dump()["all"]
    assert ratios == [[1, 2.0], [2, 3.0]]
    assert level == pytest.approx(0.9 + STEP * (0.9 - 1.0) + STEP * 0.9)
    again = Calibration(0.9, json.loads(json.dumps(promises.calibration.dump())))
    assert again.dump() == promises.calibration.dump()
