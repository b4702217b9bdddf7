"""Each rule of the job's format: what breaks it is refused with 422 and a JSON pointer to the fault."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import Client

from service.api.app import create_app
from tests.api.client import client_of
from tests.api.conftest import World, make_world
from tests.api.helpers import assert_problem, graph_job, plain_job

JSON = {"Content-Type": "application/json"}
HUGE = int("9" * 400)


def layer(name: str, **changes: Any) -> dict[str, Any]:
    base = {"name": name, "forward_s": 0.1, "backward_s": 0.2, "parameter_bytes": 10, "activation_bytes": 10}
    return {**base, **changes}


def graph(*layers: dict[str, Any], edges: list[list[str]]) -> dict[str, Any]:
    return {"layers": list(layers), "edges": edges}


def spread(stages: Any, replicas: list[int], **more: Any) -> dict[str, Any]:
    return {"stages": stages, "replicas": replicas, **more}


A, B, C = layer("a"), layer("b"), layer("c")
CHAIN = graph(A, B, edges=[["a", "b"]])
TWO = spread(2, [1, 1])

PLAIN_RULES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("name missing", {"name": None}, ["/name"]),
    ("name empty", {"name": ""}, ["/name"]),
    ("name too long", {"name": "x" * 201}, ["/name"]),
    ("name with a control character", {"name": "a\nb"}, ["/name"]),
    ("name a number", {"name": 7}, ["/name"]),
    ("user too long", {"user": "u" * 201}, ["/user"]),
    ("project a list", {"project": []}, ["/project"]),
    ("command missing", {"command": None}, ["/command"]),
    ("command empty", {"command": []}, ["/command"]),
    ("command a string", {"command": "python train.py"}, ["/command"]),
    ("command without a program", {"command": ["", "x"]}, ["/command/0"]),
    ("command with NUL", {"command": ["python", "a\0b"]}, ["/command/1"]),
    ("command with null", {"command": ["python", None]}, ["/command/1"]),
    ("argument too long", {"command": ["python", "x" * 32769]}, ["/command/1"]),
    ("too many arguments", {"command": ["x"] * 4097}, ["/command"]),
    ("env value null", {"env": {"LR": None}}, ["/env/LR"]),
    ("env value with NUL", {"env": {"LR": "\0"}}, ["/env/LR"]),
    ("env name with =", {"env": {"A=B": "x"}}, ["/env/A=B"]),
    ("env name empty", {"env": {"": "x"}}, ["/env/"]),
    ("env name starts with a digit", {"env": {"1A": "x"}}, ["/env/1A"]),
    ("env name with slash and tilde", {"env": {"a/b~c": "x"}}, ["/env/a~1b~0c"]),
    ("env reserved prefix", {"env": {"SOONER_JOB_ID": "1"}}, ["/env/SOONER_JOB_ID"]),
    ("env of the launcher", {"env": {"WORLD_SIZE": "1", "RANK": "0"}}, ["/env/WORLD_SIZE", "/env/RANK"]),
    ("env too large", {"env": {f"V{i}": "" for i in range(1025)}}, ["/env"]),
    ("working_dir relative", {"working_dir": "src"}, ["/working_dir"]),
    ("working_dir with NUL", {"working_dir": "/a\0b"}, ["/working_dir"]),
    ("gpus missing without a graph", {"gpus": None}, ["/gpus"]),
    ("gpus zero", {"gpus": 0}, ["/gpus"]),
    ("gpus negative", {"gpus": -1}, ["/gpus"]),
    ("gpus a string", {"gpus": "4"}, ["/gpus"]),
    ("gpus a fraction", {"gpus": 1.5}, ["/gpus"]),
    ("gpus a boolean", {"gpus": True}, ["/gpus"]),
    ("gpus huge", {"gpus": HUGE}, ["/gpus"]),
    ("gpus_min above gpus", {"gpus": 2, "gpus_min": 3}, ["/gpus_min"]),
    ("gpus_max below gpus", {"gpus": 2, "gpus_max": 1}, ["/gpus_max"]),
    ("gpus_min zero", {"gpus_min": 0}, ["/gpus_min"]),
    ("gpu_type empty", {"gpu_type": ""}, ["/gpu_type"]),
    ("parallelism without a graph", {"parallelism": TWO}, ["/parallelism"]),
    ("tensor_across_servers without a graph", {"tensor_across_servers": True}, ["/tensor_across_servers"]),
    ("tensor_across_servers a word", {"tensor_across_servers": "yes"}, ["/tensor_across_servers"]),
    ("declared_iterations zero", {"declared_iterations": 0}, ["/declared_iterations"]),
    ("declared_iterations absurd", {"declared_iterations": 10**12 + 1}, ["/declared_iterations"]),
    ("declared_iterations a fraction", {"declared_iterations": 10.5}, ["/declared_iterations"]),
    ("walltime_s zero", {"walltime_s": 0}, ["/walltime_s"]),
    ("walltime_s negative", {"walltime_s": -5}, ["/walltime_s"]),
    ("walltime_s a string", {"walltime_s": "60"}, ["/walltime_s"]),
    ("walltime_s of a century", {"walltime_s": 3.2e9}, ["/walltime_s"]),
    ("checkpoint_period_s zero", {"checkpoint_period_s": 0}, ["/checkpoint_period_s"]),
    ("checkpoint_period_s negative", {"checkpoint_period_s": -1}, ["/checkpoint_period_s"]),
    ("priority a fraction", {"priority": 0.5}, ["/priority"]),
    ("priority too large", {"priority": 1_000_001}, ["/priority"]),
    ("max_retries negative", {"max_retries": -1}, ["/max_retries"]),
    ("max_retries too large", {"max_retries": 1001}, ["/max_retries"]),
    ("after a number", {"after": 3}, ["/after"]),
    ("after of names", {"after": ["3"]}, ["/after/0"]),
    ("after zero", {"after": [0]}, ["/after/0"]),
    ("after too long", {"after": [1] * 1001}, ["/after"]),
    ("after of an unknown end", {"after": [1, {"job": 1, "when": "failure"}]}, ["/after/1/when"]),
    ("after without a job", {"after": [{"when": "any"}]}, ["/after/0/job"]),
    ("after of job zero", {"after": [{"job": 0}]}, ["/after/0/job"]),
    ("hold a number", {"hold": 1}, ["/hold"]),
    ("labels too many", {"labels": {f"k{i}": "" for i in range(65)}}, ["/labels"]),
    ("label key odd", {"labels": {"-x": ""}}, ["/labels/-x"]),
    ("label value a number", {"labels": {"x": 1}}, ["/labels/x"]),
    ("recurrence_key empty", {"recurrence_key": ""}, ["/recurrence_key"]),
    ("signal unknown", {"preemption": {"signal": "SIGKILL"}}, ["/preemption/signal"]),
    ("grace_s negative", {"preemption": {"grace_s": -1}}, ["/preemption/grace_s"]),
    ("grace_s too long", {"preemption": {"grace_s": 3601}}, ["/preemption/grace_s"]),
    ("preemption with another key", {"preemption": {"sig": "SIGUSR1"}}, ["/preemption/sig"]),
    ("array empty", {"array": {}}, ["/array"]),
    ("array of both", {"array": {"count": 1, "indices": [0]}}, ["/array"]),
    ("array without elements", {"array": {"count": 0}}, ["/array/count"]),
    ("array without indices", {"array": {"indices": []}}, ["/array/indices"]),
    ("array index negative", {"array": {"indices": [0, -1]}}, ["/array/indices/1"]),
    ("array index twice", {"array": {"indices": [4, 4]}}, ["/array"]),
    ("array of none at a time", {"array": {"count": 3, "max_running": 0}}, ["/array/max_running"]),
    ("array a number", {"array": 3}, ["/array"]),
    ("array too large", {"array": {"count": 1001}}, ["/array"]),
    ("launch unknown", {"launch": "node"}, ["/launch"]),
    ("an unknown key", {"gpu": 1}, ["/gpu"]),
    ("two unknown keys", {"gpu": 1, "nodes": 2}, ["/gpu", "/nodes"]),
]

GRAPH_RULES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("graph a string", {"graph": "resnet50"}, ["/graph"]),
    ("graph a list", {"graph": []}, ["/graph"]),
    ("no layers", {"graph": graph(edges=[])}, ["/graph/layers"]),
    ("layers missing", {"graph": {"edges": []}}, ["/graph/layers"]),
    (
        "a layer's key missing",
        {"graph": graph({"name": "a"}, B, edges=[["a", "b"]])},
        [
            "/graph/layers/0/forward_s",
            "/graph/layers/0/backward_s",
            "/graph/layers/0/parameter_bytes",
            "/graph/layers/0/activation_bytes",
        ],
    ),
    ("a layer's key unknown", {"graph": graph(layer("a", flops=1), B, edges=[["a", "b"]])}, ["/graph/layers/0/flops"]),
    ("a layer named twice", {"graph": graph(A, A, B, edges=[["a", "b"]])}, ["/graph/layers/1/name"]),
    (
        "forward_s negative",
        {"graph": graph(layer("a", forward_s=-1), B, edges=[["a", "b"]])},
        ["/graph/layers/0/forward_s"],
    ),
    (
        "parameter_bytes negative",
        {"graph": graph(A, layer("b", parameter_bytes=-1), edges=[["a", "b"]])},
        ["/graph/layers/1/parameter_bytes"],
    ),
    (
        "activation_bytes a fraction",
        {"graph": graph(A, layer("b", activation_bytes=1.5), edges=[["a", "b"]])},
        ["/graph/layers/1/activation_bytes"],
    ),
    (
        "tensor_bytes too large",
        {"graph": graph(A, layer("b", tensor_bytes=2**53 + 1), edges=[["a", "b"]])},
        ["/graph/layers/1/tensor_bytes"],
    ),
    (
        "no layer takes time",
        {"graph": graph(*(layer(n, forward_s=0, backward_s=0) for n in "ab"), edges=[["a", "b"]])},
        ["/graph/layers"],
    ),
    ("an edge to an unknown layer", {"graph": graph(A, B, edges=[["a", "b"], ["b", "x"]])}, ["/graph/edges/1/1"]),
    (
        "edges of unknown layers",
        {"graph": graph(A, B, edges=[["x", "b"], ["a", "b"], ["a", "y"]])},
        ["/graph/edges/0/0", "/graph/edges/2/1"],
    ),
    ("an edge of three", {"graph": graph(A, B, edges=[["a", "b", "a"]])}, ["/graph/edges/0"]),
    ("an edge twice", {"graph": graph(A, B, edges=[["a", "b"], ["a", "b"]])}, ["/graph/edges/1"]),
    (
        "model unknown",
        {"graph": {"model": "alexnet", "batch_size": 1}, "parallelism": None, "gpus": 1},
        ["/graph/model"],
    ),
    ("batch_size missing", {"graph": {"model": "resnet50"}, "parallelism": None, "gpus": 1}, ["/graph/batch_size"]),
    (
        "batch_size zero",
        {"graph": {"model": "resnet50", "batch_size": 0}, "parallelism": None, "gpus": 1},
        ["/graph/batch_size"],
    ),
    ("batch_size without a model", {"graph": {"batch_size": 8}, "parallelism": None, "gpus": 1}, ["/graph/model"]),
    ("model and layers", {"graph": {"model": "resnet50", "batch_size": 8, "layers": []}, "gpus": 1}, ["/graph/layers"]),
    ("gpus and parallelism missing", {"parallelism": None}, ["/gpus"]),
    (
        "gpus and parallelism missing, of the catalogue",
        {"graph": {"model": "resnet50", "batch_size": 8}, "parallelism": None},
        ["/gpus"],
    ),
    (
        "virtual stages without their schedule",
        {"parallelism": {**TWO, "schedule": "gpipe", "virtual_stages": 2}},
        ["/parallelism/virtual_stages"],
    ),
    (
        "interleaved without virtual stages",
        {"parallelism": {**TWO, "schedule": "interleaved"}},
        ["/parallelism/virtual_stages"],
    ),
    ("gpus against parallelism", {"gpus": 3}, ["/gpus"]),
    ("stages missing", {"parallelism": {"replicas": [1, 1]}}, ["/parallelism/stages"]),
    ("stages zero", {"parallelism": spread(0, [1])}, ["/parallelism/stages"]),
    ("stages too many", {"parallelism": spread(257, [1])}, ["/parallelism/stages"]),
    ("replicas of too many stages", {"parallelism": spread(2, [1] * 257)}, ["/parallelism/replicas"]),
    ("lists of too many stages", {"parallelism": spread([["a"]] * 257, [1])}, ["/parallelism/stages"]),
    ("stages a string", {"parallelism": spread("2", [1, 1])}, ["/parallelism/stages"]),
    ("replicas missing", {"parallelism": {"stages": 2}}, ["/parallelism/replicas"]),
    ("replicas too few", {"parallelism": spread(2, [1])}, ["/parallelism/replicas"]),
    ("replicas too many", {"parallelism": spread(2, [1, 1, 1])}, ["/parallelism/replicas"]),
    ("a replica zero", {"parallelism": spread(2, [1, 0])}, ["/parallelism/replicas/1"]),
    ("replicas a number", {"parallelism": {"stages": 2, "replicas": 4}}, ["/parallelism/replicas"]),
    ("tensor of another length", {"parallelism": spread(2, [1, 1], tensor=[1])}, ["/parallelism/tensor"]),
    (
        "replicas and tensor wrong",
        {"parallelism": spread(2, [1], tensor=[1, 1, 1])},
        ["/parallelism/replicas", "/parallelism/tensor"],
    ),
    ("a tensor degree negative", {"parallelism": spread(2, [1, 1], tensor=[1, -2])}, ["/parallelism/tensor/1"]),
    ("schedule unknown", {"parallelism": spread(2, [1, 1], schedule="2f2b")}, ["/parallelism/schedule"]),
    ("micro_batches zero", {"parallelism": spread(2, [1, 1], micro_batches=0)}, ["/parallelism/micro_batches"]),
    ("parallelism with another key", {"parallelism": spread(2, [1, 1], data=2)}, ["/parallelism/data"]),
    ("gpus_min above the gang", {"gpus_min": 3}, ["/gpus_min"]),
    (
        "graph and parallelism broken",
        {"graph": graph(A, B, edges=[["a", "x"]]), "parallelism": spread(2, [1])},
        ["/graph/edges/0/1", "/parallelism/replicas"],
    ),
]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One service for all that is refused: nothing is left behind, which is checked at the end."""
    world = make_world(tmp_path_factory.mktemp("rules"))
    with client_of(create_app(world.dependencies()), world.token) as client:
        yield client
    assert not world.store.pending_requests(1)
    assert world.nudges == 0
    world.database.close()


