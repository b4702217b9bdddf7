"""What stays is looked through once, what is garbage is found all the same."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from service.runtime import garbage
from service.runtime.garbage import frozen, is_frozen, let_go, made_to_stay, set_aside, uncollected


class Circle:
    """Nobody but itself refers to it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def nothing_set_aside() -> Iterator[None]:
    callbacks = list(gc.callbacks)
    yield
    let_go()
    assert gc.callbacks == callbacks
    assert gc.isenabled()


def test_nothing_is_looked_for_within_and_everything_after() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the outer one has not ended"
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


def test_two_threads_that_overlap_leave_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first is about to end: who found the collector off must not be the one to leave it so."""
    first_within, second_asks, first_over = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with uncollected():
            first_within.set()
            second_asks.wait(0.2)
        first_over.set()

    def asked() -> bool:
        was = gc_isenabled()
        if first_within.is_set():
            second_asks.set()
            first_over.wait(60.0)
        return was

    gc_isenabled = gc.isenabled
    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    assert first_within.wait(60.0)
    monkeypatch.setattr(gc, "isenabled", asked)
    with uncollected():
        assert first_over.wait(60.0)
        assert not gc_isenabled(), "the second one has not ended"
    monkeypatch.undo()
    thread.join(60.0)
    assert gc.isenabled()


def test_what_is_made_to_stay_is_not_looked_through_afterwards() -> None:
    before = gc.get_freeze_count()
    with made_to_stay():
        many = [[number] for number in range(2000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(many)


def test_what_has_come_and_stays_is_set_aside_and_later_garbage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MANY", 1000)
    with set_aside():
        before = gc.get_freeze_count()
        few = [[number] for number in range(500)]
        gc.collect()
        assert gc.get_freeze_count() <= before, "too little to set aside"
        many = [[number] for number in range(2000)]
        gc.collect()
        assert gc.get_freeze_count() >= before + 2000
        circle = Circle()
        gone = weakref.ref(circle)
        del circle
        gc.collect()
        assert gone() is None
        assert len(few) + len(many) == 2500


def test_garbage_among_what_was_set_aside_is_found_when_much_more_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MANY", 1000)
    monkeypatch.setattr(garbage, "OFTEN", 2)
    kept: list[list[list[int]]] = []
    with set_aside():
        circle = Circle()
        gone = weakref.ref(circle)
        # As if there had been 2,500 at the start, and not all of this test run.
        [keeper] = [each for each in gc.callbacks if isinstance(each, garbage._Keeper)]
        keeper._all = 2500
        kept.append([[number] for number in range(2000)])
        gc.collect()
        del circle
        gc.collect()
        assert gone() is not None, "it was set aside while somebody had it"
        kept.append([[number] for number in range(2000)])
        gc.collect()
        assert gone() is not None
        kept.append([[number] for number in range(2000)])
        gc.collect()  # too much: what was set aside is looked through next time
        gc.collect()
        assert gone() is None
        assert gc.get_freeze_count() >= 6000, "and set aside again"


def test_who_lets_go_looks_through_everything() -> None:
    with set_aside():
        circle = Circle()
        gone = weakref.ref(circle)
        gc.freeze()
        del circle
        gc.collect()
        assert gone() is not None
    assert is_frozen()
    let_go()
    assert gone() is None
    assert gc.get_freeze_count() == 0
    assert not is_frozen()


def test_what_is_frozen_for_a_while_is_let_go_by_the_block_that_froze_it() -> None:
    let_go()
    with frozen():
        assert gc.get_freeze_count() > 0
        with frozen():
            pass
        assert gc.get_freeze_count() > 0, "the outer one has not ended"
    assert gc.get_freeze_count() == 0
    with made_to_stay():
        pass
    with frozen():
        pass
    assert gc.get_freeze_count() > 0, "somebody else had frozen it"
