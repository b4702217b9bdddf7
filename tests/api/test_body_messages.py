"""What a wrong body is answered, and what a body may write in more than one way."""

import math
from typing import Any

import pytest
from httpx import Client

from policies.model.ids import JobId
from policies.model.job import JobSpec
from tests.api.conftest import World
from tests.api.helpers import assert_problem, graph_job, plain_job


@pytest.mark.parametrize(
    ("changes", "pointer", "detail"),
    [
        ({"gpus": 0}, "/gpus", "must be at least 1 (got 0)"),
        ({"gpus": 1.5}, "/gpus", "must be a whole number (got 1.5)"),
        ({"gpus": 2.0}, "/gpus", "must be a whole number (got 2.0)"),
        ({"gpus": "two"}, "/gpus", "must be a whole number (got a text)"),
        ({"gpus": None, "name": None}, "/name", "must be a text (got null)"),
        ({"max_retries": 1001}, "/max_retries", "must be at most 1000 (got 1001)"),
        ({"walltime_s": 0}, "/walltime_s", "must be at least 0.1 (got 0)"),
        ({"walltime_s": 1e-9}, "/walltime_s", "must be at least 0.1 (got 1e-09)"),
        ({"checkpoint_period_s": 0.0999}, "/checkpoint_period_s", "must be at least 0.1 (got 0.0999)"),
        ({"walltime_s": "soon"}, "/walltime_s", "must be seconds, or a duration such as 2h, 30min or 02:30:00"),
        ({"hold": 1}, "/hold", "must be true or false (got 1)"),
        ({"launch": "node"}, "/launch", "must be one of 'server' or 'gpu'"),
        ({"command": "run"}, "/command", "must be a list (got a text)"),
        ({"command": []}, "/command", "must not be empty"),
        ({"env": {"A": True}}, "/env/A", "must be a text (got true)"),
        ({"preemption": 3}, "/preemption", "must be an object (got 3)"),
        ({"gpu": 2}, "/gpu", "is unknown; did you mean 'gpus'?"),
        ({"colour": "red"}, "/colour", "is unknown"),
        ({"preemption": {"grace": 3}}, "/preemption/grace", "is unknown; did you mean 'grace_s'?"),
        ({"after": ["3"]}, "/after/0", "must be a whole number (got a text)"),
        ({"after": [{"job": "x"}]}, "/after/0/job", "must be a whole number (got a text)"),
        ({"after": [{"jobs": 3}]}, "/after/0/jobs", "is unknown; did you mean 'job'?"),
        ({"graph": {"modell": "resnet50", "batch_size": 1}}, "/graph/modell", "is unknown; did you mean 'model'?"),
        ({"env": {"1A": "x"}}, "/env/1A", "must have letters, digits and '_' alone, and must not begin with a digit"),
        (
            {"labels": {"a b": "x"}},
            "/labels/a b",
            "must have letters, digits, '.', '_', '-' and '/' alone, and a letter or digit at both ends",
        ),
        (
            {"image": "-v"},
            "/image",
            "must begin with a letter, a digit or '/', and must not have spaces or control characters",
        ),
        ({"array": {"counts": 3}}, "/array/counts", "is unknown; did you mean 'count'?"),
    ],
)
def test_a_fault_is_named_in_plain_words(client: Client, changes: dict[str, Any], pointer: str, detail: str) -> None:
    for prefix, body in (("", plain_job(**changes)), ("/jobs/0", {"jobs": [plain_job(**changes)]})):
        problem = assert_problem(client.post("/v1/jobs", json=body), "invalid-body")
        found = {fault["pointer"]: fault["detail"] for fault in problem["errors"]}
        assert found[prefix + pointer] == detail
        if len(found) == 1:
            assert problem["detail"] == f"{(prefix + pointer)[1:].replace('/', '.')}: {detail}"


