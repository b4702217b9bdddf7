"""The bound by hand, against brute force, and below every feasible schedule."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.bounds import BoundJob, lower_bound


def test_one_job_alone_is_bounded_by_its_own_duration() -> None:
    bounds = lower_bound([BoundJob(7.0, 2, 100.0)], 8)
    assert bounds.lower_bound_mean_jct_s == 100.0
    assert bounds.duration_mean_s == 100.0
    assert bounds.srpt_mean_jct_s == 25.0  # 2 x 100 / 8
    # Mean busy time is in the middle of the 25 s of work, and half the duration comes on top.
    assert bounds.mean_busy_mean_jct_s == pytest.approx(12.5 + 50.0)


def test_by_hand_two_jobs_on_one_gpu_with_a_preemption() -> None:
    # SRPT: A (10 s from 0) runs 0-2, B (3 s from 2) runs 2-5, A ends at 13: flows 13 and 3.
    bounds = lower_bound([BoundJob(0.0, 1, 10.0), BoundJob(2.0, 1, 3.0)], 1)
    assert bounds.srpt_mean_jct_s == pytest.approx(8.0)
    # M_A = (2 * 1 + 8 * 9) / 10 = 7.4, M_B = 3.5: (7.4 + 3.5 + 13 / 2 - 2) / 2
    assert bounds.mean_busy_mean_jct_s == pytest.approx(7.7)
    assert bounds.lower_bound_mean_jct_s == pytest.approx(8.0)


def test_the_third_term_keeps_the_original_size_not_the_remaining_one() -> None:
    # At 8 s A has 2 s left but is 10 s long: B of 3 s goes first here, and last under SRPT.
    bounds = lower_bound([BoundJob(0.0, 1, 10.0), BoundJob(8.0, 1, 3.0)], 1)
    assert bounds.srpt_mean_jct_s == pytest.approx((10.0 + 5.0) / 2)
    # M_A = (8 * 4 + 2 * 12) / 10 = 5.6, M_B = 9.5
    assert bounds.mean_busy_mean_jct_s == pytest.approx((5.6 + 9.5 + 6.5 - 8.0) / 2)


def test_gangs_share_the_machine_by_gpu_seconds() -> None:
    # Four whole-cluster jobs of 10 s at once: they can only run one after the other.
    bounds = lower_bound([BoundJob(0.0, 4, 10.0)] * 4, 4)
    assert bounds.lower_bound_mean_jct_s == pytest.approx(25.0)


def test_by_hand_where_the_third_term_is_the_tight_one() -> None:
    # Eight single-GPU jobs of 10 s on 4 GPUs: four end at 10 s, four at 20 s, and that is the optimum.
    bounds = lower_bound([BoundJob(0.0, 1, 10.0)] * 8, 4)
    assert bounds.srpt_mean_jct_s == pytest.approx(11.25)
    assert bounds.duration_mean_s == 10.0
    assert bounds.lower_bound_mean_jct_s == bounds.mean_busy_mean_jct_s == pytest.approx(15.0)


def test_idle_time_between_releases_is_not_work() -> None:
    bounds = lower_bound([BoundJob(0.0, 1, 1.0), BoundJob(100.0, 1, 1.0)], 1)
    assert bounds.lower_bound_mean_jct_s == pytest.approx(1.0)


def test_no_jobs_have_no_mean() -> None:
    assert lower_bound([], 4).lower_bound_mean_jct_s == 0.0


@pytest.mark.parametrize(
    ("job", "gpus"),
    [
        (BoundJob(0.0, 5, 1.0), 4),
        (BoundJob(0.0, 0, 1.0), 4),
        (BoundJob(0.0, 1, 0.0), 4),
        (BoundJob(0.0, 1, float("nan")), 4),
        (BoundJob(float("inf"), 1, 1.0), 4),
        (BoundJob(0.0, 1, 1.0), 0),
    ],
)
def test_instances_without_a_schedule_are_refused(job: BoundJob, gpus: int) -> None:
    with pytest.raises(ValueError):
        lower_bound([job], gpus)


def _list_schedule_mean_jct_s(jobs: list[BoundJob], gpus: int, order: tuple[int, ...]) -> float:
    """Mean JCT of the non-preemptive schedule that, at every instant, starts what fits in this order (pooled GPUs)."""
    waiting = list(order)
    running: list[tuple[float, int]] = []
    total_s, now_s = 0.0, 0.0
    while waiting:
        for job in list(waiting):
            if jobs[job].release_s <= now_s and jobs[job].gpus <= gpus - sum(g for _, g in running):
                waiting.remove(job)
                running.append((now_s + jobs[job].duration_s, jobs[job].gpus))
                total_s += now_s + jobs[job].duration_s - jobs[job].release_s
        instants = [end_s for end_s, _ in running] + [
            jobs[job].release_s for job in waiting if jobs[job].release_s > now_s
        ]
        if waiting:
            now_s = min(instants)
            running = [(end_s, g) for end_s, g in running if end_s > now_s]
    return total_s / len(jobs)


def _preemptive_mean_jct_s(jobs: list[BoundJob], gpus: int, order: tuple[int, ...]) -> float:
    """Mean JCT when, second by second, the unfinished jobs run that fit in this order (whole seconds, free preemption)."""
    left = [int(job.duration_s) for job in jobs]
    total_s, now_s = 0.0, 0
    while any(left):
        free = gpus
        for job in order:
            if left[job] and jobs[job].release_s <= now_s and jobs[job].gpus <= free:
                free -= jobs[job].gpus
                left[job] -= 1
                if not left[job]:
                    total_s += now_s + 1 - jobs[job].release_s
        now_s += 1
    return total_s / len(jobs)


GPUS = 4
instances = st.lists(
    st.builds(
        BoundJob,
        st.integers(0, 12).map(float),
        st.integers(1, GPUS),
        st.integers(1, 9).map(float),
    ),
    min_size=1,
    max_size=5,
)


@given(instances)
@settings(max_examples=150, deadline=None)
def test_never_above_any_feasible_schedule(jobs: list[BoundJob]) -> None:
    bound_s = lower_bound(jobs, GPUS).lower_bound_mean_jct_s
    for order in permutations(range(len(jobs))):
        assert bound_s <= _list_schedule_mean_jct_s(jobs, GPUS, order) + 1e-9
        assert bound_s <= _preemptive_mean_jct_s(jobs, GPUS, order) + 1e-9


def _least_preemptive_sum_s(
    state: tuple[tuple[int, ...], int], jobs: list[BoundJob], known: dict[object, float]
) -> float:
    """Least sum of completion times from here on one machine in whole seconds, by trying every job in every second."""
    left, now_s = state
    if not any(left):
        return 0.0
    if state not in known:
        ready = [job for job, rest in enumerate(left) if rest and jobs[job].release_s <= now_s]
        best_s = float("inf")
        for job in ready or [None]:
            after = left if job is None else (*left[:job], left[job] - 1, *left[job + 1 :])
            ended_s = now_s + 1.0 if job is not None and not after[job] else 0.0
            best_s = min(best_s, ended_s + _least_preemptive_sum_s((after, now_s + 1), jobs, known))
        known[state] = best_s
    return known[state]


@given(
    st.lists(
        st.builds(BoundJob, st.integers(0, 5).map(float), st.just(1), st.integers(1, 4).map(float)),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_srpt_term_is_the_optimum_of_one_machine(jobs: list[BoundJob]) -> None:
    best_s = _least_preemptive_sum_s((tuple(int(job.duration_s) for job in jobs), 0), jobs, {})
    releases_s = sum(job.release_s for job in jobs)
    assert lower_bound(jobs, 1).srpt_mean_jct_s == pytest.approx((best_s - releases_s) / len(jobs))


@given(instances, st.floats(-1e6, 1e6))
@settings(max_examples=60, deadline=None)
def test_shifting_all_releases_changes_nothing_and_order_does_not_matter(jobs: list[BoundJob], shift_s: float) -> None:
    shifted = [BoundJob(job.release_s + shift_s, job.gpus, job.duration_s) for job in reversed(jobs)]
    assert lower_bound(shifted, GPUS).lower_bound_mean_jct_s == pytest.approx(
        lower_bound(jobs, GPUS).lower_bound_mean_jct_s, rel=1e-6
    )
