"""Many rows in one statement: every database keeps exactly the same values, and numbers the rows in their order."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.exc import DatabaseError, IntegrityError, StatementError

from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.db.dialects import dumps, insert_numbered, insert_rows, update_rows
from service.db.rows import new_job_values
from service.db.session import Database
from service.db.tables import JOBS, REQUESTS
from service.engine.record import JobRecord

_SPEC = JobSpec("job", "ada", 1)
_JOB = new_job_values(_SPEC, 1.0, JobRecord(JobId(0), _SPEC, 1.0))


def _fact(**changed: Any) -> dict[str, Any]:
    fact = {"kind": "submitted", "job_id": None, "payload": {}, "created_at_s": 1.0, "consumed_cycle": None, "turn": 0}
    return fact | changed


def _stored(database: Database) -> list[dict[str, Any]]:
    with database.reading() as session:
        rows = session.connection().execute(select(REQUESTS).order_by(REQUESTS.c.id)).mappings()
        return [{name: value for name, value in row.items() if name != "id"} for row in rows]


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_DOCUMENT = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_FACT = st.builds(
    _fact,
    kind=_TEXT,
    payload=st.dictionaries(_TEXT, _DOCUMENT, max_size=3),
    created_at_s=st.floats(0.0, allow_infinity=False),
    consumed_cycle=st.none() | st.integers(0, 2**31 - 1),
    turn=st.integers(0, 2**31 - 1),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_FACT, max_size=5))
def test_what_is_inserted_is_what_is_read(any_database: Database, rows: list[dict[str, Any]]) -> None:
    with any_database.writing() as session:
        session.connection().execute(REQUESTS.delete())
        insert_rows(session.connection(), REQUESTS, rows)
    # As text: -0.0 is equal to 0.0, and True to 1.
    assert repr(_stored(any_database)) == repr(rows)


def test_rows_are_numbered_in_their_order(any_database: Database) -> None:
    names = [f"job {number * 7919 % 3000}" for number in range(3000)]
    with any_database.writing() as session:
        connection = session.connection()
        assert insert_numbered(connection, JOBS, []) == []
        numbers = insert_numbered(connection, JOBS, [_JOB | {"name": name} for name in names])
        insert_rows(connection, REQUESTS, [_fact(kind=name) for name in names])
        found = {row.id: row.name for row in connection.execute(select(JOBS.c.id, JOBS.c.name))}
        kinds = connection.execute(select(REQUESTS.c.kind).order_by(REQUESTS.c.id)).scalars().all()
    assert [found[number] for number in numbers] == names
    assert numbers == sorted(numbers)
    assert kinds == names


@pytest.mark.parametrize(
    "document", [{"NaN": "-Infinity"}, ["\ud800"], [2**70], ["\u2028 \x7f \0 \N{SNOWMAN}"], 5e-324]
)
def test_a_document_is_written_as_what_is_read(document: object) -> None:
    assert json.loads(dumps(document)) == document


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_document_has_only_finite_numbers(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"NaN": [1.0, number]})


def test_no_column_s_null_becomes_a_document(any_database: Database) -> None:
    with any_database.writing() as session:
        insert_numbered(session.connection(), JOBS, [_JOB | {"estimate": None, "reservation": {"a": None}}])
        found = session.connection().execute(
            select(func.count()).where(JOBS.c.estimate.is_(None), JOBS.c.reservation.is_not(None))
        )
        assert found.scalar_one() == 1


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_no_document_holds_what_json_has_no_word_for(any_database: Database, number: float) -> None:
    with pytest.raises((ValueError, StatementError)), any_database.writing() as session:
        insert_rows(session.connection(), REQUESTS, [_fact(payload={"at_s": number})])
    assert _stored(any_database) == []


def test_the_database_s_own_rules_hold(any_database: Database) -> None:
    with pytest.raises(IntegrityError), any_database.writing() as session:
        insert_rows(session.connection(), REQUESTS, [_fact(), _fact(job_id=12)])
    with pytest.raises(DatabaseError), any_database.writing() as session:
        insert_rows(session.connection(), REQUESTS, [_fact(kind=None)])
    assert _stored(any_database) == []


def test_many_rows_are_changed_at_once(any_database: Database) -> None:
    with any_database.writing() as session:
        connection = session.connection()
        numbers = insert_numbered(connection, JOBS, [_JOB | {"name": f"j{at}", "version": at} for at in range(4)])
        rows: list[dict[str, Any]] = [
            {"at": numbers[0], "was": 0, "retries": 3.0, "iterations": math.inf, "reservation": {"a": 1}},
            {"at": numbers[1], "was": 7, "retries": 4, "iterations": 1.0, "reservation": None},
            {"at": numbers[2], "was": 2, "retries": 5, "iterations": 0.1, "reservation": None},
        ]
        at = {"at": "id", "was": "version"}
        assert update_rows(connection, JOBS, [], at) == 0
        # The second has another version; a number without a word in JSON is written all the same.
        assert update_rows(connection, JOBS, rows, at) in (2, None)
        again = [rows[2] | {"iterations": 2.5}, rows[1] | {"iterations": 9.0}, rows[0] | {"was": 3, "iterations": 9.0}]
        assert update_rows(connection, JOBS, again, at) in (1, None)
        read = select(JOBS.c.name, JOBS.c.retries, JOBS.c.iterations, JOBS.c.reservation).order_by(JOBS.c.id)
        found = [tuple(row) for row in connection.execute(read)]
    assert found == [("j0", 3, math.inf, {"a": 1}), ("j1", 0, 0.0, None), ("j2", 5, 2.5, None), ("j3", 0, 0.0, None)]
