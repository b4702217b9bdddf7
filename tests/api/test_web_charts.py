"""Charts, maps and totals of pages, made on the server from documents of the API."""

import re
from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import func, select, update

from policies.model.cluster import Server
from policies.registry import policy_names
from service.db.tables import JOBS, MODELS, PREDICTIONS, USAGE
from service.web.pages.predictions import compared
from tests.api.conftest import NOW_S, World, pages_of
from tests.api.helpers import plain_job
from tests.api.people import submitted
from tests.api.test_learning import add_rows, model_row
from tests.api.test_predictions import end, said, submit, take_in
from tests.api.test_web_pages import HOSTILE, OUTLOOK, WHAT_IF, Elements, browser_of, simulation
from tests.api.timelines import put, with_servers

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def app(world: World) -> FastAPI:
    return pages_of(world)


@pytest.fixture
def admin(app: FastAPI, world: World) -> Iterator[Client]:
    with browser_of(app, world.token) as browser:
        yield browser


def page(browser: Client, address: str) -> str:
    answer = browser.get(address)
    assert answer.status_code == 200, answer.text
    Elements(answer.text)
    return answer.text


def test_the_overview_shows_the_use_of_the_last_day(admin: Client, world: World) -> None:
    put(world, 1, -12 * 3600.0, None, ((0, (0, 1, 2, 3)), (1, (0,))))
    assert "25% on average, at most 50%" in page(admin, "/")


def test_the_use_is_read_again_only_after_a_while(admin: Client, world: World) -> None:
    assert "0% on average" in page(admin, "/")
    put(world, 1, -12 * 3600.0, None, ((0, (0, 1, 2, 3)), (1, (0,))))
    assert "0% on average" in page(admin, "/")


def test_the_map_shows_which_gpus_are_held(admin: Client, world: World) -> None:
    put(world, 1, -60.0, None, ((0, (0, 1)),))
    text = page(admin, "/cluster")
    assert text.count('<span class="held" title=') == 2
    assert text.count('<span class="free" title=') == 8
    assert 'title="GPU 1: held by job 1"' in text
    assert '<a class="small" href="./jobs/1">job 1</a>' in text
    assert "<details" not in text.split('id="map-title"')[1].split("</section>")[0]


def test_the_map_of_a_large_cluster_is_folded_by_rack(admin: Client, world: World) -> None:
    with_servers(world, *(Server(f"n{number}", 2, rack=f"r{number // 40}") for number in range(80)))
    put(world, 1, -60.0, None, ((0, (0,)),))
    text = page(admin, "/cluster")
    assert '<details class="rack" id="rack-1"><summary>' in text
    assert ": 79 of 80 GPUs free, 39 of 40 servers wholly" in text


def test_usage_is_drawn_by_day(admin: Client) -> None:
    assert 'id="days-title"' not in page(admin, "/usage"), "nothing was held"


