"""Commands on a full disk, or beyond a limit of the process: one line, exit code 2, no traceback, and nothing half-written."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from service.db.backup import back_up
from service.db.migrate import SchemaState, state, upgrade
from service.db.session import open_database

pytestmark = [pytest.mark.services, pytest.mark.slow]

COMMAND_S = 120.0
KIB = 1024


def run(
    arguments: Sequence[str], file_bytes_max: int | None = None, stdout: int = subprocess.PIPE, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """A command; with ``file_bytes_max`` no file of it may become longer."""

    def limited() -> None:
        if file_bytes_max is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))

    kept = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
    return subprocess.run(
        [sys.executable, "-m", "service.cli.main", *arguments],
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=COMMAND_S,
        preexec_fn=limited,
    )


def assert_refused(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(("error: ", "sooner: ")), done.stderr
    assert any(word in done.stderr for word in ("full", "space", "large", "I/O error")), done.stderr


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database."""
    path = tmp_path_factory.mktemp("made") / "sooner.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.mark.parametrize("room", [0, 4 * KIB, 64 * KIB, 200 * KIB])
def test_no_file_may_grow(tmp_path: Path, room: int) -> None:
    data = ["--data-dir", str(tmp_path / "data")]
    assert_refused(run(["db", "upgrade", *data], room))
    assert_refused(run(["serve", "--port", "0", *data], room))


def test_a_backup_that_does_not_fit_leaves_nothing(tmp_path: Path, database: Path) -> None:
    url = ["--database-url", f"sqlite:///{database}", "--data-dir", str(tmp_path / "data")]
    assert_refused(run(["db", "backup", str(tmp_path / "b.zip"), *url], 100))
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_restore_that_does_not_fit_leaves_an_empty_database(tmp_path: Path, database: Path) -> None:
    file = tmp_path / "b.zip"
    back_up(f"sqlite:///{database}", file)
    assert_refused(run(["db", "restore", str(file), "--data-dir", str(tmp_path)], 100 * KIB))
    url = f"sqlite:///{tmp_path / 'sooner.db'}"
    assert state(url) is SchemaState.EMPTY
    with closing(open_database(url)) as restored, restored.reading() as session:
        assert session.connection().exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(["config", "show"], stdout=full.fileno(), SOONER_DATA_DIR=str(tmp_path))
    assert_refused(done)


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of so many kilobytes."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("needs to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={request.param}k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(disk)], capture_output=True).returncode != 0:
        pytest.skip("may not mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("small_disk", [8, 64, 200, 400], indirect=True)
def test_a_service_on_a_full_disk_does_not_start(small_disk: Path) -> None:
    assert_refused(run(["serve", "--port", "0", "--data-dir", str(small_disk / "data")]))


@pytest.mark.parametrize("small_disk", [4, 64, 500], indirect=True)
def test_the_demo_on_a_full_disk_does_not_start(small_disk: Path) -> None:
    done = run(["demo"], TMPDIR=str(small_disk))
    assert_refused(done)
    assert list(small_disk.iterdir()) == []
