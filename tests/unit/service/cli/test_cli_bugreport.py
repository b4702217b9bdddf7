"""``sooner bugreport``: what goes in, what never does, and that its cycles replay."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.history.cycles import Recorder
from tests.scenarios.dsl import Story, policy
from tests.unit.service.cli.cli_world import CliWorld, cli_world

SECRET = "hunter2-swordfish"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    monkeypatch.setenv("SOONER_DATABASE_URL", f"postgresql://me:{SECRET}@db/sooner")
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


def _report(cli: CliWorld, tmp_path: Path) -> dict[str, bytes]:
    target = tmp_path / f"report{len(list(tmp_path.iterdir()))}.zip"
    told = cli.run("bugreport", "--out", str(target))
    assert told.exit_code == 0, told.stderr
    assert told.stdout.strip() == str(target)
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_nothing_that_is_a_secret_goes_in(cli: CliWorld, tmp_path: Path) -> None:
    cli.submit(
        env={"API": SECRET},
        command=["python", f"--password={SECRET}"],
        working_dir=f"/srv/{SECRET}",
        labels={"note": SECRET},
    )
    parts = _report(cli, tmp_path)
    for name, content in parts.items():
        assert SECRET.encode() not in content, name
        assert cli.world.token.encode() not in content, name
    (job,) = json.loads(parts["queue.json"])["jobs"]
    assert job["name"] == "digits"
    assert {"env", "command", "working_dir", "labels"}.isdisjoint(job)
    assert json.loads(parts["settings.json"])["database_url"]["value"] == "postgresql://me:***@db/sooner"


def test_it_says_what_it_is_and_what_is_missing(cli: CliWorld, tmp_path: Path) -> None:
    parts = _report(cli, tmp_path)
    assert {"README.txt", "versions.json", "ready.json", "cluster.json", "predictor.json", "metrics.txt"} <= set(parts)
    versions = json.loads(parts["versions.json"])
    assert {"sooner", "sqlalchemy", "scikit-learn"} <= set(versions["libraries"])
    assert "cycles/now.json" in parts["missing.txt"].decode(), "this world's queue is too long to copy"
    cli.world.healthy = False
    assert json.loads(_report(cli, tmp_path)["ready.json"])["ready"] is False, "a service that is not ready answers 503"


def test_its_cycles_are_decided_again(cli: CliWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(policy("fifo"), {}, jobs_max=10, kept=5)
    story = Story("1x4", recorder)
    monkeypatch.setattr(story.log, "cycle", lambda batch: recorder.committed(batch.cycle))
    story.job("a", gpus=4, runs_s=100, env={"API": SECRET}).job("b", gpus=4).until(1)
    world = story.engine.world
    snapshot = recorder.present(world, story.engine.dump(), 7, 1.0)
    cli.world.present = snapshot
    cli.world.snapshots = {number: found for number in recorder.cycles() if (found := recorder.snapshot(number))}
    parts = _report(cli, tmp_path)
    cycles = sorted(name for name in parts if name.startswith("cycles/"))
    assert cycles == sorted(["cycles/now.json", *(f"cycles/{number}.json" for number in cli.world.snapshots)])
    assert len(cycles) > 1
    for name in cycles:
        assert SECRET.encode() not in parts[name]
        file = tmp_path / "cycle.json"
        file.write_bytes(parts[name])
        told = cli.run("sim", "replay", str(file))
        assert told.exit_code == 0, told.output


def test_no_service_is_no_reason_to_report_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    from tests.unit.service.cli.cli_world import RUNNER, app

    target = tmp_path / "report.zip"
    told = RUNNER.invoke(app, ["bugreport", "--out", str(target)])
    assert told.exit_code == 0, told.output
    with zipfile.ZipFile(target) as archive:
        assert "cannot reach Sooner" in archive.read("missing.txt").decode()
        assert "versions.json" in archive.namelist()


def test_a_file_that_exists_is_not_replaced(cli: CliWorld, tmp_path: Path) -> None:
    target = tmp_path / "report.zip"
    target.write_text("mine")
    told = cli.run("bugreport", "--out", str(target))
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == f"error: {target} exists; name another file with --out\n"
    assert target.read_text() == "mine"


def test_a_file_that_cannot_be_written_is_named(cli: CliWorld, tmp_path: Path) -> None:
    told = cli.run("bugreport", "--out", str(tmp_path / "absent" / "report.zip"))
    assert told.exit_code == 2
    assert "absent" in told.stderr
