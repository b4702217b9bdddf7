"""The priced bound: what a job pays by brute force, bounds by hand, and never above the best of all preemptive schedules."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pricing import _Market, priced_bound
from policies.bounds import BoundJob, lower_bound

HORIZON = 12


def least_payment_s(job: BoundJob, gpus: int, prices: list[float]) -> float:
    """The cheapest way to run the job in whole seconds, by trying all."""
    release, seconds = int(job.release_s), int(job.duration_s)
    free = HORIZON + seconds  # behind the horizon capacity costs nothing
    charged = [*prices, *[0.0] * seconds]
    return min(
        chosen[-1] + 1 - release + job.gpus / gpus * sum(charged[second] for second in chosen)
        for chosen in combinations(range(release, free), seconds)
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.sampled_from([0.0, 1.0, 3.0, 10.0, 40.0]), min_size=HORIZON, max_size=HORIZON),
)
def test_what_a_job_pays_and_demands(release: int, seconds: int, gpus: int, prices: list[float]) -> None:
    job = BoundJob(float(release), gpus, float(seconds))
    total_s, demand = _Market([job], 4, 0.0, 1.0, HORIZON).ask(prices)
    assert total_s + sum(prices) == pytest.approx(least_payment_s(job, 4, prices))
    assert sum(demand) <= gpus / 4 * seconds + 1e-9
    assert all(0.0 <= used <= gpus / 4 + 1e-9 for used in demand)


def best_sum_s(jobs: tuple[BoundJob, ...], gpus: int) -> float:
    """Least sum of completion times less releases over all preemptive schedules in whole seconds."""

    @cache
    def least(left: tuple[int, ...], now: int) -> float:
        if not any(left):
            return 0.0
        ready = [n for n, rest in enumerate(left) if rest and jobs[n].release_s <= now]
        best = float("inf")
        for size in range(len(ready) + 1):
            for chosen in combinations(ready, size):
                if sum(jobs[n].gpus for n in chosen) > gpus or (not chosen and ready):
                    continue
                after = tuple(rest - (n in chosen) for n, rest in enumerate(left))
                ended = sum(now + 1 - jobs[n].release_s for n in chosen if not after[n])
                best = min(best, ended + least(after, now + 1))
        return best

    return least(tuple(int(job.duration_s) for job in jobs), 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(BoundJob, st.integers(0, 5).map(float), st.integers(1, 3), st.integers(1, 4).map(float)),
        min_size=1,
        max_size=4,
    ),
    st.integers(3, 4),
    st.integers(1, 9),
)
def test_never_above_the_best_preemptive_schedule(jobs: list[BoundJob], gpus: int, cells: int) -> None:
    bound_s = priced_bound(jobs, gpus, cells=cells, steps=25).lower_bound_mean_jct_s
    assert bound_s <= best_sum_s(tuple(jobs), gpus) / len(jobs) + 1e-9
    assert bound_s >= lower_bound(jobs, gpus).lower_bound_mean_jct_s


def test_it_sees_that_a_job_cannot_use_all_gpus_at_once() -> None:
    # At 0 four jobs of 10 s fill 4 GPUs; at 1 four of 4 s come. The best is to stop the first four: 4 x 4 and 4 x 14.
    jobs = [BoundJob(0.0, 1, 10.0)] * 4 + [BoundJob(1.0, 1, 4.0)] * 4
    assert lower_bound(jobs, 4).lower_bound_mean_jct_s == pytest.approx(8.8)
    assert 8.9 <= priced_bound(jobs, 4, cells=28, steps=200).lower_bound_mean_jct_s <= 9.0


def test_no_jobs_and_no_queue() -> None:
    assert priced_bound([], 4).lower_bound_mean_jct_s == 0.0
    alone = priced_bound([BoundJob(5.0, 2, 7.0)], 4)
    assert (alone.lower_bound_mean_jct_s, set(alone.prices_s)) == (7.0, {0.0})


def test_an_instance_without_a_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="gang of 5 GPUs"):
        priced_bound([BoundJob(0.0, 5, 1.0)], 4)
