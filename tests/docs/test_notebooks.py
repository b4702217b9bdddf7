"""Notebooks run from the first cell to the last, on small data and without a service."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def run(name: str) -> dict[str, Any]:
    """Execute a notebook's code and return its variables."""
    cells = json.loads((NOTEBOOKS / name).read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        assert not cell.get("outputs"), "notebooks are kept without outputs"
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}:{cell['id']}", "exec"), names)
    return names


def test_prediction_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    names = run("01_prediction_error.ipynb")
    assert len(names["scored"]) > 400
    assert "a synthetic history" in capsys.readouterr().out
    recurring = names["groups"]["recurrence"]
    errors = sorted(abs(row["log_error"]) for row in recurring)
    assert errors[len(errors) // 2] < 0.5, "a recurring job is known within two thirds"
    assert all(row["p10"] <= row["p50"] <= row["p90"] for row in names["scored"])
