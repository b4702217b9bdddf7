"""Upgrades on PostgreSQL as on SQLite, and from every earlier schema with rows in it: nothing that was stored is lost."""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from policies.model.ids import JobId
from policies.model.job import ArrayPlace, JobSpec
from policies.model.plan import PipelineSchedule
from service.background.retrain import TRAINING_LEASE
from service.db import migrate
from service.db.check import check
from service.db.codec import encode
from service.db.lease import LEADER_LEASE, acquire, release
from service.db.migrate import SchemaError, SchemaState, scripts_folder, state, upgrade
from service.db.rows import new_job_values
from service.db.session import Database, open_database
from service.db.specs import SpecReader
from service.db.store import SqlStore
from service.db.tables import ARRAY_SPECS, JOBS, METADATA
from service.engine.record import JobRecord
from tests.conformance.store_suite import SPEC
from tests.postgres import PostgresServer

REVISIONS = sorted(path.name[:4] for path in (scripts_folder() / "versions").glob("[0-9]*.py"))

_FIXED: Mapping[tuple[str, str], object] = {
    ("history", "spec"): {"v": 1},
    ("history", "job_id"): None,
    ("jobs", "array_id"): None,
    ("queue_limits", "scope"): "user",
}
"""What no rule below finds: a label is one of ours or has a spec; only limits of somebody have a name. An upgrade moves the
specs of arrays."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'sooner.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as fresh:
        yield fresh


def _upgrade_to(url: str, revision: str) -> None:
    database = open_database(url)
    with database.writing() as session:
        migrate.upgrade_to(session.connection(), revision)
    database.close()


def _allowed(table: str, column: str) -> str | None:
    """A word that the CHECK constraint of a column admits."""
    for constraint in METADATA.tables[table].constraints:
        if isinstance(constraint, sa.CheckConstraint):
            found = re.search(rf"\b{column} IN \('([^']*)'", str(constraint.sqltext))
            if found:
                return found.group(1)
    return None


def _value(column: sa.Column[Any], number: int) -> object:
    """Something that a column takes, different for each ``number`` where it can be."""
    table = column.table.name
    if (table, column.name) in _FIXED:
        return _FIXED[table, column.name]
    for reference in column.foreign_keys:
        return _value(reference.column, number)
    declared = METADATA.tables[table].c[column.name].type if column.name in METADATA.tables[table].c else column.type
    if isinstance(declared, sa.Boolean):
        return number % 2 == 0
    if isinstance(declared, sa.JSON):
        return {"v": 1, "number": number, "none": None, "word": "\u00e4\u2028"}
    if isinstance(declared, sa.Integer):
        return number
    if isinstance(declared, sa.Double | sa.Float):
        return 1_767_225_600.123456 + number
    return _allowed(table, column.name) or f"{column.name} {number} \u00e4"


def _fill(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Two rows in every table, referenced ones first; returns them."""
    with database.writing() as session:
        connection = session.connection()
        there = sa.MetaData()
        there.reflect(connection)
        filled = {}
        for table in there.sorted_tables:
            if table.name == "alembic_version":
                continue
            declared = METADATA.tables[table.name]
            for column in table.c:
                column.type = declared.c[column.name].type if column.name in declared.c else column.type
            rows = [{column.name: _value(column, number) for column in table.c} for number in (1, 2)]
            connection.execute(sa.insert(table), rows)
            filled[table.name] = rows
    return filled


def _rows(database: Database, name: str, columns: list[str]) -> list[dict[str, Any]]:
    table = METADATA.tables[name]
    statement = sa.select(*(table.c[column] for column in columns)).order_by(*table.primary_key)
    with database.reading() as session:
        return [dict(row) for row in session.connection().execute(statement).mappings()]


@pytest.mark.parametrize("revision", REVISIONS)
def test_rows_of_every_earlier_schema_are_there_afterwards(url: str, revision: str) -> None:
    _upgrade_to(url, revision)
    with closing(open_database(url)) as database:
        filled = _fill(database)
        assert "jobs" in filled
        assert upgrade(url) is (SchemaState.CURRENT if revision == REVISIONS[-1] else SchemaState.OLDER)
        assert state(url) is SchemaState.CURRENT
        for name, rows in filled.items():
            assert _rows(database, name, list(rows[0])) == rows, name


def _of_old_schedules(spec: JobSpec) -> dict[str, Any]:
    """The document of a spec as releases before schema 0019 wrote it."""
    document = encode(spec)
    if spec.parallelism is not None:
        old = {PipelineSchedule.PIPEDREAM: "1f1b", PipelineSchedule.ONE_F_ONE_B: "sync"}
        document["parallelism"]["schedule"] = old[spec.parallelism.schedule]
        del document["parallelism"]["virtual_stages"]
    return document


