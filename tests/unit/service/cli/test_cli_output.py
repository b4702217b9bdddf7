"""Tables and words for people."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from service.cli.job_tables import JOBS, duration, eta_note, interval, iterations, when
from service.cli.output import Column, rich_table
from service.wire.jobs import JobDocument, PredictionDocument

PREDICTION = PredictionDocument(
    id=1,
    job_id=1,
    p10=800.4,
    p50=1234.6,
    p90=2000.0,
    unit="iterations",
    source="recurrence: 14 past runs",
    model_version=None,
    seconds_per_unit=0.1,
    made_at="2026-01-01T00:00:00Z",
    actual=None,
    scored_at=None,
    log_error=None,
)


def job(**changes: Any) -> JobDocument:
    found: dict[str, Any] = {
        "id": 12345,
        "name": "gpt2-medium-pretrain",
        "user": "ada",
        "project": None,
        "state": "preempting",
        "reason": "queue_head_blocked",
        "reason_sentence": "Because.",
        "gpus": 64,
        "priority": 0,
        "held": False,
        "submitted_at": "2026-01-01T00:00:00Z",
        "started_at": None,
        "finished_at": None,
        "attempts": 0,
        "preemptions": 0,
        "iterations_done": 600.0,
        "prediction": PREDICTION,
        "eta": None,
        "eta_reason": "There are no forecasts.",
        "servers": ["s0001", "s0002"],
        "exit_code": None,
        "links": {},
    }
    return found | changes  # type: ignore[return-value]


def rendered(columns: list[Column[JobDocument]] | Any, rows: list[JobDocument], width: int) -> list[str]:
    console = Console(width=width, markup=False, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(rich_table(columns, rows))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [45, 60, 90, 200])
def test_ids_states_and_numbers_stay_whole_however_narrow_the_terminal(width: int) -> None:
    lines = rendered(JOBS.columns, [job(), job(id=7)], width)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert lines[1].startswith("12345  ")
    assert lines[2].startswith("    7  ")
    for whole in ("preempting", " 64 ", " 600/1,235 "):
        assert whole in lines[1]


def test_wide_terminals_cut_nothing() -> None:
    assert rendered(JOBS.columns, [job()], 200)[1].split() == [
        *("12345", "gpt2-medium-pretrain", "ada", "preempting", "queue_head_blocked", "64", "600/1,235", "s0001,s0002")
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "600/1,235"),
        ({"iterations_done": None}, "-/1,235"),
        ({"prediction": None}, "600/-"),
        ({"prediction": None, "iterations_done": None}, "-/-"),
        ({"prediction": PREDICTION | {"unit": "service_s"}}, "600, ~20 min 35 s"),
        ({"finished_at": "2026-01-02T00:00:00Z"}, "600"),
        ({"finished_at": "2026-01-02T00:00:00Z", "iterations_done": None}, "-"),
    ],
)
def test_iterations_show_only_what_is_known(changes: dict[str, Any], expected: str) -> None:
    assert iterations(job(**changes)) == expected


def test_the_interval_is_never_a_lone_number() -> None:
    assert interval(job()) == "800-2,000"
    assert interval(job(prediction=PREDICTION | {"unit": "service_s"})) == "~13 min 20 s-33 min 20 s"
    assert interval(job(prediction=None)) == ""


def test_the_exit_code_of_an_earlier_attempt_is_not_that_of_the_running_one() -> None:
    [column] = [column for column in JOBS.hidden if column.header == "EXIT"]
    assert column.text(job(state="running", exit_code=143)) == ""
    assert column.text(job(state="queued", servers=[], exit_code=3)) == "3"
    assert column.text(job(state="succeeded", servers=[], exit_code=0)) == "0"
    assert column.text(job(servers=[])) == ""


def test_each_reason_for_a_missing_eta_is_told_once_with_its_jobs() -> None:
    jobs = [
        *(job(id=number) for number in range(1, 8)),
        job(id=8, eta_reason="Held."),
        job(id=9, eta_reason=None),
        job(id=10, eta="2026-01-01T00:00:00Z", eta_reason="x"),
    ]
    assert eta_note(jobs) == "ETA of jobs 1, 2, 3, 4, 5 and 2 others: There are no forecasts.\nETA of job 8: Held."
    assert eta_note(jobs[4:8]) == "ETA of jobs 5, 6, 7: There are no forecasts.\nETA of job 8: Held."
    assert eta_note(jobs[:7]) == "ETA: There are no forecasts.", "it is the reason of all"


def test_an_eta_that_has_passed_is_overdue() -> None:
    [column] = [column for column in JOBS.columns if column.header == "ETA"]
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    etas = (None, "2026-01-01T00:00:00Z", soon)
    assert [column.text(job(eta=each)) for each in etas] == ["", "overdue", when(soon)]


def test_a_duration_that_is_missing_is_an_empty_cell() -> None:
    assert duration(None) == ""
    assert duration(11_100.0) == "3 h 05 min"


def test_iterations_and_seconds_cannot_be_taken_for_each_other() -> None:
    in_seconds = PREDICTION | {"unit": "service_s", "p50": 7800.0}
    assert iterations(job()) == "600/1,235"
    assert iterations(job(prediction=in_seconds)) == "600, ~2 h 10 min"
    assert iterations(job(prediction=in_seconds, iterations_done=None)) == "~2 h 10 min"