def without_none(body: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """None in a rule means "leave the key out" where null is another thing."""
    return {key: value for key, value in body.items() if not (value is None and key in changes)}


@pytest.mark.parametrize(("changes", "pointers"), [r[1:] for r in PLAIN_RULES], ids=[r[0] for r in PLAIN_RULES])
def test_rule_without_a_graph(refusing: Client, changes: dict[str, Any], pointers: list[str]) -> None:
    answer = refusing.post("/v1/jobs", json=without_none(plain_job(**changes), changes))
    assert_problem(answer, "invalid-body", pointers)


@pytest.mark.parametrize(("changes", "pointers"), [r[1:] for r in GRAPH_RULES], ids=[r[0] for r in GRAPH_RULES])
def test_rule_of_graphs(refusing: Client, changes: dict[str, Any], pointers: list[str]) -> None:
    body = graph_job(graph=CHAIN, parallelism=TWO) | changes
    answer = refusing.post("/v1/jobs", json=without_none(body, changes))
    assert_problem(answer, "invalid-body", pointers)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"graph": graph(A, B, C, edges=[["a", "b"], ["b", "c"], ["c", "a"]])}, "/graph/edges/2"),
        ({"graph": graph(A, B, edges=[["a", "b"], ["b", "b"]])}, "/graph/edges/1"),
        ({"parallelism": spread(3, [1, 1, 1])}, "/parallelism/stages"),
        ({"parallelism": spread([["a"], ["x"]], [1, 1])}, "/parallelism/stages/1/0"),
        ({"parallelism": spread([["a"], ["a", "b"]], [1, 1])}, "/parallelism/stages/1/0"),
        ({"parallelism": spread([["a"]], [1])}, "/parallelism/stages"),
        (
            {
                "graph": graph(A, B, C, edges=[["a", "b"], ["b", "c"]]),
                "parallelism": spread([["a", "c"], ["b"]], [1, 1]),
            },
            "/parallelism/stages/0",
        ),
        ({"parallelism": spread([["b"], ["a"]], [1, 1])}, "/parallelism/stages/0"),
    ],
    ids=[
        "cycle",
        "self edge",
        "more stages than layers",
        "unknown layer",
        "doubled layer",
        "layer left out",
        "stage in pieces",
        "stages backwards",
    ],
)
def test_rule_of_whole_graphs(refusing: Client, changes: dict[str, Any], pointer: str) -> None:
    body = graph_job(graph=CHAIN, parallelism=TWO) | changes
    assert_problem(refusing.post("/v1/jobs", json=body), "invalid-body", [pointer])


