"""Tables of results: means over seeds, and what a narrow terminal has room for."""

from collections.abc import Sequence
from typing import Any

import pytest

from policies.bounds import Bounds
from service.cli import output
from service.cli.output import Column, fitting
from service.cli.result_table import print_results
from service.sim.results import Result, summarise
from service.sim.seeds import over_seeds
from service.simulations.runs import Finished


def _finished(policy: str, seed: int, ratio: float | None, **more: Any) -> Finished:
    none = Bounds(0, 8, 100.0, 0.0, 0.0, 0.0)
    empty = summarise(
        (),
        policy=policy,
        predictor="noisy:1",
        seed=seed,
        jobs=0,
        skipped=0,
        first_submission_s=0.0,
        bounds=none,
        events=0,
    )
    values = {name: getattr(empty, name) for name in Result.__slots__}
    return Finished(Result(**values | {"jobs": 1, "finished": 1, "ratio_to_lower_bound": ratio, **more}), None)


def _rows(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    return {line[:24].strip(): line[24:].split("  ") for line in capsys.readouterr().out.splitlines()}


def _cells(row: Sequence[str]) -> list[str]:
    return [cell.strip() for cell in row if cell.strip()]


def test_runs_that_differ_in_their_seed_are_one_with_their_mean(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        _finished(policy, seed, ratio * 0.5, mean_jct_s=50.0 * ratio, preemptions=10 * seed)
        for policy, ratios in (("las", (2.0, 2.2, 2.4)), ("fifo", (8.0, 8.0, 8.0)))
        for seed, ratio in enumerate(ratios)
    ]
    print_results(runs)
    rows = _rows(capsys)
    assert _cells(rows["policy"]) == ["las", "fifo"]
    assert _cells(rows["seeds"]) == ["3", "3"]
    # Student's t with two degrees of freedom: 4.303 standard errors of 0.1 / sqrt(3).
    assert _cells(rows["ratio_to_lower_bound"]) == ["1.100 ±0.248", "4.000 ±0.000"]
    assert _cells(rows["mean_jct"]) == ["1 min 50 s", "6 min 40 s"]
    assert _cells(rows["preemptions"]) == ["10", "10"]
    assert "seed" not in rows


def test_one_run_that_left_jobs_leaves_no_mean_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [_finished("las", 0, 1.0), _finished("las", 1, 1.2), _finished("las", 2, None), _finished("fifo", 0, 1.5)]
    print_results(runs)
    rows = _rows(capsys)
    assert _cells(rows["ratio_to_lower_bound"]) == ["-", "1.500"]
    assert _cells(rows["seeds"]) == ["3", "1"]
    shown = over_seeds([run.result.to_dict() for run in runs])
    assert [(each["ratio_to_lower_bound"], each["ratio_half_width"]) for each in shown] == [(None, None), (1.5, None)]


def test_runs_with_one_seed_each_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([_finished("actual", 0, None), _finished("las", 5, 1.5)])
    text = capsys.readouterr().out
    assert "±" not in text
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("seed")] == [["0", "5"]]


def test_many_policies_are_one_a_line_and_narrow_terminals_get_the_first_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [_finished(f"p{number}", seed, 1.0) for number in range(7) for seed in range(2)]
    print_results(runs)
    text = capsys.readouterr().out
    assert text.splitlines()[0].split()[-1] == "wasted_gpu_time"
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_results(runs)
    narrow = capsys.readouterr()
    assert len(narrow.out.splitlines()) == 9
    assert "mean_jct" in narrow.out
    assert "p99_jct" not in narrow.out
    assert narrow.err.startswith("without room for p99_jct, mean_queueing_delay, ")


@pytest.mark.parametrize(("wide", "shown"), [(9, 3), (8, 2), (4, 1), (1, 1)])
def test_as_many_columns_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch, wide: int, shown: int) -> None:
    columns = [Column[str](header, str) for header in ("a", "bb", "cc")]
    assert fitting(columns, ["x"], 1) == columns, "no terminal"
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(wide))
    assert fitting(columns, ["x"], 1) == columns[:shown]
    assert fitting(columns, ["x"], 2) == columns[: max(2, shown)]


@pytest.mark.parametrize("jobs", [0, 1])
def test_means_of_no_jobs_are_not_shown_as_zeros(capsys: pytest.CaptureFixture[str], jobs: int) -> None:
    print_results([_finished("fifo", 0, None, jobs=jobs, finished=0)])
    shown = {key: _cells(row)[0] for key, row in _rows(capsys).items() if _cells(row)}
    assert {shown[key] for key in ("mean_jct", "p99_jct", "mean_queueing_delay", "mean_slowdown")} == {"-"}
    for key in ("makespan", "lower_bound_mean_jct", "utilization_ratio"):
        assert (shown[key] == "-") == (jobs == 0)
    assert (shown["preemptions"], shown["wasted_gpu_time"]) == ("0", "0 s")
