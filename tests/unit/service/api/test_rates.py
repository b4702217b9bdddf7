"""Token buckets: never more than promised, never longer to wait than told, never more of them than allowed."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.rates import Buckets


class Ticking:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_then_the_rate() -> None:
    clock = Ticking()
    buckets = Buckets(2.0, 3, now_s=clock)
    assert [buckets.take("a") for _ in range(3)] == [0.0] * 3
    assert buckets.take("a") == pytest.approx(0.5)
    clock.now_s += 0.5
    assert buckets.take("a") == 0.0
    assert buckets.take("a") == pytest.approx(0.5)
    clock.now_s += 1000.0
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, pytest.approx(0.5)]


def test_names_do_not_pay_for_each_other() -> None:
    buckets = Buckets(1.0, 1, now_s=Ticking())
    assert buckets.take("a") == 0.0
    assert buckets.take("a") > 0.0
    assert buckets.take("b") == 0.0


def test_asking_how_long_takes_nothing() -> None:
    buckets = Buckets(1.0, 1, now_s=Ticking())
    assert [buckets.wait_s("a") for _ in range(5)] == [0.0] * 5
    assert len(buckets) == 0
    assert buckets.take("a") == 0.0
    assert buckets.wait_s("a") == 1.0


steps = st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from("ab")), max_size=60)


@settings(max_examples=200, deadline=None)
@given(steps=steps, per_s=st.floats(0.1, 20.0), burst=st.integers(1, 10))
def test_no_span_of_time_grants_more_than_its_share(steps: list[tuple[float, str]], per_s: float, burst: int) -> None:
    clock = Ticking()
    buckets = Buckets(per_s, burst, now_s=clock)
    granted: dict[str, list[float]] = {"a": [], "b": []}
    for pause_s, name in steps:
        clock.now_s += pause_s
        if not buckets.take(name):
            granted[name].append(clock.now_s)
    for times in granted.values():
        for first in range(len(times)):
            for last in range(first, len(times)):
                assert last - first + 1 <= burst + (times[last] - times[first]) * per_s + 1e-6


@settings(max_examples=200, deadline=None)
@given(steps=steps, per_s=st.floats(0.1, 20.0), burst=st.integers(1, 10))
def test_whoever_waits_as_long_as_told_is_let_in(steps: list[tuple[float, str]], per_s: float, burst: int) -> None:
    clock = Ticking()
    buckets = Buckets(per_s, burst, now_s=clock)
    for pause_s, name in steps:
        clock.now_s += pause_s
        wait_s = buckets.take(name)
        if wait_s:
            clock.now_s += wait_s + 1e-9
            assert buckets.take(name) == 0.0


def test_there_are_never_more_buckets_than_allowed_and_the_longest_unused_goes() -> None:
    buckets = Buckets(0.001, 2, now_s=Ticking(), buckets_max=3)
    for name in ("a", "b", "c"):
        buckets.take(name)
    buckets.take("a")
    buckets.take("d")
    assert len(buckets) == 3
    assert buckets.take("a") > 0.0, "it is still remembered"
    assert [buckets.take("b") for _ in range(2)] == [0.0, 0.0], "it was forgotten, and is full again"
    for number in range(1000):
        buckets.take(f"guess-{number}")
    assert len(buckets) == 3


def test_threads_share_one_bucket() -> None:
    buckets = Buckets(0.001, 100, now_s=Ticking())
    granted: list[float] = []

    def ask() -> None:
        granted.extend(wait_s for wait_s in (buckets.take("a") for _ in range(50)) if not wait_s)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 100
