"""Limits of requests: what is just within passes, one more is refused, and the refusal names the limit."""

from typing import Any

import pytest
from httpx import Client, Response

from tests.api.conftest import World
from tests.api.helpers import assert_problem, graph_job, plain_job


def layer(name: str) -> dict[str, Any]:
    return {"name": name, "forward_s": 0.1, "backward_s": 0.2, "parameter_bytes": 10, "activation_bytes": 10}


def chain(layers: int, edges: int) -> dict[str, Any]:
    """A chain, and as many edges more as are asked for, each over one layer."""
    names = [f"l{number}" for number in range(layers)]
    pairs = [[names[at], names[at + 1]] for at in range(layers - 1)]
    more = [[names[at], names[at + 2]] for at in range(layers - 2)]
    return {"layers": [layer(name) for name in names], "edges": [*pairs, *more][:edges]}


def send(client: Client, body: dict[str, Any]) -> Response:
    return client.post("/v1/jobs", json=body)


def graph(layers: int, edges: int) -> dict[str, Any]:
    return graph_job(graph=chain(layers, edges), parallelism={"stages": 1, "replicas": [1]})


@pytest.mark.parametrize(
    ("setting", "most", "within", "above", "pointer"),
    [
        ("layers_max", 5, graph(5, 4), graph(6, 5), "/graph/layers"),
        ("edges_max", 5, graph(5, 5), graph(5, 6), "/graph/edges"),
        ("jobs_per_request_max", 2, {"jobs": [plain_job()] * 2}, {"jobs": [plain_job()] * 3}, "/jobs"),
        ("jobs_per_request_max", 2, plain_job(array={"count": 2}), plain_job(array={"count": 3}), "/array"),
    ],
)
def test_what_a_setting_limits_is_named_with_its_place(
    client: Client, world: World, setting: str, most: int, within: Any, above: Any, pointer: str
) -> None:
    object.__setattr__(world.settings, setting, most)
    assert send(client, within).status_code == 201
    document = assert_problem(send(client, above), "invalid-body", [pointer])
    assert setting in document["errors"][0]["detail"]
    assert str(most) in document["errors"][0]["detail"]


def test_all_limits_of_a_graph_are_told_at_once(client: Client, world: World) -> None:
    object.__setattr__(world.settings, "layers_max", 3)
    object.__setattr__(world.settings, "edges_max", 3)
    assert_problem(send(client, graph(6, 9)), "invalid-body", ["/graph/layers", "/graph/edges"])


@pytest.mark.parametrize(
    ("within", "above", "pointer"),
    [
        (plain_job(command=["x"] * 4096), plain_job(command=["x"] * 4097), "/command"),
        (
            plain_job(labels={f"k{i}": "" for i in range(64)}),
            plain_job(labels={f"k{i}": "" for i in range(65)}),
            "/labels",
        ),
        (plain_job(max_retries=1000), plain_job(max_retries=1001), "/max_retries"),
    ],
)
def test_what_the_format_limits_is_pointed_to(client: Client, within: Any, above: Any, pointer: str) -> None:
    assert send(client, within).status_code == 201
    assert_problem(send(client, above), "invalid-body", [pointer])


def test_a_pipeline_has_at_most_256_stages(client: Client) -> None:
    """256 are too many GPUs for this cluster, but not too many for the format."""

    def spread(stages: int) -> Response:
        return send(client, graph_job(graph=chain(300, 299), parallelism={"stages": stages, "replicas": [1] * stages}))

    assert_problem(spread(256), "never-fits")
    document = assert_problem(spread(257), "invalid-body", ["/parallelism/stages", "/parallelism/replicas"])
    assert any("256" in fault["detail"] for fault in document["errors"])


def test_a_thousand_dependencies_are_the_most(client: Client) -> None:
    first = send(client, plain_job()).json()["id"]
    assert send(client, plain_job(after=[first] * 1000)).status_code == 201
    assert_problem(send(client, plain_job(after=[first] * 1001)), "invalid-body", ["/after"])


@pytest.mark.parametrize(
    ("setting", "key", "title"),
    [("jobs_queued_per_user_max", "user", "User 'ann'"), ("jobs_queued_per_project_max", "project", "Project 'ann'")],
)
def test_unfinished_jobs_of_each_user_and_project_are_limited_by_a_setting(
    client: Client, world: World, setting: str, key: str, title: str
) -> None:
    object.__setattr__(world.settings, setting, 2)
    assert send(client, {"jobs": [plain_job(**{key: "ann"})] * 2}).status_code == 201
    refused = send(client, plain_job(**{key: "ann"}))
    assert (
        assert_problem(refused, "queue-full")["detail"]
        == f"{title} may have at most 2 unfinished jobs (setting {setting})."
    )
    assert int(refused.headers["retry-after"]) > 0
    assert send(client, plain_job(**{key: "ben"})).status_code == 201
    assert send(client, {"jobs": [plain_job()] * 3}).status_code == 201, "who has no name is limited by the queue alone"
    assert_problem(send(client, plain_job(array={"count": 3}, **{key: "eve"})), "queue-full")


def test_a_quota_goes_before_the_setting(client: Client, world: World) -> None:
    object.__setattr__(world.settings, "jobs_queued_per_user_max", 1)
    assert client.put("/v1/quotas/user/ann", json={"jobs_queued_max": 2}).status_code == 200
    assert send(client, {"jobs": [plain_job(user="ann")] * 2}).status_code == 201
    assert "quota jobs_queued_max" in assert_problem(send(client, plain_job(user="ann")), "queue-full")["detail"]
    assert_problem(send(client, {"jobs": [plain_job(user="ben")] * 2}), "queue-full")


@pytest.mark.parametrize("depth", range(900, 1100, 7))
def test_however_deep_a_body_is_nested_it_is_the_clients_fault(client: Client, depth: int) -> None:
    body = b'{"env":' + b"[" * depth + b'"\\ud800"' + b"]" * depth + b"}"
    answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert_problem(answer, "malformed-json")
