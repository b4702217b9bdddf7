"""The migrations: their sum is the metadata, they run from empty, once, and keep what is there."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from policies.model.job import JobSpec
from service.db import migrate
from service.db.migrate import SchemaError, SchemaState, scripts_folder, state, upgrade
from service.db.session import DatabaseUrlError, open_database
from service.db.store import SqlStore
from service.db.tables import METADATA


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'sooner.db'}"


def _file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _ddl(path: Path) -> dict[str, list[str]]:
    """The clauses of every table and index as SQLite keeps them; their order, spaces and quotes aside."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    kept = {
        name: "".join(sql.split()).replace('"', "") for name, sql in rows if not name.startswith(("alembic", "sqlite"))
    }
    return {name: sorted(_clauses(sql)) for name, sql in kept.items()}


def _clauses(sql: str) -> list[str]:
    """Split at the commas between columns and constraints, which are one bracket deep."""
    depth, parts = 0, [""]
    for letter in sql:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.removesuffix(")") if part.count(")") > part.count("(") else part for part in parts]


def test_from_empty_to_current(url: str) -> None:
    assert state(url) is SchemaState.EMPTY
    assert not _file(url).exists(), "asking creates nothing"
    assert upgrade(url) is SchemaState.EMPTY
    assert state(url) is SchemaState.CURRENT
    assert _file(url).stat().st_mode & 0o777 == 0o600


def test_the_sum_of_the_migrations_is_the_metadata(url: str, tmp_path: Path) -> None:
    upgrade(url)
    database = open_database(url)
    with database.reading() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, METADATA) == []
    database.close()
    # Alembic compares no CHECK constraints and no AUTOINCREMENT, so the statements themselves are compared too.
    direct = tmp_path / "direct.db"
    engine = create_engine(f"sqlite:///{direct}")
    METADATA.create_all(engine)
    engine.dispose()
    assert _ddl(_file(url)) == _ddl(direct)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    """Of an empty database."""
    if request.param == "sqlite":
        yield url
        return
    server = request.getfixturevalue("postgres")
    with server.database() as fresh:
        yield fresh


def test_upgrading_again_keeps_the_data(any_url: str) -> None:
    upgrade(any_url)
    database = open_database(any_url)
    store = SqlStore(database)
    with database.writing() as session:
        ids = store.submit(session, [JobSpec("a", "u", 2)], 5.0)
    assert upgrade(any_url) is SchemaState.CURRENT
    assert [job.spec.name for job in store.jobs(ids)] == ["a"]
    database.close()


@pytest.mark.parametrize("attempt", range(3))
def test_those_who_upgrade_at_once_do_it_once(any_url: str, attempt: int) -> None:
    """Also the creation of a file and its switch to WAL mode, which fails under another one's hands."""
    url = any_url
    found: list[object] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        try:
            found.append(upgrade(url))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(map(str, found)) == ["current", "current", "current", "empty"]
    if url.startswith("sqlite"):
        assert [path.name for path in _file(url).parent.glob(".*")] == [], "no draft is left"


def _execute(url: str, *statements: str) -> None:
    database = open_database(url)
    with database.writing() as session:
        for statement in statements:
            session.connection().execute(text(statement))
    database.close()


def test_a_look_at_the_schema_leaves_nothing_behind(any_url: str) -> None:
    """Probes ask every few seconds: the statements that the engine keeps must not be theirs alone."""
    upgrade(any_url)
    with closing(open_database(any_url)) as database:

        def look() -> int:
            with database.reading() as session:
                assert migrate.state_of(session.connection()) is SchemaState.CURRENT
            return len(database.engine._compiled_cache or ())

        once = look()
        assert [look() for _ in range(3)] == [once] * 3


def test_a_newer_schema_is_refused(url: str) -> None:
    upgrade(url)
    _execute(url, "UPDATE alembic_version SET version_num = '9999'")
    assert state(url) is SchemaState.NEWER
    with pytest.raises(SchemaError, match="newer Sooner"):
        upgrade(url)


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE customers (id INTEGER)",),
        ("CREATE TABLE customers (id INTEGER)", "CREATE TABLE alembic_version (version_num VARCHAR(32))"),
        (
            "CREATE TABLE customers (id INTEGER)",
            "CREATE TABLE alembic_version (version_num VARCHAR(32))",
            "INSERT INTO alembic_version VALUES ('ab12cd34ef56')",
        ),
    ],
)
def test_another_programs_database_is_left_alone(url: str, statements: tuple[str, ...]) -> None:
    _execute(url, *statements)
    assert state(url) is SchemaState.FOREIGN
    with pytest.raises(SchemaError, match="another program"):
        upgrade(url)
    assert "jobs" not in _ddl(_file(url))


def test_an_older_schema_names_the_command(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with one migration more than the database has."""
    upgrade(url)
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for script in [*scripts_folder().glob("*.*"), *scripts_folder().glob("versions/*.py")]:
        (folder / script.relative_to(scripts_folder())).write_text(script.read_text())
    newest = ScriptDirectory.from_config(_config(folder)).get_current_head()
    (folder / "versions" / "9000_more.py").write_text(
        f"import sqlalchemy as sa\nfrom alembic import op\nrevision = '9000'\ndown_revision = {newest!r}\n"
        "def upgrade():\n    op.add_column('jobs', sa.Column('more', sa.Integer(), nullable=True))\n"
    )
    monkeypatch.setattr(migrate, "scripts_folder", lambda: folder)
    assert state(url) is SchemaState.OLDER
    assert "sooner db upgrade" in state(url).sentence
    assert upgrade(url) is SchemaState.OLDER
    assert state(url) is SchemaState.CURRENT
    assert "moreINTEGER" in _ddl(_file(url))["jobs"]


def test_a_failing_migration_leaves_everything_as_it_was(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text((scripts_folder() / "env.py").read_text())
    (folder / "versions" / "0001_bad.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\nrevision = '0001'\ndown_revision = None\n"
        "def upgrade():\n    op.create_table('jobs', sa.Column('id', sa.Integer()))\n    raise RuntimeError('broken')\n"
    )
    monkeypatch.setattr(migrate, "scripts_folder", lambda: folder)
    with pytest.raises(RuntimeError, match="broken"):
        upgrade(url)
    assert _ddl(_file(url)) == {}


def test_no_way_back_is_offered_and_the_history_is_one_line() -> None:
    scripts = ScriptDirectory.from_config(_config(scripts_folder()))
    assert len(scripts.get_heads()) == 1
    for script in scripts.walk_revisions():
        assert not hasattr(script.module, "downgrade"), script.revision
        assert script.revision.isdigit()
        assert len(script.revision) == 4


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("nonsense", "not of the form"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite:////no/such/folder/file.db", "/no/such/folder/file.db: No such file"),
        ("oracle2://host/name", "no driver"),
        ("postgresql+psycopg2://host/name", "begins with sqlite:/// or postgresql://"),
        ("postgresql://me:secret@/name?host=/no/such/folder", "cannot open the database"),
    ],
)
def test_a_wrong_url_is_one_clear_line(bad: str, words: str) -> None:
    with pytest.raises(DatabaseUrlError, match=words) as caught:
        open_database(bad)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["oracle2://me:secret@host/name", "postgresql:///name?host=/no/such/folder&password=secret"]
)
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises(DatabaseUrlError) as caught:
        open_database(url)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("these are notes, not a database, and long enough to have a page header" * 20)
    with pytest.raises(DatabaseUrlError, match="not a database"):
        state(f"sqlite:///{tmp_path / 'notes.db'}")


def _config(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    return config
