"""The benchmark of predictions runs, and prints the figures that it promises; its sizes here mean nothing."""

import gc
import sys

import pytest

from benchmarks import prediction
from service.runtime.garbage import let_go


@pytest.mark.slow
def test_what_a_prediction_costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--history", "500", "--trained", "250", "--asks", "3", "--batch", "20", "--programs", "20"]
    monkeypatch.setattr(sys, "argv", ["prediction", *sizes])
    let_go()
    prediction.main()
    assert gc.get_freeze_count() > 0, "measured as the service runs"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("calibration: ")
    assert lines[1].startswith("500 ended jobs in the database; warmed in ")
    assert lines[2].split()[1:5] == ["models", "trained", "on", "250"]
    rows = [line.split() for line in lines[4:]]
    assert [row[:2] for row in rows] == [["alone", "1"], ["batch", "20"], ["explained", "1"]]
    assert all(0.0 < float(row[2]) <= float(row[3]) for row in rows)


def test_the_drawn_past_recurs_and_is_the_same_again() -> None:
    specs = prediction.programs(10, seed=1)
    past = list(prediction.history(specs, 200, seed=1))
    assert past == list(prediction.history(specs, 200, seed=1))
    assert [label.submitted_at_s for _, label in past] == [60.0 * number for number in range(200)]
    assert len({program for program, _ in past}) == 10
    assert all(label.spec is specs[program] and label.service_s > 0.0 for program, label in past)