def test_usage_is_drawn_in_two_parts(admin: Client, world: World) -> None:
    today = int(NOW_S // 86_400)
    entries = [(today, 7200.0, 3600.0), (today - 1, 36_000.0, 36_000.0)]
    rows = [
        {"day": day, "user": "ann", "project": "nlp", "held_gpu_s": held, "useful_gpu_s": useful, "attempts": 1}
        | {"preemptions": 0, "jobs": 1}
        for day, held, useful in entries
    ]
    add_rows(world, USAGE, rows)
    text = page(admin, "/usage?from=2025-12-30")
    assert "from 2025-12-30 to 2026-01-01: 11.0 useful, 1.0 wasted, at most 10.0" in text
    assert "<title>2026-01-01: 1.0 useful, 1.0 wasted</title>" in text
    assert text.count("<title>2025-12-30") == 1


def scored(app: FastAPI, world: World, *factors: float, user: str = "ada") -> list[int]:
    """Ended jobs whose prediction was these factors too long."""
    jobs = submitted(app, world, *(plain_job(user=user, project="vision", name=f"train {HOSTILE}") for _ in factors))
    for number, (job, factor) in enumerate(zip(jobs, factors, strict=True), 1):
        take_in(world, job, said(), number)
        end(world, [job], finished_at_s=NOW_S + 60.0 * number)
        values = {"actual": 150.0 / factor, "scored_at_s": NOW_S, "log_error": log(factor), "p10": 75.0, "p50": 150.0}
        world.database.execute(update(PREDICTIONS).where(PREDICTIONS.c.job_id == job).values(**values, p90=300.0))
    return jobs


def test_predictions_show_calibration_drift_and_jobs(admin: Client, app: FastAPI, world: World) -> None:
    jobs = scored(app, world, *[1.0] * 5, *[4.0] * 5)
    text = page(admin, "/predictions")
    assert "40% expected, 50% observed; 50% expected, 100% observed" in text
    assert 'aria-label="Typical factor off, oldest jobs first: 1.00, 4.00"' in text
    listed = admin.get("/jobs?user=ada&state=succeeded").text
    assert 'href="./jobs?user=ada&amp;state=succeeded"' in text
    assert all(f'id="job-{job}"' in listed for job in jobs)


def test_the_typical_error_is_that_of_the_first_prediction(admin: Client, app: FastAPI, world: World) -> None:
    """A job that reports its total just before its end is predicted well then, and was not when it was ranked."""
    [job] = scored(app, world, 4.0)
    take_in(world, job, said("reported: 37 s"), 2)
    newest = PREDICTIONS.c.id == select(func.max(PREDICTIONS.c.id)).scalar_subquery()
    right = {"actual": 37.5, "scored_at_s": NOW_S, "log_error": 0.0, "p10": 37.5, "p50": 37.5, "p90": 37.5}
    world.database.execute(update(PREDICTIONS).where(newest).values(**right))
    text = page(admin, "/predictions")
    assert (
        '<div class="value">× 4.00</div><div class="note">median of the first predictions of the newest 1 job' in text
    )
    assert text.count('<td class="num">× 4.00</td>') == 2

    errors = {
        which: admin.get(f"/v1/jobs?prediction={which}").json()["items"][0]["prediction"]["log_error"]
        for which in ("newest", "first")
    }
    assert errors == {"newest": 0.0, "first": pytest.approx(log(4.0))}


def test_few_jobs_have_no_course_of_the_error(admin: Client, app: FastAPI, world: World) -> None:
    scored(app, world, 1.0, 2.0)
    text = page(admin, "/predictions")
    assert 'id="calibration-title"' in text
    assert 'id="drift-title"' not in text


SCORES = {"jobs": 40, "pinball_log": 0.2, "within_2x": 0.8, "coverage_80": 0.79}
METRICS = {
    "iterations": {
        "rows": 400,
        "verdict": {"passed": True, "best_baseline": "last", "reasons": []},
        "models": {
            "aggregation": SCORES,
            "forest": SCORES | {"pinball_log": 0.3},
            "last": SCORES | {"pinball_log": 0.25},
            "median": SCORES | {"pinball_log": 0.4},
        },
    },
    "replay": {"mean_jct_s": {"xgboost": 10.0}, "jobs": 9},
}


def test_a_model_of_an_earlier_version_is_compared_with_the_best_rule(admin: Client, world: World) -> None:
    rows: list[dict[str, Any]] = [
        model_row("m-old", NOW_S, "champion") | {"metrics": METRICS},
        model_row("m-odd", NOW_S + 1.0),
    ]
    add_rows(world, MODELS, rows)
    (found,) = compared(admin.get("/v1/models").json()["items"])
    assert (found["model"]["id"], found["baseline"], found["passed"]) == ("m-old", "last", True)
    assert found["scores"] == SCORES
    text = page(admin, "/predictions")
    assert "last: 0.250" in text
    assert 'id="compared-2"' not in text


def test_each_model_is_compared_with_what_would_be_served_without() -> None:
    head = METRICS["iterations"]
    models = head["models"] | {"aggregation_without_models": SCORES | {"pinball_log": 0.22}}
    verdict = {"passed": True, "reasons": []}
    (found,) = compared([{"metrics": {"iterations": head | {"verdict": verdict, "models": models}}}])
    assert (found["baseline"], found["baseline_scores"]["pinball_log"]) == ("without models", 0.22)


@pytest.mark.parametrize("report", [WHAT_IF, OUTLOOK])
def test_a_report_has_bars_and_links_its_policies(
    admin: Client, app: FastAPI, world: World, report: dict[str, Any]
) -> None:
    number = simulation(app, world, state="succeeded", ended_at_s=world.now_s, report=report)
    text = page(admin, f"/what-if/{number}")
    assert '<a href="../docs/reference/policies.html#fifo">' in text
    widths = [part.split('width="')[1].split('"')[0] for part in text.split('<svg class="length"')[1:]]
    assert widths == (["100.0", "100.0", "50.0"] if report is WHAT_IF else ["60.0", "90.0"])


def test_a_report_without_ended_jobs_has_no_bars(admin: Client, app: FastAPI, world: World) -> None:
    run = WHAT_IF["runs"][0] | {"mean_jct_s": None}  # type: ignore[index]
    report = WHAT_IF | {"actual": None, "runs": [run]}
    number = simulation(app, world, state="succeeded", ended_at_s=world.now_s, report=report)
    text = page(admin, f"/what-if/{number}")
    assert '<svg class="length"' not in text
    assert "<dt>Past</dt><dd>all that is recorded</dd>" in text


def test_each_policy_has_its_place_in_the_documentation() -> None:
    text = (DOCS / "reference" / "policies.md").read_text(encoding="utf-8")
    for name in policy_names():
        assert f"\n## {name}\n" in text


@pytest.mark.parametrize(
    ("state", "actual", "shown"),
    [
        ("succeeded", 150.0, "<dt>Actual total</dt><dd>2 min 30 s, inside the interval</dd>"),
        ("cancelled", 30.0, "<dt>Ran for</dt><dd>30 s</dd>"),
        ("failed", 30.0, "<dt>Ran for</dt><dd>30 s</dd>"),
        ("cancelled", None, ""),
        ("cancelled", 0.0, ""),
    ],
)
def test_only_a_job_that_succeeded_has_an_actual_total(
    client: Client, app: FastAPI, world: World, state: str, actual: float | None, shown: str
) -> None:
    job = submit(client)
    take_in(world, job, said())
    end(world, [job])
    world.database.execute(update(JOBS).where(JOBS.c.id == job).values(state=state))
    world.database.execute(update(PREDICTIONS).where(PREDICTIONS.c.job_id == job).values(actual=actual))
    with browser_of(app, world.token) as browser:
        page = browser.get(f"/jobs/{job}").text
    assert "".join(re.findall("<dt>(?:Actual total|Ran for)</dt><dd>.*?</dd>", page)) == shown
