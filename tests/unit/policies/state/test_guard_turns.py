"""Turns of guarded gangs: what they take from the other jobs, and when the next may begin."""

import json

import pytest

from policies.model.ids import JobId
from policies.state.guard_turns import GuardTurns, Turn


def test_the_next_turn_begins_when_the_last_one_has_taken_no_more_than_the_share() -> None:
    """Eight GPUs for 50 s are 400 GPU seconds: of one GPU 400 s."""
    turns = GuardTurns()
    turns.follow(Turn(JobId(1), 100.0, 8.0), 100.0, 1.0)
    turns.follow(Turn(JobId(1), 100.0, 8.0), 120.0, 1.0)
    assert turns.next_from_s == 0.0
    turns.follow(None, 150.0, 1.0)
    assert turns.next_from_s == 500.0
    turns.follow(None, 160.0, 1.0)
    assert turns.next_from_s == 500.0


def test_a_gang_that_starts_again_has_another_turn() -> None:
    turns = GuardTurns()
    turns.follow(Turn(JobId(1), 100.0, 2.0), 100.0, 1.0)
    turns.follow(Turn(JobId(1), 130.0, 2.0), 130.0, 1.0)
    assert turns.next_from_s == 160.0


def test_gpus_that_would_idle_without_the_gang_are_not_taken_from_others() -> None:
    turns = GuardTurns()
    turns.watch(0.0, {"A100": 3, "V100": 8}, 100.0)
    turns.watch(10_000.0, None, 100.0)
    assert turns.taken_gpus(8, "A100") == pytest.approx(2.0)
    assert turns.taken_gpus(4, "A100") == 0.0
    assert turns.taken_gpus(8, "T4") == 8.0


def test_time_in_which_no_job_waits_or_a_gang_has_its_turn_does_not_count() -> None:
    turns = GuardTurns()
    turns.watch(0.0, {"V100": 4}, 100.0)
    turns.watch(1000.0, None, 100.0)
    idle = 8.0 - turns.taken_gpus(8, "V100")
    turns.watch(9000.0, {"V100": 0}, 100.0)
    assert 8.0 - turns.taken_gpus(8, "V100") == idle
    turns.watch(9100.0, {"V100": 0}, 100.0)
    assert 8.0 - turns.taken_gpus(8, "V100") == pytest.approx(idle / 2.718281828)


def test_a_dump_goes_on_where_the_turns_were() -> None:
    turns, again = GuardTurns(), GuardTurns()
    turns.watch(0.0, {"V100": 4}, 100.0)
    turns.watch(50.0, {"V100": 2}, 100.0)
    turns.follow(Turn(JobId(3), 60.0, 2.5), 70.0, 1.0)
    again.restore(json.loads(json.dumps(turns.dump())))
    assert again.dump() == turns.dump()
    for each in (turns, again):
        each.watch(90.0, None, 100.0)
        each.follow(None, 100.0, 1.0)
    assert again.dump() == turns.dump()
    assert again.next_from_s == 160.0
    empty = GuardTurns()
    empty.restore({})
    assert empty.dump() == GuardTurns().dump()
