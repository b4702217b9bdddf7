"""Backup, restore and check of databases: what is written comes back, on either kind, and nothing half-done is left."""

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import insert, select, update
from typer.testing import CliRunner

from policies.lifecycle import AttemptState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Prediction, Unit
from service.background.retrain import TRAINING_LEASE
from service.cli.main import app
from service.db.backup import MANIFEST, BackupError, back_up, member
from service.db.check import FAULTS_MAX, check
from service.db.lease import acquire, renew
from service.db.migrate import SchemaError, SchemaState, open_current, state, upgrade_to
from service.db.restore import IDS_SKIPPED, LiveDatabase, restore
from service.db.servers import enroll
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.db.tables import (
    ATTEMPTS,
    EVENTS,
    JOBS,
    METADATA,
    REQUESTS,
    SERVERS,
)
from tests.conformance.store_suite import SPEC, Driver, ended, start, touched
from tests.migrations.test_upgrades import _fill
from tests.postgres import PostgresServer

Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


def _url(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


def _live_through(database: Database) -> None:
    """Two jobs: one has ended, one runs; every kind of row that a cycle writes."""
    enroll(database, Cluster("c", (Server("a", 4), Server("b", 4))))
    with database.writing() as session:
        SqlStore(database).submit(session, [SPEC, replace(SPEC, name="\u00e4 \u2028 'quoted'")], 5.0)
    driver = Driver(SqlStore(database))
    one, two = driver.admit()
    write = touched(one)
    write.prediction = Prediction(Estimate((1.5, 2.5), Unit.ITERATIONS, "past runs"), "f1", (1.0, float("nan")))
    driver.commit(write)
    driver.commit(start(two), dump={"x": None})
    driver.commit(ended(one))


def _contents(database: Database) -> Rows:
    with database.reading() as session:
        return {
            found.name: [tuple(row) for row in session.connection().execute(select(found).order_by(*found.primary_key))]
            for found in METADATA.sorted_tables
        }


def test_what_was_backed_up_comes_back_in_either_kind(any_database: Database, empty_url: str, tmp_path: Path) -> None:
    _live_through(any_database)
    file = tmp_path / "b.zip"
    manifest = back_up(_url(any_database), file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert sum(part.rows for part in manifest.tables.values()) > 15
    restored = restore(empty_url, file)
    assert (restored.revision, state(empty_url)) == (restored.revision_now, SchemaState.CURRENT)
    with closing(open_database(empty_url)) as other:
        assert _contents(other) == _contents(any_database)
        assert check(empty_url).faults == ()
        with other.writing() as session:
            (job,) = SqlStore(other).submit(session, [SPEC], 5.0)
        assert job == 2 + IDS_SKIPPED + 1, "never the number of a job that came after the backup"
        with other.writing() as session:
            assert session.connection().execute(insert(REQUESTS).returning(REQUESTS.c.id), _FACT).scalar() == 4


_FACT = {"kind": "server_drained", "payload": {"v": 1, "server": 0}, "created_at_s": 1.0}


def test_the_numbers_of_rows_that_are_gone_are_not_given_out_again(
    any_database: Database, empty_url: str, tmp_path: Path
) -> None:
    with any_database.writing() as session:
        connection = session.connection()
        for _ in range(3):
            connection.execute(insert(REQUESTS), _FACT)
        connection.execute(sa.delete(REQUESTS))
    back_up(_url(any_database), tmp_path / "b.zip")
    restore(empty_url, tmp_path / "b.zip")
    with closing(open_database(empty_url)) as other, other.writing() as session:
        assert session.connection().execute(insert(REQUESTS).returning(REQUESTS.c.id), _FACT).scalar() == 4


def test_a_backup_of_an_older_schema_is_restored_by_the_new_program(empty_url: str, tmp_path: Path) -> None:
    old = f"sqlite:///{tmp_path / 'old.db'}"
    with closing(open_database(old)) as database:
        with database.writing() as session:
            upgrade_to(session.connection(), "0001")
        filled = _fill(database)
    assert back_up(old, tmp_path / "b.zip").revision == "0001"
    restored = restore(empty_url, tmp_path / "b.zip")
    assert (restored.revision, state(empty_url)) == ("0001", SchemaState.CURRENT)
    with closing(open_database(empty_url)) as database, database.reading() as session:
        jobs = session.connection().execute(select(JOBS).order_by(JOBS.c.id)).mappings().all()
    assert [{name: row[name] for name in filled["jobs"][0]} for row in jobs] == filled["jobs"]


def test_a_snapshot_is_taken_beside_a_writer(any_database: Database, tmp_path: Path) -> None:
    _live_through(any_database)
    with any_database.writing() as session:
        SqlStore(any_database).submit(session, [SPEC], 5.0)
        assert back_up(_url(any_database), tmp_path / "b.zip").tables["jobs"].rows == 2


def test_a_live_database_is_not_touched(any_database: Database, tmp_path: Path) -> None:
    _live_through(any_database)
    back_up(_url(any_database), tmp_path / "b.zip")
    lease = acquire(any_database, "leader", "me", 3600.0)
    assert lease is not None
    before = _contents(any_database)
    for force in (False, True):
        with pytest.raises(LiveDatabase, match="stop it first"):
            restore(_url(any_database), tmp_path / "b.zip", force=force)
    assert _contents(any_database) == before


def test_a_service_that_died_during_a_training_does_not_block_a_restore(any_database: Database, tmp_path: Path) -> None:
    _live_through(any_database)
    back_up(_url(any_database), tmp_path / "b.zip")
    training = acquire(any_database, TRAINING_LEASE, "me", 3600.0)
    assert training is not None
    restore(_url(any_database), tmp_path / "b.zip", force=True)
    assert renew(any_database, training, 3600.0) is None, "should it live on, its training is fenced off"


def test_what_is_there_is_replaced_only_by_force_and_its_leader_is_fenced(
    any_database: Database, tmp_path: Path
) -> None:
    _live_through(any_database)
    old = acquire(any_database, "leader", "me", -1.0)
    assert old is not None
    back_up(_url(any_database), tmp_path / "b.zip")
    before = _contents(any_database)
    for _ in range(3):
        old = acquire(any_database, "leader", "me", -1.0)
        assert old is not None
    with any_database.writing() as session:
        SqlStore(any_database).submit(session, [SPEC], 5.0)
    with pytest.raises(BackupError, match="--force"):
        restore(_url(any_database), tmp_path / "b.zip")
    restore(_url(any_database), tmp_path / "b.zip", force=True)
    after = _contents(any_database)
    assert {name: rows for name, rows in after.items() if name != "leases"} == {
        name: rows for name, rows in before.items() if name != "leases"
    }
    new = acquire(any_database, "leader", "me", 1.0)
    assert new is not None
    assert new.token > old.token


def test_another_programs_database_is_left_alone(empty_url: str, any_database: Database, tmp_path: Path) -> None:
    back_up(_url(any_database), tmp_path / "b.zip")
    with closing(open_database(empty_url)) as foreign, foreign.writing() as session:
        session.connection().execute(sa.text("CREATE TABLE customers (id INTEGER)"))
    for force in (False, True):
        with pytest.raises(SchemaError, match="another program"):
            restore(empty_url, tmp_path / "b.zip", force=force)
    with pytest.raises(SchemaError, match="another program"):
        back_up(empty_url, tmp_path / "c.zip")
    assert not (tmp_path / "c.zip").exists()


def _rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as copy:
        for name in archive.namelist():
            data = change(name, archive.read(name))
            if data is not None:
                copy.writestr(name, data)
    return target


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[str, bytes], bytes]:
    def edit(name: str, data: bytes) -> bytes:
        if name != MANIFEST:
            return data
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return edit


_BROKEN: dict[str, tuple[Callable[[str, bytes], bytes | None], str]] = {
    "a value changed": (lambda name, data: data.replace(b"ada", b"eve") if name == member("jobs") else data, "digest"),
    "a line missing": (lambda name, data: data.partition(b"\n")[2] if name == member("job_events") else data, "digest"),
    "a table missing": (lambda name, data: None if name == member("cycles") else data, "cycles cannot be read"),
    "not JSON": (
        lambda name, data: b"nonsense\n" if name == member("servers") else data,
        "servers cannot be read at row 1",
    ),
    "no manifest": (lambda name, data: None if name == MANIFEST else data, "manifest"),
    "another manifest": (lambda name, data: b"[]" if name == MANIFEST else data, "manifest"),
    "another schema": (_manifest(lambda document: document.update(schema="x/2")), "x/2"),
    "another table": (_manifest(lambda document: document["tables"].pop("jobs")), "the tables of the backup differ"),
    "another column": (
        _manifest(lambda document: document["tables"]["jobs"]["columns"].append("x")),
        "the columns of the backup's table jobs differ",
    ),
}


@pytest.mark.parametrize("fault", _BROKEN)
def test_a_damaged_backup_leaves_the_database_as_it_was(any_database: Database, tmp_path: Path, fault: str) -> None:
    _live_through(any_database)
    back_up(_url(any_database), tmp_path / "b.zip")
    change, words = _BROKEN[fault]
    before = _contents(any_database)
    broken = _rewritten(tmp_path / "b.zip", tmp_path / "broken.zip", change)
    with pytest.raises(BackupError, match=words) as caught:
        restore(_url(any_database), broken, force=True)
    assert "\n" not in str(caught.value)
    assert _contents(any_database) == before


def test_a_file_that_is_cut_off_or_from_the_future_is_refused(
    database: Database, empty_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "b.zip"
    back_up(_url(database), file)
    future = _rewritten(file, tmp_path / "f.zip", _manifest(lambda document: document.update(revision="9999")))
    with pytest.raises(SchemaError, match="newer Sooner"):
        restore(empty_url, future)
    cut = tmp_path / "cut.zip"
    cut.write_bytes(file.read_bytes()[:-200])
    for wrong in (cut, tmp_path / "nothing.zip"):
        with pytest.raises(BackupError, match="cannot read the backup"):
            restore(empty_url, wrong)
    assert state(empty_url) is SchemaState.EMPTY


def test_a_backup_overwrites_nothing_and_leaves_no_draft(database: Database, tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_text("mine")
    with pytest.raises(BackupError, match="exists"):
        back_up(_url(database), tmp_path / "b.zip")
    with pytest.raises(BackupError, match="No such file"):
        back_up(_url(database), tmp_path / "no" / "b.zip")
    assert (tmp_path / "b.zip").read_text() == "mine"
    assert list(tmp_path.glob(".b.zip*")) == []


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    url = f"sqlite:///{file}"
    told = f"There is no database at {file}."
    with pytest.raises(SchemaError, match=re.escape(told)):
        back_up(url, tmp_path / "b.zip")
    with pytest.raises(SchemaError, match=re.escape(f"there is no history: there is no database at {file}")):
        open_current(url)
    assert check(url).faults == (told,)
    assert list(tmp_path.iterdir()) == []
    file.touch()
    assert check(url).faults == ("The database is empty.",)


# The check.


def test_a_database_in_use_is_sound(any_database: Database) -> None:
    _live_through(any_database)
    health = check(_url(any_database))
    assert (health.sound, health.schema, health.jobs, health.unfinished_jobs) == (True, SchemaState.CURRENT, 2, 1)


def _attempt(database: Database, **changes: object) -> dict[str, Any]:
    """The row of the open attempt, changed."""
    with database.reading() as session:
        row = session.connection().execute(select(ATTEMPTS)).mappings().one()
    return dict(row) | changes


_WRONG: dict[str, tuple[Callable[[Database], Any], str]] = {
    "two open": (
        lambda database: insert(ATTEMPTS).values(_attempt(database, id="2.2", number=2)),
        "job 2 has several",
    ),
    "none open": (
        lambda _: update(ATTEMPTS).values(state=AttemptState.COMPLETED.value, ended_at_s=9.0),
        "job 2 holds GPUs, but none",
    ),
    "open but ended": (
        lambda database: insert(ATTEMPTS).values(_attempt(database, id="1.1", job_id=1, number=1)),
        "job 1 holds no GPUs, but an attempt",
    ),
    "a GPU twice": (
        lambda database: insert(ATTEMPTS).values(_attempt(database, id="1.1", job_id=1, number=1)),
        "GPU 0 of server a is held by several attempts: 1.1, 2.1",
    ),
    "a GPU that is not there": (
        lambda _: update(SERVERS).where(SERVERS.c.position == 0).values(spec={"v": 1, "name": "a", "gpus": 1}),
        "GPU 1 of server a is held by attempt 2.1, but there is no such GPU",
    ),
    "miscounted": (
        lambda _: update(JOBS).where(JOBS.c.id == 2).values(attempts=7),
        "job 2 has another number of attempts than it counts",
    ),
    "no end": (
        lambda _: update(JOBS).where(JOBS.c.id == 1).values(finished_at_s=None),
        "job 1 has ended, but",
    ),
    "an early end": (
        lambda _: update(JOBS).where(JOBS.c.id == 2).values(finished_at_s=1.0),
        "job 2 has a time of its end, but",
    ),
    "another story": (
        lambda _: sa.delete(EVENTS).where(EVENTS.c.target == "succeeded"),
        "job 1 is in another state",
    ),
    "never admitted": (
        lambda _: update(JOBS).where(JOBS.c.id == 2).values(version=0, state="queued"),
        "job 2 was submitted, but",
    ),
    "admitted twice": (
        lambda _: update(REQUESTS).where(REQUESTS.c.job_id == 2).values(consumed_cycle=None),
        "job 2 is admitted, but",
    ),
    "a cycle to come": (
        lambda _: update(REQUESTS).where(REQUESTS.c.id == 1).values(consumed_cycle=99),
        "request 1 was consumed by",
    ),
    "a closed attempt": (lambda _: update(ATTEMPTS).values(state="lost"), "attempt 2.1 is closed, but"),
    "a gap": (
        lambda _: sa.delete(SERVERS).where(SERVERS.c.position == 0),
        "positions must be consecutive from 0",
    ),
}


@pytest.mark.parametrize("fault", _WRONG)
def test_each_fault_is_found(any_database: Database, fault: str) -> None:
    _live_through(any_database)
    change, words = _WRONG[fault]
    with any_database.writing() as session:
        session.connection().execute(change(any_database))
    health = check(_url(any_database))
    assert not health.sound
    assert any(words in line for line in health.faults), health.faults


def test_many_faults_of_one_kind_are_not_all_listed(database: Database) -> None:
    with database.writing() as session:
        SqlStore(database).submit(session, [SPEC] * 50, 5.0)
        session.connection().execute(update(JOBS).values(finished_at_s=1.0))
    faults = check(_url(database)).faults
    assert len(faults) == FAULTS_MAX + 1
    assert "more than 20" in faults[-1]


def test_a_damaged_file_is_found(database: Database, tmp_path: Path) -> None:
    _live_through(database)
    with database.writing() as session:
        session.connection().exec_driver_sql("PRAGMA foreign_keys = OFF")
    with closing(open_database(_url(database))) as loose, loose.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        connection.exec_driver_sql(
            "INSERT INTO progress (job_id, attempt_id, at_s, iteration) VALUES (77, '77.1', 1, 1)"
        )
    assert "row 1 of progress refers to a missing row of jobs" in check(_url(database)).faults


# The commands.

RUNNER = CliRunner()


def _run(*arguments: str) -> Any:
    return RUNNER.invoke(app, list(arguments))


def test_the_commands(any_database: Database, empty_url: str, tmp_path: Path) -> None:
    _live_through(any_database)
    file, here = str(tmp_path / "b.zip"), ("--data-dir", str(tmp_path / "data"))
    done = _run("db", "backup", file, "--database-url", _url(any_database), *here, "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], document["rows"]["jobs"]) == ("sooner.database.backup/1", 2)
    restored = _run("db", "restore", file, "--database-url", empty_url, *here)
    assert restored.exit_code == 0
    assert restored.stdout.startswith("restored ")
    again = _run("db", "restore", file, "--database-url", empty_url, *here)
    assert (again.exit_code, again.stderr) == (1, "error: the database is not empty; --force replaces what is there\n")
    assert (
        json.loads(_run("db", "restore", file, "--force", "--database-url", empty_url, *here, "--json").stdout)["rows"]
        > 15
    )
    taken = _run("db", "backup", file, "--database-url", _url(any_database), *here)
    assert (taken.exit_code, taken.stderr) == (2, f"error: {file} exists; name another file\n")
    missing = _run("db", "restore", "nosuch", "--database-url", empty_url, *here)
    assert (missing.exit_code, missing.stderr) == (
        2,
        "error: cannot read the backup nosuch: No such file or directory\n",
    )
    sound = _run("db", "check", "--database-url", empty_url, *here)
    assert (sound.exit_code, sound.stdout.split(":")[0]) == (0, "sound")
    with any_database.writing() as session:
        session.connection().execute(update(JOBS).values(attempts=7))
    broken = _run("db", "check", "--database-url", _url(any_database), *here)
    assert broken.exit_code == 1
    assert broken.stdout.splitlines() == [
        f"job {number} has another number of attempts than it counts" for number in (1, 2)
    ]
    document = json.loads(_run("db", "check", "--database-url", _url(any_database), *here, "--json").stdout)
    assert (document["schema"], document["sound"], len(document["faults"])) == ("sooner.database.check/1", False, 2)


def test_a_database_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    url = "postgresql://me:secret@/name?host=/no/such/folder"
    for words in (("backup", str(tmp_path / "b.zip")), ("check",)):
        done = _run("db", *words, "--database-url", url, "--data-dir", str(tmp_path / "data"))
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert "secret" not in done.stderr
