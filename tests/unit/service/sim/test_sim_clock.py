"""Simulated time: total order, whole instants, never backwards."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.sim.clock import Priority, SimClock


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Priority)), max_size=30))
@settings(max_examples=80, deadline=None)
def test_events_come_by_time_then_priority_then_order_of_scheduling(entries: list[tuple[int, Priority]]) -> None:
    clock = SimClock()
    seen: list[tuple[float, Priority, int]] = []
    for serial, (at, priority) in enumerate(entries):
        clock.schedule(float(at), priority, lambda at=at, p=priority, n=serial: seen.append((float(at), p, n)))
    while clock.next_at_s is not None:
        at_s = clock.next_at_s
        clock.advance(at_s)
        assert clock.now_s() == at_s
        assert all(entry[0] <= at_s for entry in seen)
        assert sum(entry[0] == at_s for entry in seen) == sum(at == at_s for at, _ in entries)
    assert seen == sorted(seen)
    assert clock.events == len(entries)


def test_an_event_may_add_to_its_own_instant() -> None:
    clock = SimClock()
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        clock.schedule(2.0, Priority.FINISH, lambda: seen.append("added"))

    clock.schedule(2.0, Priority.START, first)
    clock.schedule(2.0, Priority.ARRIVAL, lambda: seen.append("last"))
    clock.advance(2.0)
    assert seen == ["first", "added", "last"]


def test_time_does_not_go_back_and_skips_no_event() -> None:
    clock = SimClock(5.0)
    clock.schedule(8.0, Priority.FINISH, lambda: None)
    for to_s in (4.0, 9.0, float("nan")):
        with pytest.raises(ValueError, match="cannot move"):
            clock.advance(to_s)
    for at_s in (4.0, float("nan")):
        with pytest.raises(ValueError, match="cannot be scheduled"):
            clock.schedule(at_s, Priority.FINISH, lambda: None)
    clock.advance(6.5)
    assert (clock.now_s(), clock.events, clock.next_at_s) == (6.5, 0, 8.0)
