"""Rows of what-if runs on both databases: claims in order, and claims that are void."""

import pytest

from service.db import simulations as records
from service.db.lease import LEADER_LEASE, FencedOff, acquire
from service.db.session import Database
from service.db.simulations import Claim
from service.domain.simulations import STARTS_MAX


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def either(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue("database" if request.param == "sqlite" else "postgres_database")
    return found


def _add(database: Database, most: int = 10) -> int | None:
    with database.writing() as session:
        return records.add_simulation(session.connection(), {"policies": ["fifo"]}, "ada", most, 1.0)


def _lead(database: Database) -> int:
    lease = acquire(database, LEADER_LEASE, "this", 60.0)
    assert lease is not None
    return lease.token


def _state(database: Database, number: int) -> tuple[str, int, int | None, int | None]:
    with database.reading() as session:
        row = records.simulation(session.connection(), number)
    assert row is not None
    return row.state, row.starts, row.done, row.total


def test_the_oldest_is_claimed_first_and_a_claim_that_is_left_open_is_claimed_again(either: Database) -> None:
    token = _lead(either)
    assert not records.is_any_open(either)
    assert records.claim_simulation(either, token, 2.0) is None
    numbers = [_add(either) for _ in range(2)]
    assert numbers == [1, 2]
    first = records.claim_simulation(either, token, 3.0)
    assert first == Claim(1, 1, {"policies": ["fifo"]})
    assert records.note_progress(either, first, 3, 8, 1.5)
    assert _state(either, 1) == ("running", 1, 3, 8)
    again = records.claim_simulation(either, token, 4.0)
    assert again == Claim(1, 2, {"policies": ["fifo"]})
    assert _state(either, 1) == ("running", 2, None, None)
    assert not records.note_progress(either, first, 4, 8, 1.0)
    records.close_simulation(either, first, 5.0, {"schema": "x"}, None)
    records.return_simulation(either, first)
    assert records.is_held(either, again)
    assert records.note_progress(either, again, 7, 8, 0.5)
    records.close_simulation(either, again, 6.0, {"schema": "x"}, None)
    assert _state(either, 1) == ("succeeded", 2, 8, 8)
    second = records.claim_simulation(either, token, 7.0)
    assert second is not None
    assert second.id == 2
    with either.writing() as session:
        assert records.cancel_simulation(session.connection(), 2, 8.0)
        assert not records.cancel_simulation(session.connection(), 2, 9.0)
    assert not records.is_held(either, second)
    records.close_simulation(either, second, 9.0, None, "too late")
    assert _state(either, 2)[0] == "cancelled"
    assert not records.is_any_open(either)


def test_a_run_that_was_begun_too_often_fails(either: Database) -> None:
    token = _lead(either)
    _add(either)
    for starts in range(1, STARTS_MAX + 1):
        claim = records.claim_simulation(either, token, 2.0)
        assert claim is not None
        assert claim.starts == starts
    assert records.claim_simulation(either, token, 3.0) is None
    assert _state(either, 1)[:2] == ("failed", STARTS_MAX)


def test_only_the_leader_claims(either: Database) -> None:
    token = _lead(either)
    _add(either)
    assert _lead(either) == token + 1
    with pytest.raises(FencedOff):
        records.claim_simulation(either, token, 2.0)
    assert _state(either, 1)[0] == "queued"


def test_those_that_wait_are_limited_and_those_under_way_do_not_count(either: Database) -> None:
    token = _lead(either)
    assert [_add(either, 1), _add(either, 1)] == [1, None]
    assert records.claim_simulation(either, token, 2.0) is not None
    assert _add(either, 1) == 2
