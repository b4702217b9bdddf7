"""Most submissions are answered in the event loop: with the same answers, word for word, as those that take the longer way."""

from typing import Any

import pytest
from httpx import Client

from service.api.deps import ApiDependencies
from service.api.routers import jobs
from service.api.submission import is_quickly_parsed
from service.wire.bodies import JobBody
from tests.api.helpers import graph_job, plain_job

_LONGER = "?wait_prediction=false"
"""A request with a query takes the longer way."""

_LAYER = {"name": "a", "forward_s": 1.0, "backward_s": 2.0, "parameter_bytes": 1, "activation_bytes": 1}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the jobs that are parsed in the event loop."""
    found: list[str] = []

    def noted(body: JobBody, dependencies: ApiDependencies) -> bool:
        is_quick = is_quickly_parsed(body, dependencies)
        found.extend([body.name] if is_quick else [])
        return is_quick

    monkeypatch.setattr(jobs, "is_quickly_parsed", noted)
    return found


def _without(document: Any) -> Any:
    """The answer without what differs from job to job."""
    if isinstance(document, dict):
        return {
            key: _without(value)
            for key, value in document.items()
            if key not in ("id", "array_id", "links", "submitted_at")
        }
    return [_without(each) for each in document] if isinstance(document, list) else document


@pytest.mark.parametrize(
    "body",
    [
        plain_job(),
        plain_job(user="ada", project="p", env={"A": 1.5}, labels={"team": "x"}, topology={"level": "server"}),
        plain_job(volumes=[{"source": "/data", "target": "/data"}], image="x", preemption={"cost_factor": 2.0}),
        plain_job(after=[1]),
        graph_job(),
        plain_job(gpus=10_000),
        plain_job(gpus=0),
        plain_job(unknown=1, gpus="x"),
        plain_job(
            gpus=None, parallelism={"stages": 1, "replicas": [1]}, graph={"layers": [_LAYER, _LAYER], "edges": []}
        ),
        plain_job(gpus=None, graph={"layers": [_LAYER | {"forward_s": -1}, {}], "edges": [["a", "b"]]}),
        plain_job(command=[]),
        plain_job(array={"indices": [0, 1]}),
        plain_job(gpus=None, graph={"model": "resnet50", "batch_size": 64}),
        {"jobs": [plain_job()]},
        {"jobs": 1},
        [],
        None,
    ],
)
def test_an_answer_is_that_of_the_longer_way(client: Client, body: Any) -> None:
    quick, longer = (client.post(f"/v1/jobs{query}", json=body) for query in ("", _LONGER))
    assert quick.status_code == longer.status_code
    assert _without(quick.json()) == _without(longer.json())
    assert quick.headers.keys() == longer.headers.keys()


def test_only_one_small_job_without_a_plan_is_parsed_in_the_event_loop(client: Client, quickly: list[str]) -> None:
    for name, path, extra in (
        ("quick", "", {}),
        ("query", _LONGER, {}),
        ("array", "", {"array": {"indices": [0]}}),
        ("rack", "", {"topology": {"level": "server"}}),
        ("shares", "", {"servers": 1}),
        ("large", "", {"labels": {f"k{number}": "x" * 200 for number in range(64)}, "command": ["x" * 16_000]}),
    ):
        assert client.post(f"/v1/jobs{path}", json=plain_job(name=name, **extra)).status_code == 201
    for extra in (
        {"gpus": 2, "graph": {"model": "resnet50", "batch_size": 64}},
        {"gpus": None, "plan": {"model": "gpt2-medium", "data": 2, "micro_batch": 1, "global_batch": 2}},
    ):
        answer = client.post("/v1/jobs", json=plain_job(name="computed", **extra))
        assert answer.status_code == 201, answer.text
    assert quickly == ["quick"]


def test_a_key_is_kept_whichever_way_its_requests_take(client: Client) -> None:
    headers = {"Idempotency-Key": "one"}
    first = client.post("/v1/jobs", json=plain_job(), headers=headers)
    again = client.post("/v1/jobs", json=plain_job(), headers=headers)
    assert (first.status_code, again.json()) == (201, first.json())
    assert again.headers["Idempotent-Replayed"] == "true"
    reused = client.post("/v1/jobs", json=plain_job(name="other"), headers=headers)
    assert reused.status_code == 422
    for wrong in ("", "with space", "x" * 256):
        assert client.post("/v1/jobs", json=plain_job(), headers={"Idempotency-Key": wrong}).status_code == 422