@pytest.mark.parametrize(
    "name", [" ", "\u3000 ", "a\nb", "a\x9b2J", "\u202egnp.exe", "a\u2066b", "a\u200fb", "a\u2028b", "a\x7f"], ids=ascii
)
def test_a_job_name_that_is_shown_as_another_one_is_refused(client: Client, name: str) -> None:
    problem = assert_problem(client.post("/v1/jobs", json=plain_job(name=name)), "invalid-body")
    detail = "must have a character that is seen, and no control characters, line breaks or marks of text direction"
    assert problem["errors"] == [{"pointer": "/name", "detail": detail}]


@pytest.mark.parametrize(
    "name", ["a b", " a", "\u0441\u0435\u0442\u044c", "\u0645\u062b\u0627\u0644", "\U0001f600", "{}%\"'<>"]
)
def test_a_job_name_in_any_script_is_taken(client: Client, name: str) -> None:
    assert client.post("/v1/jobs", json=plain_job(name=name, walltime_s=1, checkpoint_period_s=1.0)).status_code == 201


def test_further_faults_are_counted(client: Client) -> None:
    problem = assert_problem(client.post("/v1/jobs", json=plain_job(gpus=0, colour="red", hold=2)), "invalid-body")
    assert problem["detail"] == "gpus: must be at least 1 (got 0); and 2 more faults"


def test_parameters_and_other_bodies_have_the_same_messages(client: Client) -> None:
    problem = assert_problem(client.get("/v1/jobs", params={"limit": 0}), "invalid-parameter")
    assert problem["detail"] == "limit: must be at least 1 (got 0)"
    problem = assert_problem(client.put("/v1/quotas/user/ada", json={"gpus_max": 3}), "invalid-body")
    assert problem["detail"] == "gpus_max: is unknown; did you mean 'gpus_running_max'?"


def submitted(client: Client, world: World, **changes: Any) -> JobSpec:
    answer = client.post("/v1/jobs", json=plain_job(**changes))
    assert answer.status_code == 201, answer.text
    return world.store.jobs([JobId(answer.json()["id"])])[0].spec


def test_durations_may_be_written_with_units_or_as_a_clock(client: Client, world: World) -> None:
    spec = submitted(
        client,
        world,
        walltime_s="2h",
        min_run_s="00:00:30",
        checkpoint_period_s="1h30m",
        preemption={"signal": "SIGUSR1", "grace_s": "1min"},
    )
    assert (spec.walltime_s, spec.min_run_s, spec.checkpoint_period_s) == (7200.0, 30.0, 5400.0)
    assert spec.preemption is not None
    assert spec.preemption.grace_s == 60.0
    body = plain_job(walltime_s="100000d")
    assert_problem(client.post("/v1/jobs", json=body), "invalid-body", ["/walltime_s"])
    assert_problem(client.post("/v1/jobs", json=plain_job(min_run_s="2 hours ago")), "invalid-body", ["/min_run_s"])


def test_numbers_in_the_command_and_the_environment_are_text(client: Client, world: World) -> None:
    spec = submitted(client, world, command=["run", 3, 0.5], env={"LR": 0.1, "N": 10**18})
    assert (spec.command, spec.env) == (("run", "3", "0.5"), {"LR": "0.1", "N": "1000000000000000000"})
    for broken in ({"command": ["run", None]}, {"env": {"X": [1]}}, {"command": ["run", False]}):
        answer = client.post("/v1/jobs", json=plain_job(**broken))
        assert_problem(answer, "invalid-body")


def test_numbers_that_are_not_finite_stay_refused(client: Client) -> None:
    text = '{"name": "a", "command": ["run", NaN], "gpus": 1, "walltime_s": Infinity}'
    answer = client.post("/v1/jobs", content=text, headers={"Content-Type": "application/json"})
    problem = assert_problem(answer, "invalid-body", ["/command/1", "/walltime_s"])
    assert not any(math.isnan(value) for value in problem.values() if isinstance(value, float))


def test_a_nested_fault_names_its_whole_place(client: Client) -> None:
    graph = {"layers": [{"name": "a", "forward_s": -1, "backward_s": 1, "parameter_bytes": 1, "activation_bytes": 1}]}
    problem = assert_problem(client.post("/v1/jobs", json=graph_job(graph=graph)), "invalid-body")
    assert problem["detail"] == "graph.layers.0.forward_s: must be at least 0 (got -1)"