def test_a_stage_that_is_not_connected_is_named(refusing: Client) -> None:
    apart = graph(A, B, C, edges=[["a", "b"]])
    answer = refusing.post(
        "/v1/jobs", json=graph_job(graph=apart, parallelism=spread([["a"], ["b"], ["c"]], [1, 1, 1]))
    )
    assert_problem(answer, "invalid-body", ["/parallelism/stages/2"])


def test_a_relative_folder_is_refused_in_words(refusing: Client) -> None:
    (fault,) = refusing.post("/v1/jobs", json=plain_job(working_dir="src")).json()["errors"]
    assert fault == {"pointer": "/working_dir", "detail": "must be an absolute path, without NUL characters"}


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("key", ["walltime_s", "gpus", "priority", "checkpoint_period_s"])
def test_numbers_are_finite(refusing: Client, token: str, key: str) -> None:
    text = json.dumps(plain_job(**{key: "@"})).replace('"@"', token)
    assert_problem(refusing.post("/v1/jobs", content=text, headers=JSON), "invalid-body", [f"/{key}"])


@pytest.mark.parametrize("digits", [40, 41, 4301, 10_000])
def test_an_integer_of_many_digits_is_one_fault(refusing: Client, digits: int) -> None:
    text = json.dumps(plain_job(gpus="@")).replace('"@"', "7" * digits)
    assert_problem(refusing.post("/v1/jobs", content=text, headers=JSON), "invalid-body", ["/gpus"])


