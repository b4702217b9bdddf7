"""A real service looks ahead: forecasts and plans of real processes, and a live decision that comes out again from its file."""

from datetime import datetime
from typing import Any

import pytest

from policies.registry import make_policy
from service.history.cycle_file import read_cycle
from service.history.cycles import replay
from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService, write_history

pytestmark = pytest.mark.slow

FAMILIES = {("long", 4): (400, 0.02)}
"""Runs of about 8 s on the whole cluster."""


def _forecasts(service: LiveService, jobs: int) -> dict[int, Any]:
    """The forecasts by job, once they cover so many."""

    def look() -> dict[int, Any] | None:
        found = {each["job_id"]: each for each in service.get("/v1/forecasts")["forecasts"]}
        return found if len(found) == jobs else None

    return service.until(look, 30.0, f"forecasts of {jobs} jobs")


def _s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_live_queue_is_forecast_planned_and_replayed(make_service: MakeService) -> None:
    service = make_service()
    write_history(f"sqlite:///{service.data_dir / 'sooner.db'}", FAMILIES, runs=120)
    service.start()
    service.start_forecasts()
    first = service.train(400, 0.02, name="long", gpus=4)
    service.until_state(first, "running")
    second = service.train(400, 0.02, name="long", gpus=4)
    found = _forecasts(service, 2)
    assert found[first]["start_at"] is None
    assert found[second]["start_at"] == found[first]["finish_at"]
    assert "120 past runs" in found[second]["source"]
    assert service.get(f"/v1/jobs/{second}/forecast")["start_at"] is not None

    body = {"name": "long", "user": "ada", "gpus": 4, "command": ["true"]}
    planned = service.request("POST", "/v1/plans", body)
    assert planned.status_code == 200, planned.text
    (plan,) = planned.json()["plans"]
    assert _s(plan["start_at"]["p50"]) > _s(found[second]["start_at"]["p50"])
    assert (plan["fits_now"], [share["gpus"] for share in plan["placement"]]) == (False, [4])
    assert [job["id"] for job in service.get("/v1/jobs")["items"]] == [second, first]

    started_at = service.until_state(second, "running", timeout_s=60.0)["started_at"]
    told = found[second]["start_at"]
    # The program also has to start and to end, and the machine may be busy: seconds, of a run of eight.
    assert _s(told["p10"]) - 4.0 < _s(started_at) < _s(told["p90"]) + 15.0

    cycles = service.get("/v1/snapshots")["cycles"]
    assert len(cycles) >= 2
    for cycle in cycles:
        recorded = read_cycle(service.get(f"/v1/cycles/{cycle}/snapshot"))
        assert replay(recorded, make_policy(recorded.policy, recorded.options)).equal, cycle
