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


def test_there_are_five_and_they_are_kept_without_outputs() -> None:
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05"]
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
    ran = Ran("01_prediction_error.ipynb", JOBS=300, REPLAYED=40)
    assert "made-up jobs" in capsys.readouterr().out
    assert len(ran.names["scored"]) > 250
    assert ran.names["scores"]["5-19 past runs"].median_factor < 1.5, "a recurring job is known within a half"
    assert ran.names["scores"]["never run before"].median_factor > 2.0
    assert all(row.p10 <= row.p50 <= row.p90 for row in ran.names["scored"])
    assert len(ran.pictures) == 8
    assert len(ran.names["jobs"]) == len(ran.names["scored"])
    assert len(ran.names["frame_of"]("polars")) == len(ran.names["scored"])
    value = ran.names["value"]
    assert (value["schema"], value["jobs"]) == ("sooner.model.value/1", 40)
    titles = [each.title for each in ran.shown if isinstance(each, Table)]
    assert any(title.startswith("Saved by the truth") for title in titles)
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


def test_iteration_time(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran("05_iteration_time.ipynb")
    assert "12 published runs from this notebook" in capsys.readouterr().out
    assert len(ran.pictures) == 4
    runs = ran.names["runs"]
    # The constants are fitted on other rows too: of these few, none is far off.
    assert ran.names["mean"] < 0.12 and max(abs(run.error) for run in runs) < 0.35
    assert all(run.source and run.measured > 0 for run in runs)
    [table] = [each for each in ran.shown if isinstance(each, Table)]
    assert len(table.rows) == 12


def test_iteration_times_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.csv").write_text(
        "model,params_b,layers,hidden,ffn,heads,kv_heads,head_dim,vocab,gated_mlp\na,1.7,24,2304,9216,24,24,96,51200,0\n"
    )
    (tmp_path / "gpus.csv").write_text(
        "gpu,bf16_tflops_dense,fp32_tflops,memory_gib,hbm_gb_s,nvlink_gb_s_bidir,nvlink_domain,typical_nic_gbps_per_gpu\n"
        "A100-80,312,19.5,80,2039,600,8,200\n"
    )
    row = "SC21,A100-80,fp16,{model},32,512,2048,1,1,full,9287.93,dense\n"
    header = "source,gpu,precision,model,gpus,global_batch,sequence,tp,pp,recompute,tokens_per_s_per_gpu,class\n"
    (tmp_path / "open.csv").write_text(header + row.format(model="a") + row.format(model="b"))
    ran = Ran("05_iteration_time.ipynb", SOURCE=str(tmp_path / "open.csv"))
    assert "1 left out: its model is not in the table of models" in capsys.readouterr().out
    [run] = ran.names["runs"]
    assert (run.label, run.kind, run.gpu) == ("a on 32 A100-80", "dense", "A100-80")
    assert abs(run.error) < 0.3
    assert len(ran.pictures) == 4


def test_one_job_under_one_policy_is_compared_with_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = generate(3, 1, gpus=16)
    write_workload(workload, tmp_path / "jobs.csv")
    ran = Ran("02_policy_comparison.ipynb", SOURCE=str(tmp_path / "jobs.csv"), POLICIES=["asrpt"], ERRORS=["oracle"])
    assert capsys.readouterr().out.startswith("1 job on ")
    said = [picture.finding for picture in ran.pictures]
    assert "No policy has stopped a job" in said
    assert [finding.count("under ") + finding.count("Under ") for finding in said if "nder asrpt" in finding][:2] == [
        1,
        1,
    ]
    assert not any("0.0 times" in finding for finding in said)
    Ran("03_workload.ipynb", SOURCE=str(tmp_path / "jobs.csv"))
    assert capsys.readouterr().out.startswith("1 job over ")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("05")])
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
