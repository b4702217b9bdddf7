"""A real service with a second policy beside the first: what it would have done, over HTTP and after a restart."""

from typing import Any

import pytest

from policies.registry import make_policy
from service.history.cycle_file import read_cycle
from service.history.cycles import replay
from tests.e2e.conftest import MakeService

pytestmark = pytest.mark.slow


def test_a_shadow_policy_beside_a_live_one(make_service: MakeService) -> None:
    service = make_service(
        EXECUTOR="fake",
        POLICY="fifo",
        ATTEMPT_DURATION_S_MIN="",  # FIFO has no such option
        SHADOW_POLICY="fifo_backfill",
        SHADOW_BUDGET_S="20",
    )
    service.start()
    first, head, small = (service.submit(name=f"job{gpus}", gpus=gpus, command=["true"]) for gpus in (2, 4, 1))
    service.until_state(first, "running")

    def disagreement() -> Any:
        report = service.get("/v1/shadow")
        return report if report["disagreements"] else None

    report = service.until(disagreement, 30.0, "the shadow wants something")
    assert (report["policy"], report["first_policy"], report["status"]) == ("fifo_backfill", "fifo", "watching")
    (told,) = report["disagreements"]
    assert (told["job_id"], told["shadow_wants"], told["first_reason"]) == (small, "start", "queue_head_blocked")
    assert told["shadow_sentence"].startswith("It would start now on ")
    assert (report["starts"]["both"], report["starts"]["first_only"], report["starts"]["shadow_only"]) == (1, 0, 1)
    opinions = {job: service.get(f"/v1/jobs/{job}/explanation")["shadow"] for job in (first, head, small)}
    assert [opinion["wants"] for opinion in opinions.values()] == [None, None, "start"]
    (cycle,) = [each["cycle"] for each in report["cycles"] if each["starts_shadow_only"] == [small]]
    assert cycle is None or service.get(f"/v1/cycles/{cycle}")["number"] == cycle

    present = read_cycle(service.get("/v1/snapshots/now"))
    assert [(job.id, job.waiting) for job in present.world.jobs] == [(first, False), (head, True), (small, True)]
    assert replay(present, make_policy("fifo")).equal
    assert [action.job for action in replay(present, make_policy("fifo_backfill")).replayed] == [small]

    assert service.stop() == 0
    service.start()
    again = service.until(disagreement, 30.0, "the shadow wants it still")
    assert [each["job_id"] for each in again["disagreements"]] == [small]
    # The account goes on: it is still the one wish of before.
    assert (again["since"], again["starts"]["shadow_only"]) == (report["since"], 1)
    assert again["starts"]["shadow_only_gpu_s"] > report["starts"]["shadow_only_gpu_s"]
