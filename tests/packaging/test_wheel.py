"""The wheel holds what it needs and nothing else, and works where there is no checkout."""

import json
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from service.cli.guard import IMPORT_NAMES
from tests.packaging.conftest import ROOT, TIMEOUT_S, Environment, build_wheel

pytestmark = pytest.mark.slow


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_three_packages_are_at_its_top_and_nothing_else(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in _names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(IMPORT_NAMES)


def test_it_holds_every_module_and_no_leavings(wheel: Path) -> None:
    names = set(_names(wheel))
    for package in IMPORT_NAMES:
        modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert modules - names == set()
    assert [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".db"))] == []


@pytest.mark.parametrize(
    ("folder", "inside"),
    [("migrations", "service/db/_migrations"), ("examples", "service/_examples"), ("notebooks", "service/_notebooks")],
)
def test_data_folders_are_inside(wheel: Path, folder: str, inside: str) -> None:
    ours = {path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
    expected = {name for name in ours if "__pycache__" not in name}
    found = {name.removeprefix(f"{inside}/") for name in _names(wheel) if name.startswith(f"{inside}/")}
    assert found == expected
    assert len(found) >= 3


def test_it_holds_the_documentation_site_where_the_service_looks_for_it(wheel: Path, environment: Environment) -> None:
    names = set(_names(wheel))
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"service/_site/{page.relative_to(ROOT / 'docs').with_suffix('.html').as_posix()}" in names
    done = environment.run("python", "-c", "from service.api.site import FOLDER; print(FOLDER / 'index.html')")
    assert Path(done.stdout.strip()).is_relative_to(environment.site), done.stderr
    assert Path(done.stdout.strip()).is_file()


def test_its_metadata_names_licence_python_and_the_two_xgboosts(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(name).decode())
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert metadata["Name"] == "sooner"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    required = [line.replace('"', "'") for line in metadata.get_all("Requires-Dist", [])]
    markers = {line.partition("<")[0]: line.partition("; ")[2] for line in required if line.startswith("xgboost")}
    assert markers == {"xgboost-cpu": "sys_platform != 'darwin'", "xgboost": "sys_platform == 'darwin'"}


def test_installed_code_is_not_the_checkout(environment: Environment) -> None:
    code = "import policies, predictor, service; print(policies.__file__, predictor.__file__, service.__file__)"
    done = environment.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert all(Path(file).is_relative_to(environment.site) for file in done.stdout.split())


def test_a_database_is_made_and_upgraded_from_outside_the_checkout(environment: Environment, tmp_path: Path) -> None:
    database = tmp_path / "new.db"
    first = environment.run("sooner", "db", "upgrade", "--database-url", f"sqlite:///{database}", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["before"] == "empty"
    with sqlite3.connect(database) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"jobs", "attempts", "facts", "cycles", "alembic_version"} <= tables
    again = environment.run("sooner", "db", "upgrade", "--database-url", f"sqlite:///{database}", "--json")
    assert json.loads(again.stdout)["before"] == "current"


def test_a_simulation_runs_from_outside_the_checkout(environment: Environment) -> None:
    made = environment.run("sooner", "workload", "generate", "--jobs", "30", "--gpus", "16", "--out", "w.csv")
    assert made.returncode == 0, made.stderr
    (environment.folder / "c.yaml").write_text("schema: sooner.cluster/1\nservers: [{count: 2, gpus: 8}]\n")
    done = environment.run("sooner", "sim", "run", "--workload", "w.csv", "--cluster", "c.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] == 30


def test_the_demo_finds_its_programs_in_the_wheel(environment: Environment) -> None:
    code = (
        "from service.demo import jobs; from pathlib import Path\n"
        "for body in jobs.bodies():\n"
        "    script = next(Path(word) for word in body['command'] if word.endswith('.py'))\n"
        "    assert script.is_file(), script\n"
        "    print(script)\n"
    )
    done = environment.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    scripts = [Path(line) for line in done.stdout.splitlines()]
    assert scripts
    assert all(script.is_relative_to(environment.site / "service" / "_examples") for script in scripts)


def test_an_entry_point_of_another_distribution_is_a_policy(environment: Environment) -> None:
    added = environment.add_distribution("plugged", ["plugged.py"])
    module = environment.site / "plugged.py"
    module.write_text("from policies.registry import BUILT_IN\n\nfactory = BUILT_IN['sjf']\n")
    points = added[-1] / "entry_points.txt"
    points.write_text("[sooner.policies]\nmine = plugged:factory\n")
    try:
        done = environment.run(
            "python", "-c", "from policies.registry import *; print(policy_names(), make_policy('mine').name)"
        )
        assert done.returncode == 0, done.stderr
        assert "'mine'" in done.stdout
        assert done.stdout.endswith("sjf\n")
    finally:
        for path in (module, points, *added[:-1]):
            path.unlink()
        added[-1].rmdir()


class TestGuard:
    def test_a_distribution_that_claims_a_name_ends_it_with_one_line(self, environment: Environment) -> None:
        added = environment.add_distribution("rival", ["service/rival.py"])
        try:
            done = environment.run("sooner", "--version")
        finally:
            for path in added[:-1]:
                path.unlink()
            added[-1].rmdir()
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert "'rival'" in done.stderr
        assert "'service'" in done.stderr

    def test_a_package_that_comes_first_ends_it_with_one_line(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "__init__.py").write_text("")
        done = environment.run("sooner", "--version", PYTHONPATH=str(tmp_path))
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr
        assert "policies" in done.stderr

    def test_without_a_rival_it_starts(self, environment: Environment) -> None:
        done = environment.run("sooner", "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("sooner ")


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert built.returncode == 0, built.stderr
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    left_out = (".ci/", ".git", ".dockerignore", "notebooks/")
    assert [name for name in tracked if name not in inside and not name.startswith(left_out)] == []
    build_wheel(source, tmp_path)
    (again,) = tmp_path.glob("*.whl")
    assert sorted(_names(again)) == sorted(_names(wheel))
