"""The spec of an array is stored once and in memory once, however many elements the array has."""

from dataclasses import replace

import pytest
from sqlalchemy import JSON, Text, cast, delete, func, select, update

from policies.model.ids import JobId
from policies.model.job import ArrayPlace, JobSpec
from service.db import reads
from service.db.check import check_connection
from service.db.codec import CodecError
from service.db.session import Database
from service.db.specs import RecentSpecs
from service.db.store import SqlStore
from service.db.tables import ARRAY_SPECS, JOBS, METADATA
from tests.conformance.store_suite import SPEC, Driver

ELEMENT_BYTES_MAX = 60
"""Of the document in the row of an element: two numbers and their names."""


def _submit(database: Database, spec: JobSpec, count: int) -> list[JobId]:
    with database.writing() as session:
        specs = [replace(spec, array=ArrayPlace(index, count)) for index in range(count)]
        return SqlStore(database).submit(session, specs, 0.0)


def _document_bytes(database: Database) -> dict[str, int]:
    """The bytes of all documents of each table that has any."""
    found: dict[str, int] = {}
    with database.reading() as session:
        for table in METADATA.sorted_tables:
            for column in table.c:
                if isinstance(column.type, JSON):
                    size = session.connection().execute(select(func.sum(func.length(cast(column, Text))))).scalar()
                    found[table.name] = found.get(table.name, 0) + (size or 0)
    return found


def test_a_large_spec_is_written_once_for_all_elements(any_database: Database) -> None:
    large = replace(SPEC, env={f"NAME_{number}": "x" * 1000 for number in range(100)})
    _submit(any_database, large, 1)
    one = _document_bytes(any_database)
    _submit(any_database, large, 200)
    many = _document_bytes(any_database)
    assert many["array_specs"] < 2.1 * one["array_specs"]
    assert many["jobs"] - one["jobs"] <= 200 * ELEMENT_BYTES_MAX
    assert sum(many.values()) < 2.5 * sum(one.values())


def test_elements_share_one_spec_however_often_jobs_are_read(any_database: Database) -> None:
    store = SqlStore(any_database)
    ids = _submit(any_database, SPEC, 4)
    [first] = store.jobs(ids[:1])
    rest = store.jobs(ids[1:])
    Driver(store).admit()
    again = store.load().jobs
    for record in (*rest, *again):
        assert record.spec is first.spec
    places = [ArrayPlace(index, 4, ids[0]) for index in range(4)]
    assert [record.own_spec for record in (first, *rest)] == [replace(SPEC, array=place) for place in places]
    assert [record.own_spec.array for record in again] == places


def test_specs_of_the_arrays_that_were_read_last_are_kept() -> None:
    recent = RecentSpecs(2)
    for array in (1, 2, 1, 3):
        recent[JobId(array)] = SPEC
    assert list(recent) == [1, 3]


def test_the_spec_of_one_element_can_be_read(any_database: Database) -> None:
    ids = _submit(any_database, SPEC, 3)
    with any_database.reading() as session:
        assert reads.spec(session.connection(), ids[2]) == replace(SPEC, array=ArrayPlace(2, 3, ids[0]))
        assert reads.spec(session.connection(), ids[2] + 1) is None


def test_a_missing_spec_of_an_array_is_a_fault_that_names_it(any_database: Database) -> None:
    store = SqlStore(any_database)
    ids = _submit(any_database, SPEC, 2)
    Driver(store).admit()
    with any_database.writing() as session:
        session.connection().execute(delete(ARRAY_SPECS))
    with any_database.reading() as session:
        faults = check_connection(session.connection()).faults
    assert [fault for fault in faults if "spec" in fault] == [
        f"job {number} is an element of an array whose spec is missing" for number in ids
    ]
    with pytest.raises(CodecError, match=f"job {ids[0]}: the spec of array {ids[0]} is missing"):
        SqlStore(any_database).jobs(ids)


def test_the_spec_of_an_array_must_be_that_of_an_element(any_database: Database) -> None:
    ids = _submit(any_database, SPEC, 2)
    with any_database.writing() as session:
        connection = session.connection()
        single = SqlStore(any_database).submit(session, [SPEC], 0.0)
        document = connection.execute(select(JOBS.c.spec).where(JOBS.c.id.in_(single))).scalar_one()
        connection.execute(update(ARRAY_SPECS).values(spec=document))
    with pytest.raises(CodecError, match="is that of a single job"):
        SqlStore(any_database).jobs(ids)