def test_schedules_keep_their_meaning_under_their_new_names(url: str) -> None:
    """More rows than are read at a time; a label and a variable of the same name stay."""
    _upgrade_to(url, "0018")
    named = {"labels": {"schedule": "1f1b"}, "env": {"schedule": "sync", "parallelism": '"schedule":"1f1b"'}}
    assert SPEC.parallelism is not None
    asynchronous = replace(SPEC.parallelism, schedule=PipelineSchedule.PIPEDREAM)
    each = [replace(SPEC, **named), replace(SPEC, parallelism=asynchronous, **named)]
    each.append(replace(SPEC, stage_graph=None, parallelism=None, **named))
    count = 600
    with closing(open_database(url)) as database:
        with database.writing() as session:
            connection = session.connection()
            there = sa.MetaData()
            there.reflect(connection, only=["jobs", "array_specs"])
            rows = []
            for job in range(1, count + 1):
                spec = each[job % 3]
                row = new_job_values(spec, 1.0, JobRecord(JobId(job), spec, 1.0))
                given = {name: value for name, value in row.items() if value is not None}
                rows.append({**given, "id": job, "spec": _of_old_schedules(spec)})
            connection.execute(sa.insert(there.tables["jobs"]), rows)
            arrays = [{"id": position, "spec": _of_old_schedules(spec)} for position, spec in enumerate(each)]
            connection.execute(sa.insert(there.tables["array_specs"]), arrays)
        assert upgrade(url) is SchemaState.OLDER
        jobs = [JobId(job) for job in range(1, count + 1)]
        assert {record.id: record.own_spec for record in SqlStore(database).jobs(jobs)} == {
            job: each[job % 3] for job in jobs
        }
        with database.reading() as session:
            reader = SpecReader(session.connection())
            stored = session.connection().execute(sa.select(sa.cast(ARRAY_SPECS.c.spec, sa.Text)).order_by("id"))
            assert [reader.read(text) for text in stored.scalars()] == each


def test_the_spec_of_an_array_is_moved_and_its_elements_keep_theirs(url: str) -> None:
    """Of two arrays beside a single job; the first job of one was deleted."""
    _upgrade_to(url, "0012")
    indices = {11: {12: 4, 13: 9}, 21: {21: 0, 22: 1}}
    element = replace(SPEC, env={"LR": "0.1:2", "%": "?"})
    specs = {30: SPEC} | {
        job: replace(element, array=ArrayPlace(index, 3, JobId(array)))
        for array, elements in indices.items()
        for job, index in elements.items()
    }
    with closing(open_database(url)) as database:
        with database.writing() as session:
            connection = session.connection()
            there = sa.MetaData()
            there.reflect(connection, only=["jobs"])
            for job, spec in specs.items():
                row = new_job_values(spec, 1.0, JobRecord(JobId(job), spec, 1.0)) | {
                    "id": job,
                    "spec": _of_old_schedules(spec),
                }
                given = {name: value for name, value in row.items() if value is not None}
                connection.execute(sa.insert(there.tables["jobs"]), given)
        assert upgrade(url) is SchemaState.OLDER
        read = {record.id: record.own_spec for record in SqlStore(database).jobs([JobId(job) for job in specs])}
        assert read == specs
        size = sa.func.max(sa.func.length(sa.cast(JOBS.c.spec, sa.Text)))
        assert database.value(sa.select(size).where(JOBS.c.array_id.is_not(None))) < 60
        assert check(url).faults == tuple(
            f"job {job} was submitted, but no cycle will admit it" for job in sorted(specs)
        )


@pytest.mark.parametrize("revision", [REVISIONS[0], REVISIONS[-2]])
def test_no_service_finds_its_schema_changed_while_it_leads(url: str, revision: str) -> None:
    _upgrade_to(url, revision)
    with closing(open_database(url)) as database:
        lease = acquire(database, LEADER_LEASE, "me", 3600.0)
        assert lease is not None
        with pytest.raises(SchemaError, match="stop it first"):
            upgrade(url)
        assert state(url) is SchemaState.OLDER
        release(database, lease)
        # A service that died during a training keeps the lease of the training for long.
        assert acquire(database, TRAINING_LEASE, "me", 3600.0) is not None
    assert upgrade(url) is SchemaState.OLDER
    assert state(url) is SchemaState.CURRENT


def test_the_revisions_are_those_that_alembic_walks() -> None:
    scripts = ScriptDirectory.from_config(migrate._config(migrate.scripts_folder()))
    assert [script.revision for script in scripts.walk_revisions()] == REVISIONS[::-1]
    assert migrate.revisions() == set(REVISIONS)
    assert scripts.get_heads() == [max(migrate.revisions())]


def _seen(url: str) -> dict[str, dict[str, list[str]]]:
    """Everything that the database itself says of its tables, in a form that can be compared."""
    database = open_database(url)
    with database.reading() as session:
        inspector = sa.inspect(session.connection())
        seen = {}
        for name in inspector.get_table_names():
            parts = {
                "columns": inspector.get_columns(name),
                "primary key": [inspector.get_pk_constraint(name)],
                "references": inspector.get_foreign_keys(name),
                "unique": inspector.get_unique_constraints(name),
                "checks": inspector.get_check_constraints(name),
                "indexes": inspector.get_indexes(name),
            }
            seen[name] = {part: sorted(map(_plain, found)) for part, found in parts.items()}
    database.close()
    seen.pop("alembic_version", None)
    return seen


def _plain(found: Any) -> str:
    return str(sorted((key, str(value)) for key, value in found.items() if key != "comment"))


def test_the_sum_of_the_migrations_is_the_metadata_on_postgresql(postgres: PostgresServer) -> None:
    with postgres.database() as migrated, postgres.database() as direct:
        upgrade(migrated)
        database = open_database(migrated)
        with database.reading() as session:
            options = {"compare_type": True, "compare_server_default": True}
            assert compare_metadata(MigrationContext.configure(session.connection(), opts=options), METADATA) == []
        database.close()
        other = open_database(direct)
        with other.writing() as session:
            METADATA.create_all(session.connection())
        other.close()
        assert _seen(migrated) == _seen(direct)