@pytest.mark.parametrize("token", ["NaN", "Infinity", "1e400"])
def test_layer_times_are_finite(refusing: Client, token: str) -> None:
    text = json.dumps(graph_job(graph=graph(A, layer("b", forward_s="@"), edges=[["a", "b"]]))).replace('"@"', token)
    assert_problem(refusing.post("/v1/jobs", content=text, headers=JSON), "invalid-body", ["/graph/layers/1/forward_s"])


def test_all_faults_of_one_body_are_named_at_once(client: Client) -> None:
    body = plain_job(name="", gpus=0, walltime_s=-1, env={"A": None}, nodes=3)
    answer = client.post("/v1/jobs", json=body)
    assert_problem(answer, "invalid-body", ["/name", "/gpus", "/walltime_s", "/env/A", "/nodes"])


def test_the_list_of_faults_is_bounded(client: Client) -> None:
    document = assert_problem(client.post("/v1/jobs", json=plain_job(command=[None] * 300)), "invalid-body")
    assert len(document["errors"]) == 100
    assert "100 of 300" in document["detail"]


def test_the_catalogue_is_named_for_an_unknown_model(client: Client) -> None:
    body = plain_job(graph={"model": "alexnet", "batch_size": 8})
    document = assert_problem(client.post("/v1/jobs", json=body), "invalid-body", ["/graph/model"])
    assert "resnet50" in document["errors"][0]["detail"]


