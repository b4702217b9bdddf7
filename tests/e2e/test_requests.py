"""A job array, jobs that wait for its end, webhooks and usage: through the whole service, also when it is killed."""

import json
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from service.domain.webhooks import signature
from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService
from tests.unit.service.runtime.test_webhook_post import Receiver, receiver

pytestmark = pytest.mark.slow

SECRET = "0123456789abcdef"
ENDS = {"succeeded": "job.succeeded", "failed": "job.failed", "cancelled": "job.cancelled"}


def told(there: Receiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, _, body in there.got]


def ends_of(service: LiveService, jobs: list[int]) -> set[tuple[int, str]]:
    return {(job, ENDS[service.job(job)["state"]]) for job in jobs}


def seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def test_an_array_runs_element_by_element_and_what_waits_for_any_end_starts_after_the_last(
    make_service: MakeService,
) -> None:
    service = make_service()
    service.start()
    command = ["sh", "-c", 'echo "$SOONER_ARRAY_ID $SOONER_ARRAY_INDEX $SOONER_ARRAY_COUNT"; exit $SOONER_ARRAY_INDEX']
    body = {"name": "sweep", "user": "ann", "command": command, "gpus": 1, "max_retries": 0}
    array = {"indices": [0, 3, 5], "max_running": 1}
    elements = service.request("POST", "/v1/jobs", body | {"array": array}).json()["jobs"]
    ids = [element["id"] for element in elements]
    last = service.submit(name="last", command=["true"], gpus=1, after=[{"job": job, "when": "any"} for job in ids])
    never = service.submit(name="never", command=["true"], gpus=1, after=ids)
    finished = service.until_state(last, "succeeded")
    assert service.until_state(never, "cancelled")["reason"] == "dependency_failed"
    assert [service.job(job)["exit_code"] for job in ids] == [0, 3, 5]
    logs = [service.request("GET", f"/v1/jobs/{job}/logs").text.strip() for job in ids]
    assert logs == [f"{ids[0]} {index} 3" for index in (0, 3, 5)]
    assert service.get(f"/v1/arrays/{ids[0]}")["states"] == {"succeeded": 1, "failed": 2}
    held = sorted((attempt["opened_at"], attempt["ended_at"]) for job in ids for attempt in service.attempts(job))
    assert all(ended <= opened for (_, ended), (opened, _) in pairwise(held)), "two ran at once"
    assert finished["started_at"] >= held[-1][1]


def test_every_end_is_told_though_the_service_is_killed_and_the_receiver_fails(make_service: MakeService) -> None:
    service = make_service(WEBHOOK_PRIVATE_ADDRESSES="1", WEBHOOK_PERIOD_S="0.2")
    service.start()
    with receiver() as there:
        answers = iter([500])
        there.answer = lambda: (next(answers, 204), {})
        hook = service.request("POST", "/v1/webhooks", {"url": there.url, "secret": SECRET}).json()["id"]
        jobs = [
            service.submit(name="j", command=["sh", "-c", f"exit {code}"], gpus=1, max_retries=0) for code in (0, 1)
        ]
        for job in jobs:
            service.until_state(job, "succeeded", "failed")
        service.kill()
        service.start()
        jobs += [service.submit(name="k", command=["true"], gpus=1)]
        service.until_state(jobs[-1], "succeeded")
        expected = ends_of(service, jobs)

        def all_told() -> bool:
            return {(document["job"]["id"], document["event"]) for document in told(there)} == expected

        # The first delivery failed, and is made again after ten seconds.
        service.until(all_told, 60.0, "every end is told")
        for _, headers, body in there.got:
            stamp = int(headers["sooner-signature"].partition(",")[0].removeprefix("t="))
            assert headers["sooner-signature"] == signature(SECRET, stamp, body)

        def all_settled() -> bool:
            rows = service.get(f"/v1/webhooks/{hook}/deliveries")["items"]
            return [row["state"] for row in rows] == ["delivered"] * len(jobs)

        service.until(all_settled, 60.0, "every delivery is written down")
        assert service.stop() == 0


def test_usage_is_what_the_attempts_say(make_service: MakeService) -> None:
    service = make_service()
    service.start()
    jobs = [service.train(10, 0.05, name="t", gpus=gpus) for gpus in (1, 2)]
    for job in jobs:
        service.until_state(job, "succeeded")
    service.kill()
    service.start()
    expected_h = sum(
        gpus * seconds(attempt["opened_at"], attempt["ended_at"]) / 3600.0
        for job, gpus in zip(jobs, (1, 2), strict=True)
        for attempt in service.attempts(job)
    )
    rows = service.get("/v1/usage?group=user")["rows"]
    assert [(row["user"], row["jobs"], row["attempts"]) for row in rows] == [("ada", 2, 2)]
    # Four instants, of three GPUs, are told to the microsecond.
    assert rows[0]["held_gpu_h"] == pytest.approx(expected_h, abs=4e-6 / 3600.0)
    assert 0.0 < rows[0]["useful_gpu_h"] <= rows[0]["held_gpu_h"]
