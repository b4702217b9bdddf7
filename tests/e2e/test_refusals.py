"""A service that cannot start says why in one line and ends with exit code 2, having changed nothing."""

import contextlib
import io
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from service.config.settings import load_settings
from service.db import migrate
from service.server import app
from tests.e2e.conftest import MakeService

pytestmark = pytest.mark.slow

_SERVE = [
    sys.executable,
    "-c",
    "import sys\nfrom service.cli.main import main\nsys.argv = ['sooner', 'serve']\nsys.exit(main())",
]


def serve(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
    given = {"DATA_DIR": str(tmp_path / "data"), "PORT": "0", **settings}
    environ = kept | {f"SOONER_{name}": value for name, value in given.items()}
    return subprocess.run(_SERVE, env=environ, capture_output=True, text=True, timeout=180)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in done.stderr


def test_a_wrong_cluster_file_is_named_with_its_key(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("schema: sooner.cluster/1\nname: x\nservers: [{count: 1, gpus: -4}]\n")
    assert_refused(serve(tmp_path, CLUSTER=str(cluster)), "cluster.yaml", "servers[0].gpus")


def test_a_cluster_file_of_other_machines_is_refused_by_the_local_executor(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("schema: sooner.cluster/1\nname: x\nservers: [{names: [far-1, far-2], gpus: 8}]\n")
    assert_refused(serve(tmp_path, CLUSTER=str(cluster)), "cluster.yaml", "servers", "far-1, far-2", "virtual: true")


def test_a_missing_cluster_file_is_named(tmp_path: Path) -> None:
    assert_refused(serve(tmp_path, CLUSTER=str(tmp_path / "none.yaml")), "none.yaml")


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("POLICY", "magic", ("magic", "asrpt")),
        ("POLICY_OPTIONS", "eta=7", ("eta", "7")),
        ("RESCHEDULE_PERIOD_S", "-1", ("reschedule_period_s", "-1")),
        ("PREEMPTION", "sometimes", ("preemption", "sometimes")),
        ("DATABASE_URL", "mysterious://x", ("database",)),
        ("DATABASE_URL", "sqlite:////no/such/folder/sooner.db", ("database",)),
        ("PORT", "99999", ("port", "99999")),
        ("RUN_AS", "nobody", ("run_as", "submitter")),
        # Not root, or a data folder that other users cannot reach.
        ("RUN_AS", "submitter", ("run_as=submitter",)),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(
    tmp_path: Path, setting: str, value: str, words: tuple[str, ...]
) -> None:
    assert_refused(serve(tmp_path, **{setting: value}), *words)


def test_a_policy_without_preemption_refuses_it_if_asked_for(tmp_path: Path) -> None:
    assert_refused(serve(tmp_path, POLICY="fifo", PREEMPTION="guided"), "preemption", "fifo")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    migrate.upgrade(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    assert_refused(serve(tmp_path, DATABASE_URL=f"sqlite:///{path}"), "newer")


def test_an_older_schema_is_refused_with_the_command_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one revision so far, so an older database is pretended."""
    monkeypatch.setattr(migrate, "state", lambda url: migrate.SchemaState.OLDER)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = app.serve(load_settings({"data_dir": tmp_path / "data", "port": 0}))
    assert code == 2
    assert "sooner db upgrade" in said.getvalue()
    assert len(said.getvalue().splitlines()) == 1


def test_a_second_service_on_the_same_folder_is_refused(tmp_path: Path, make_service: MakeService) -> None:
    service = make_service()
    service.start()
    done = serve(tmp_path, DATA_DIR=str(service.data_dir))
    assert_refused(done, "running", str(service.data_dir))


def test_the_attempts_of_another_database_are_not_taken_for_our_own(tmp_path: Path, make_service: MakeService) -> None:
    service = make_service()
    service.start()
    service.stop()
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert_refused(serve(tmp_path, DATA_DIR=str(service.data_dir), DATABASE_URL=other), "another database")


def test_a_port_in_use_is_named(tmp_path: Path, make_service: MakeService) -> None:
    service = make_service()
    service.start()
    port = service.url.rpartition(":")[2]
    assert_refused(serve(tmp_path, PORT=port), "listen", port)


def test_a_termination_ends_the_service_cleanly_and_leaves_its_jobs_running(make_service: MakeService) -> None:
    service = make_service()
    service.start()
    job = service.submit(name="sleeper", gpus=1, command=["sleep", "600"])
    service.until_state(job, "running")
    assert service.stop() == 0
    assert any("sleep" in " ".join(process.cmdline()) for process in service.processes())
    service.start()
    assert service.job(job)["state"] == "running"
