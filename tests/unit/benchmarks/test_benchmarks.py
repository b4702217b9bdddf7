"""The benchmarks run, and print the figures that they promise; their sizes here are tiny and their figures mean nothing."""

import sys
from pathlib import Path

import pytest

from benchmarks import contention, cycle, forecast, forecast_accuracy, simulator
from service.sim.workloads.generate import generate
from service.sim.workloads.table import write_workload


def _rows(printed: str, skip: int) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()[skip:]]


def test_jobs_a_cpu_second(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["simulator", "--jobs", "60", "--servers", "4", "--policies", "sjf,las"])
    simulator.main()
    printed = capsys.readouterr().out
    assert printed.startswith("calibration: ")
    rows = _rows(printed, 2)
    assert [row[-6:-4] for row in rows] == [["sjf", "60"], ["las", "60"]] * 2
    assert all(float(row[-3].replace(",", "")) > 0.0 for row in rows)
    assert [row[-1] for row in rows if "sjf" in row] == ["1.00", "1.00"]


def test_the_whole_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "w.csv"
    write_workload(generate(1, 40, gpus=32), table)
    arguments = ["simulator", "--command", "--trace", str(table), "--servers", "4", "--first", "30"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--policies", "sjf,asrpt:preemption=never"])
    simulator.main()
    rows = _rows(capsys.readouterr().out, 3)
    assert [row[:2] for row in rows] == [["sjf", "30"], ["asrpt:preemption=never", "30"]]
    assert all(float(row[-1].replace(",", "")) > 20.0 for row in rows), "no Python with numpy fits into 20 MiB"


@pytest.mark.parametrize(("networks", "running"), [((), "60"), (("--networks",), "65")])
def test_cost_of_an_event(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], networks: tuple[str, ...], running: str
) -> None:
    arguments = ["cycle", "--servers", "30", "--queued", "5", "50", "--events", "20", "--policies", "asrpt"]
    monkeypatch.setattr(sys, "argv", [*arguments, *networks])
    cycle.main()
    rows = _rows(capsys.readouterr().out, 2)
    assert [(row[2], row[3], row[4]) for row in rows] == [
        (running, queued, event) for queued in ("5", "50") for event in ("arrival", "urgent", "finish")
    ]
    assert all(float(row[-3]) <= float(row[-2]) for row in rows)
    assert [row[-1] for row in rows[:3]] == ["1.00"] * 3


def test_what_contention_costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scatter = "sjf:placement=random:delay_factor=0"
    arguments = ["contention", "--first", "60", "--servers", "4", "--policies", f"asrpt,{scatter}"]
    monkeypatch.setattr(sys, "argv", arguments)
    contention.main()
    local, scattered = _rows(capsys.readouterr().out, 2)
    assert (local[0], scattered[0]) == ("asrpt", scatter)
    assert float(scattered[3]) > float(scattered[2]), "contended is slower than undisturbed"
    assert int(scattered[-1]) > int(local[-1]), "more jobs straddle"


def test_what_a_forecast_costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["forecast", "--jobs", "4", "8", "--policies", "fifo", "--samples", "5", "--servers", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    forecast.main()
    rows = _rows(capsys.readouterr().out, 2)
    assert [row[:3] for row in rows] == [["fifo", "4", "5"], ["fifo", "8", "5"]]
    assert all(row[-2:] == ["0.00%", "+0.00%"] for row in rows), "fifo asks for no looks"


def test_how_right_forecasts_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["forecast_accuracy", "--jobs", "40", "--instants", "5", "--policy", "fifo", "--load", "1.5"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--samples", "5"])
    forecast_accuracy.main()
    rows = _rows(capsys.readouterr().out, 2)
    (finish,) = (row for row in rows if row[:2] == ["finish", "all"])
    assert int(finish[2]) >= int(finish[3]) > 0
    assert sum(cell.endswith("%") for cell in finish) == 3, "without arrivals, with arrivals, and calibrated"