@pytest.mark.parametrize(("jobs", "pointer"), [([], "/jobs"), ("x", "/jobs"), ([1], "/jobs/0"), ([None], "/jobs/0")])
def test_many_jobs_are_a_list_of_jobs(refusing: Client, jobs: Any, pointer: str) -> None:
    assert_problem(refusing.post("/v1/jobs", json={"jobs": jobs}), "invalid-body", [pointer])


def test_many_jobs_have_no_other_key(client: Client) -> None:
    assert_problem(client.post("/v1/jobs", json={"jobs": [plain_job()], "name": "x"}), "invalid-body", ["/name"])


@pytest.mark.parametrize(
    ("setting", "value", "body", "pointer"),
    [
        ("layers_max", 1, graph_job(), "/graph/layers"),
        ("jobs_per_request_max", 1, {"jobs": [plain_job(), plain_job()]}, "/jobs"),
    ],
)
def test_an_operators_limit_is_named(
    client: Client, world: World, setting: str, value: int, body: dict[str, Any], pointer: str
) -> None:
    assert client.post("/v1/jobs", json=body).status_code == 201  # at the default limit it passes
    object.__setattr__(world.settings, setting, value)
    document = assert_problem(client.post("/v1/jobs", json=body), "invalid-body", [pointer])
    assert setting in document["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("text", "slug", "pointers"),
    [
        (b"", "invalid-body", [""]),
        (b"null", "invalid-body", [""]),
        (b"[]", "invalid-body", [""]),
        (b'"job"', "invalid-body", [""]),
        (b"{", "malformed-json", None),
        (b"{} {}", "malformed-json", None),
        (b"{'name': 1}", "malformed-json", None),
        (b'{"name": "\xff"}', "malformed-json", None),
        ('{"name": "x"}'.encode("utf-16"), "malformed-json", None),
        (b'\xef\xbb\xbf{"name": "x"}', "malformed-json", None),
        (b'{"name": "\\ud800"}', "malformed-json", None),
        (b'{"\\uDFFF": 1}', "malformed-json", None),
        (b"[" * 100_000, "malformed-json", None),
        (b'{"a":' * 100_000, "malformed-json", None),
        (b'{"name": "a", "name": "b"}', "invalid-body", ["/name"]),
        (b'{"env": {"A": "1", "B": "2", "A": "3"}}', "invalid-body", ["/env/A"]),
        (b'{"jobs": [{}, {"env": {"a/b": 1, "a/b": 1}}]}', "invalid-body", ["/jobs/1/env/a~1b"]),
    ],
    ids=range(17),
)
def test_what_is_not_strict_json_is_refused(
    refusing: Client, text: bytes, slug: str, pointers: list[str] | None
) -> None:
    assert_problem(refusing.post("/v1/jobs", content=text, headers=JSON), slug, pointers)


def test_a_surrogate_pair_and_other_alphabets_are_fine(client: Client) -> None:
    text = json.dumps(plain_job(name="обучение \U0001f680"), ensure_ascii=True)
    answer = client.post("/v1/jobs", content=text, headers=JSON)
    assert (answer.status_code, answer.json()["name"]) == (201, "обучение \U0001f680")
