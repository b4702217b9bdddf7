"""Notebooks run from the first cell to the last, on small data and without a service; what they show is what there is."""

import ast
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from service.notebooks import Picture, Table
from service.sim.workloads.generate import generate
from service.sim.workloads.table import write_workload

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((NOTEBOOKS / name).read_text())["cells"]
    return found


class Ran:
    """A notebook executed as Jupyter does it: the value of a cell's last expression is shown."""

    def __init__(self, name: str, **parameters: object) -> None:
        self.names: dict[str, Any] = {}
        self.shown: list[Any] = []
        for cell in cells(name):
            if cell["cell_type"] == "code":
                self._run(cell, f"{name}:{cell['id']}")
            if "parameters" in cell["metadata"].get("tags", ()):
                assert parameters.keys() <= self.names.keys(), "the test sets parameters that the notebook has"
                self.names |= parameters

    def _run(self, cell: dict[str, Any], where: str) -> None:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, where, "exec"), self.names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), self.names)
            self.shown += [value] if value is not None else []

    @property
    def pictures(self) -> list[Picture]:
        """What was drawn, each checked to be whole."""
        found = [each for each in self.shown if isinstance(each, Picture)]
        for picture in found:
            ElementTree.fromstring(picture.svg)
            assert "nan" not in picture.finding
            assert "nan" not in picture.svg.replace("nance", "")
            assert picture.note
            assert len(picture.finding) > 20
        return found


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No service, no database, no settings of whoever runs the tests."""
    for variable in ("SOONER_URL", "SOONER_DATABASE_URL", "SOONER_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SOONER_PORT", "9")  # nobody listens there


def test_there_are_four_and_they_are_kept_without_outputs() -> None:
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04"]
    for name in NAMES:
        for cell in cells(name):
            assert not cell.get("outputs"), name
            assert cell.get("execution_count") is None, name


@pytest.mark.parametrize("name", NAMES)
def test_each_says_first_what_it_is_where_from_and_how_to_change_that(name: str) -> None:
    first, parameters = cells(name)[:2]
    words = "".join(first["source"])
    assert first["cell_type"] == "markdown"
    assert all(part in words for part in ("Read me first", "Where the data comes from", "SOURCE =", "SOONER_URL"))
    assert parameters["metadata"]["tags"] == ["parameters"]


def test_prediction_error(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran("01_prediction_error.ipynb", JOBS=300)
    assert "made-up jobs" in capsys.readouterr().out
    assert len(ran.names["scored"]) > 250
    assert ran.names["scores"]["5-19 past runs"].median_factor < 1.5, "a recurring job is known within a half"
    assert ran.names["scores"]["never run before"].median_factor > 2.0
    assert all(row.p10 <= row.p50 <= row.p90 for row in ran.names["scored"])
    assert len(ran.pictures) == 7
    said = ran.pictures[0].finding
    assert "never run before within" in said
    worst = next(each for each in reversed(ran.shown) if isinstance(each, Table))
    assert len(worst.rows) == 12
    assert ran.names["worst"][0].factor == max(row.factor for row in ran.names["scored"])


def test_policy_comparison() -> None:
    ran = Ran("02_policy_comparison.ipynb", JOBS=60, POLICIES=["asrpt", "easy"], ERRORS=["oracle", "noisy:1.0", "none"])
    results = ran.names["results"]
    assert set(results) == {"asrpt", "easy"}
    assert all(result.finished == 60 for result in results.values())
    assert ran.names["ranked"] == sorted(results, key=lambda name: results[name].mean_jct_s)
    assert len(ran.pictures) == 6
    assert ran.pictures[0].finding.startswith(f"{ran.names['ranked'][0]} is within")
    assert sum(ran.names["counts"].values()) <= 60 * 2


def test_workload() -> None:
    ran = Ran("03_workload.ipynb", JOBS=2000)
    assert len(ran.pictures) == 9
    assert ran.names["load"] == pytest.approx(0.85, rel=0.02), "what the generator was asked for"
    assert max(ran.names["behind_s"]) > 0.0


def test_a_backlog_by_hand() -> None:
    ran = Ran("03_workload.ipynb", JOBS=50)
    job = ran.names["workload"].jobs[0]
    from dataclasses import replace

    jobs = [
        replace(job, submit_time_s=0.0, gpus=2, duration_s=100.0),
        replace(job, submit_time_s=30.0, gpus=4, duration_s=10.0),
        replace(job, submit_time_s=500.0, gpus=1, duration_s=8.0),
    ]
    # 200 GPU-s on 4 GPUs are 50 s; 30 s later 20 s are left and 10 s come; then everything is done.
    assert ran.names["backlog"](jobs, 4) == [50.0, 30.0, 2.0]


def test_calibration() -> None:
    ran = Ran("04_calibration.ipynb", JOBS=300)
    assert len(ran.pictures) == 8
    assert ran.names["after"] == pytest.approx(0.8, abs=0.25)
    assert ran.names["total"].total() == len(ran.names["scored"])
    assert len(ran.names["drift"].alarm) > 50


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_says_little(name: str, tmp_path: Path) -> None:
    """Nobody's unnamed jobs, in one size, without iterations: pictures that need more give way to a note."""
    from dataclasses import replace

    workload = generate(3, 40, gpus=16)
    bare = [
        replace(
            job,
            user="",
            project="",
            name="",
            model="",
            iterations=None,
            declared_iterations=None,
            walltime_s=None,
            gpus=1,
        )
        for job in workload.jobs
    ]
    write_workload(replace(workload, jobs=tuple(bare)), tmp_path / "jobs.csv")
    less = {"POLICIES": ["fifo"], "ERRORS": ["oracle", "none"]} if name.startswith("02") else {}
    ran = Ran(name, SOURCE=str(tmp_path / "jobs.csv"), **less)
    assert "jobs.csv" in ran.names["source"].origin
    assert ran.pictures
