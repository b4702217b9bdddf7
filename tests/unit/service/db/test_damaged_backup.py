"""A backup with any byte changed, or cut off anywhere: restored as it was, or refused in one line without a half-done restore."""

import hashlib
import itertools
import json
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from service.cli.main import app
from service.db.backup import BackupError, back_up
from service.db.migrate import SchemaState, state, upgrade
from service.db.restore import restore
from service.db.session import open_database
from tests.crash.nasty import spoiled
from tests.unit.service.db.test_backup import Rows, _contents, _live_through, _rewritten, _url


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Rows]:
    """A backup, and what it holds."""
    folder = tmp_path_factory.mktemp("whole")
    url = f"sqlite:///{folder / 'sooner.db'}"
    upgrade(url)
    with closing(open_database(url)) as database:
        _live_through(database)
        back_up(_url(database), folder / "b.zip")
        return (folder / "b.zip").read_bytes(), _contents(database)


def restored_or_refused(folder: Path, data: bytes, expected: Rows) -> bool:
    """Whether it was restored."""
    file, target = folder / "spoiled.zip", folder / "target.db"
    file.write_bytes(data)
    target.unlink(missing_ok=True)
    url = f"sqlite:///{target}"
    try:
        restore(url, file)
    except BackupError as error:
        line = str(error)
    else:
        line = None
    if line is not None:
        assert line and "\n" not in line
        assert not target.exists() or state(url) is SchemaState.EMPTY
        return False
    with closing(open_database(url)) as database:
        found = _contents(database)
    # Restoring frees the leases.
    assert {name: rows for name, rows in found.items() if name != "leases"} == {
        name: rows for name, rows in expected.items() if name != "leases"
    }
    return True


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, whole: tuple[bytes, Rows], data: st.DataObject
) -> None:
    damaged = data.draw(spoiled(whole[0]))
    restored_or_refused(tmp_path_factory.getbasetemp(), damaged, whole[1])


def test_each_kind_of_byte_of_the_archive_may_be_wrong(tmp_path: Path, whole: tuple[bytes, Rows]) -> None:
    """Each byte of the end record and of the last directory entry, and bytes all over the rest. Few bytes are harmless, such
    as those of a time."""
    data, expected = whole
    places = [*range(0, len(data), 101), *range(len(data) - 70, len(data))]
    bits = itertools.cycle((0x01, 0x20, 0x80, 0xFF))
    refused = sum(
        not restored_or_refused(tmp_path, data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], expected)
        for at, bit in zip(places, bits, strict=False)
    )
    assert refused > len(places) // 2


def test_a_file_that_ends_early_is_refused(tmp_path: Path, whole: tuple[bytes, Rows]) -> None:
    data, expected = whole
    for length in (*range(0, len(data), 97), len(data) - 1):
        assert not restored_or_refused(tmp_path, data[:length], expected)


def test_the_command_ends_with_one_line(tmp_path: Path, whole: tuple[bytes, Rows]) -> None:
    data, _ = whole
    with zipfile.ZipFile(_written(tmp_path / "whole.zip", data)) as archive:
        first = archive.infolist()[0]
    at = first.header_offset + 30 + len(first.filename) + 20 + 3
    file = _written(tmp_path / "b.zip", data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
    answer = CliRunner().invoke(app, ["db", "restore", str(file), "--data-dir", str(tmp_path / "data")])
    assert answer.exit_code == 2
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "data" / "sooner.db").exists()


def test_rows_that_do_not_fit_their_tables_are_refused(tmp_path: Path, whole: tuple[bytes, Rows]) -> None:
    """Of an archive that somebody made: its digests are right."""
    source = _written(tmp_path / "b.zip", whole[0])
    with zipfile.ZipFile(source) as archive:
        jobs = archive.read("tables/jobs.ndjson")
        manifest = json.loads(archive.read("manifest.json"))
    twice = jobs + jobs
    manifest["tables"]["jobs"].update(rows=4, sha256=hashlib.sha256(twice).hexdigest())
    changed = {"tables/jobs.ndjson": twice, "manifest.json": json.dumps(manifest).encode()}
    made = _rewritten(source, tmp_path / "made.zip", lambda name, data: changed.get(name, data))
    url = f"sqlite:///{tmp_path / 'target.db'}"
    with pytest.raises(BackupError, match="do not fit") as caught:
        restore(url, made)
    assert "\n" not in str(caught.value)
    assert state(url) is SchemaState.EMPTY


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
