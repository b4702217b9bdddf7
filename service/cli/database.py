"""``sooner db ...`` and ``sooner history import``: commands that open the database themselves.

What a command needs is imported when it runs: help must not wait for the libraries of the database.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from service.cli.fail import EXIT_FAILED, EXIT_USAGE, fail, settings_or_fail
from service.cli.options import DatabaseOption, DataDirOption
from service.cli.output import JsonFlag, print_json, print_result
from service.config.settings import Settings
from service.domain.counts import count_of
from service.runtime.no_room import no_room


@contextmanager
def _database_faults() -> Iterator[None]:
    """Exit code 2 for a wrong URL or file and a full disk, 1 for a fault of the database."""
    from sqlalchemy.exc import OperationalError

    from service.db.backup import BackupError
    from service.db.migrate import SchemaError
    from service.db.restore import InUse
    from service.db.session import DatabaseUrlError

    try:
        yield
    except (SchemaError, InUse) as error:
        fail(str(error), EXIT_USAGE if no_room(error) else EXIT_FAILED)
    except (DatabaseUrlError, BackupError) as error:
        fail(str(error))
    except OperationalError as error:
        if line := no_room(error):
            fail(line)
        fail(f"the database does not answer: {' '.join(str(error.orig).split())}", EXIT_FAILED)


def upgrade_command(
    database_url: DatabaseOption = None, data_dir: DataDirOption = None, as_json: JsonFlag = False
) -> None:
    """Upgrade the database to this program's schema. Back it up first: there is no downgrade."""
    from service.db.migrate import SchemaState, upgrade

    settings = _prepared(database_url, data_dir)
    with _database_faults():
        before = upgrade(settings.database_url)
    if as_json:
        print_json({"schema": "sooner.database/1", "before": before.value, "after": SchemaState.CURRENT.value})
    elif before is SchemaState.CURRENT:
        typer.echo("the database already has this program's schema")
    else:
        typer.echo(f"the database was {before.value} and now has this program's schema")


def backup_command(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.", dir_okay=False)],
    database_url: DatabaseOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Back up the whole database to one file. The service may be running. The file contains secrets."""
    from service.db.backup import back_up

    settings = _settings(database_url, data_dir)
    with _database_faults():
        manifest = back_up(settings.database_url, file)
    rows = {name: part.rows for name, part in manifest.tables.items()}
    document = {"file": str(file), "bytes": file.stat().st_size, "revision": manifest.revision, "rows": rows}
    text = f"{count_of(sum(rows.values()), 'row')} of {len(rows)} tables (schema {manifest.revision}) are in {file}"
    print_result({"schema": "sooner.database.backup/1", **document}, text, as_json)


def restore_command(
    file: Annotated[Path, typer.Argument(help="A file that `sooner db backup` wrote.", dir_okay=False)],
    force: Annotated[bool, typer.Option("--force", help="Replace the contents of the database.")] = False,
    database_url: DatabaseOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Restore a backup into an empty SQLite or PostgreSQL database. A failed restore changes nothing."""
    from service.db.restore import restore

    settings = _prepared(database_url, data_dir)
    with _database_faults():
        restored = restore(settings.database_url, file, force=force)
    document = {"rows": restored.rows, "revision": restored.revision, "revision_now": restored.revision_now}
    text = f"restored {count_of(restored.rows, 'row')}; the schema was {restored.revision}, now {restored.revision_now}"
    print_result({"schema": "sooner.database.restore/1", **document}, text, as_json)


def check_command(
    database_url: DatabaseOption = None, data_dir: DataDirOption = None, as_json: JsonFlag = False
) -> None:
    """Check the database: its file, its schema, and the relations between jobs, attempts, GPUs and requests."""
    from service.db.check import check

    settings = _settings(database_url, data_dir)
    with _database_faults():
        health = check(settings.database_url)
    if as_json:
        document = {
            "sound": health.sound,
            "state": health.schema.value,
            "revision": health.revision,
            "jobs": health.jobs,
            "unfinished_jobs": health.unfinished_jobs,
            "faults": list(health.faults),
        }
        print_json({"schema": "sooner.database.check/1", **document})
    elif health.sound:
        typer.echo(
            f"sound: schema {health.revision}, {count_of(health.jobs)}, {health.unfinished_jobs} of them unfinished"
        )
    else:
        for fault in health.faults:
            typer.echo(fault)
    if not health.sound:
        raise typer.Exit(EXIT_FAILED)


def import_command(
    file: Annotated[Path, typer.Argument(help="A workload table (sooner.workload/1) of jobs that ran elsewhere.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            help="Name of the history, of 1 to 200 characters. Each job of a source is imported once. Default: the file's name.",
        ),
    ] = None,
    start: Annotated[
        datetime | None,
        typer.Option(
            "--start",
            help="Date and time (UTC) of second 0 of the table. Default: chosen so that the last job ends now.",
        ),
    ] = None,
    database_url: DatabaseOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Import ended jobs as training data for the predictor. A running service uses them after its next training."""
    from service.cli.history import HistoryError, load_history
    from service.db.session import DatabaseUrlError

    settings = _prepared(database_url, data_dir)
    try:
        loaded = load_history(
            file,
            settings.database_url,
            source if source is not None else file.name,
            start_s=_epoch_s(start),
            now_s=datetime.now(UTC).timestamp(),
        )
    except (HistoryError, DatabaseUrlError) as error:
        fail(str(error))
    were = "was" if loaded.jobs == 1 else "were"
    text = f"{loaded.new:,} of {count_of(loaded.jobs)} {were} added to the history {loaded.source!r}"
    print_result({"schema": "sooner.history.import/1", **loaded._asdict()}, text, as_json)


def _settings(database_url: str | None, data_dir: Path | None) -> Settings:
    """The settings of a command that only reads the database: it makes no folder."""
    return settings_or_fail({"database_url": database_url, "data_dir": data_dir})


def _prepared(database_url: str | None, data_dir: Path | None) -> Settings:
    """The settings of a command that writes the database; the folder of the default one is made if need be."""
    from service.config.settings import SettingsError

    settings = _settings(database_url, data_dir)
    try:
        settings.prepare_data_dir()
    except SettingsError as error:
        fail(str(error))
    return settings


def _epoch_s(start: datetime | None) -> float | None:
    if start is None:
        return None
    return (start if start.tzinfo is not None else start.replace(tzinfo=UTC)).timestamp()
