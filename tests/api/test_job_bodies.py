"""What ``/spec`` answers can be submitted again and makes an equal job."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.model.cluster import Server
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.job_bodies import DERIVED, OWN_FORM, SHARED
from service.wire.bodies import JobBody
from tests.api.client import client_of
from tests.api.conftest import World
from tests.api.helpers import assert_problem, plain_job

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=8)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8)
ENV_NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,5}", fullmatch=True).map(lambda name: f"MY_{name}")
JOB_NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), min_size=1, max_size=8
).filter(str.strip)
SECONDS = st.floats(0.001, 1e6)
PERIODS = st.floats(1, 1e6)
SMALL = st.integers(1, 3)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def chains(draw: st.DrawFn) -> dict[str, Any]:
    """Layers in a row, some of which also feed later ones."""
    count = draw(st.integers(1, 6))
    layers = [
        {
            "name": f"layer{index}",
            "forward_s": draw(SECONDS),
            "backward_s": draw(SECONDS),
            "parameter_bytes": draw(st.integers(0, 10**9)),
            "activation_bytes": draw(st.integers(0, 10**9)),
            "tensor_bytes": draw(st.integers(0, 10**6)),
        }
        for index in range(count)
    ]
    row = [(index, index + 1) for index in range(count - 1)]
    skips = [(tail, head) for tail in range(count) for head in range(tail + 2, count) if draw(st.booleans())]
    return {"layers": layers, "edges": [[f"layer{tail}", f"layer{head}"] for tail, head in (*row, *skips)]}


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """The keys about GPUs, the graph and how it is spread over the GPUs."""
    catalogue = st.builds(
        lambda model, batch: {"model": model, "batch_size": batch}, st.sampled_from(["resnet50", "gpt2_medium"]), SMALL
    )
    graph = draw(st.none() | catalogue | chains())
    if graph is None:
        return {"gpus": draw(SMALL)}
    across = {"graph": graph, "tensor_across_servers": draw(st.booleans())}
    if draw(st.booleans()):
        return {**across, "gpus": draw(SMALL)}
    names = [layer["name"] for layer in graph.get("layers", [])]
    count = draw(st.integers(1, min(2, len(names) or 2)))
    stages: int | list[list[str]] = count
    if names and draw(st.booleans()):
        first = draw(st.integers(1, len(names)))
        stages = [part for part in (names[:first], names[first:]) if part]
        count = len(stages)
    schedules = ["1f1b", "sync", "gpipe", "zero_bubble", "pipedream", *(["interleaved"] if count > 1 else [])]
    schedule = draw(st.sampled_from(schedules))
    spread = {
        "stages": stages,
        "replicas": [1] * count,
        "tensor": draw(optional(st.just([1] * count))),
        "schedule": schedule,
        "virtual_stages": 3 if schedule == "interleaved" else 1,
        "micro_batches": draw(SMALL),
    }
    return {**across, "parallelism": spread}


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Plans of small models, by fields and by configurations; every GPU has room for them."""
    data = draw(st.sampled_from([1, 2, 4]))
    more: dict[str, Any] = {"data": data, "micro_batch": 2, "global_batch": 8 * data}
    if draw(st.booleans()):
        more |= {"pipeline": 2, "schedule": draw(st.sampled_from(["1f1b", "gpipe", "zero_bubble", "pipedream"]))}
    if draw(st.booleans()):
        more |= {"zero_stage": draw(st.integers(0, 3)), "recompute": draw(st.sampled_from(["none", "full"]))}
    if draw(st.booleans()):
        more = {"deepspeed": {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}}
    shape = {"form": "transformer", "name": "own", "layers": 4, "hidden": 64, "ffn": 256, "heads": 4, "kv_heads": 2}
    own = {
        **shape,
        "head_dim": 16,
        "vocabulary": 1000,
        "experts": draw(optional(st.just({"count": 4, "top_k": 2, "ffn": 64}))),
    }
    counted = {
        "form": "counted",
        "name": "net",
        "kind": "cnn",
        "layers": 4,
        "hidden": 8,
        "parameters": 10**6,
        "flops": 1e9,
    }
    model = draw(st.sampled_from(["gpt2-medium", "bert-base", own, counted, None]))
    plan = {**more, "model": model, "sequence": draw(st.sampled_from([16, 128]))}
    return {"plan": plan, "gpus": 4} if "deepspeed" in more else {"plan": plan}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Valid bodies with any of their keys."""
    shape = draw(shapes() | plans())
    env = draw(st.dictionaries(ENV_NAMES, TEXTS, max_size=3))
    after = st.integers(1, 3)
    needed = after | st.fixed_dictionaries({"job": after, "when": st.sampled_from(["success", "any"])})
    types = draw(st.sampled_from([{}, {"gpu_type": "A100"}, {"gpu_types": ["A100", "V100"]}, {"gpu_types": ["V100"]}]))
    others = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "user": optional(NAMES),
                "project": optional(NAMES),
                "working_dir": optional(NAMES.map(lambda name: f"/{name}")),
                "gpus_min": st.just(1),
                "gpus_max": st.integers(100, 200),
                "topology": st.fixed_dictionaries({"level": st.just("rack")}, optional={"required": st.just(False)}),
                "declared_iterations": optional(st.integers(1, 10**12)),
                "walltime_s": optional(PERIODS),
                "min_run_s": st.floats(0, 60),
                "priority": st.integers(-(10**6), 10**6),
                "checkpoint_period_s": optional(PERIODS),
                "max_retries": st.integers(0, 1000),
                "after": st.lists(needed, max_size=4),
                "hold": st.booleans(),
                "cpus": optional(st.integers(1, 64)),
                "memory_gib": optional(st.floats(0.5, 64)),
                "gpu_memory_gib": optional(st.just(16.0)),
                "image": optional(NAMES.map(lambda name: f"/{name.encode().hex()}.sif")),
                "labels": st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), TEXTS, max_size=2),
                "recurrence_key": optional(NAMES),
                "preemption": optional(
                    st.fixed_dictionaries(
                        {}, optional={"signal": st.sampled_from(["SIGUSR2", "SIGINT"]), "grace_s": st.floats(0, 3600)}
                    )
                ),
                "launch": st.sampled_from(["server", "gpu"]),
                "array": st.builds(
                    lambda index, most: {"indices": [index], "max_running": most}, st.integers(0, 99), optional(SMALL)
                ),
            },
        )
    )
    command = draw(st.lists(TEXTS, max_size=2))
    return {"name": draw(JOB_NAMES), "command": ["run", *command], "env": env, **types, **shape, **others}


def test_every_field_of_a_job_comes_from_the_body() -> None:
    assert {field.name for field in fields(JobSpec)} == SHARED | DERIVED | OWN_FORM
    assert set(JobBody.model_fields) - SHARED - OWN_FORM == {
        "gpus", "graph", "parallelism", "gpu_types", "tensor_across_servers",
    }  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies())
def test_what_spec_answers_makes_an_equal_job(app: FastAPI, world: World, body: dict[str, Any]) -> None:
    world.servers = [Server("fast", 8, gpu_type="A100", gpu_speed=1.7), Server("slow", 8, gpu_type="V100")]
    with client_of(app, world.token) as client:
        for _ in range(3):
            client.post("/v1/jobs", json=plain_job())
        ids = []
        for _ in range(2):
            answer = client.post("/v1/jobs", json=body)
            assert answer.status_code == 201, answer.text
            document = answer.json()
            ids.append(JobId(document["jobs"][0]["id"] if "jobs" in document else document["id"]))
            body = client.get(f"/v1/jobs/{ids[-1]}/spec").json()
            assert set(body) == set(JobBody.model_fields)
    first, second = (_without_array_id(job.spec) for job in sorted(world.store.jobs(ids), key=lambda job: job.id))
    assert first == second


def _without_array_id(spec: JobSpec) -> JobSpec:
    return spec if spec.array is None else replace(spec, array=replace(spec.array, id=JobId(0)))


def test_a_catalogue_job_keeps_its_name_and_its_stages(app: FastAPI, world: World) -> None:
    """By its name where that makes the same stages, and else by the stages, for instance after a server was exchanged."""
    body = plain_job(graph={"model": "resnet50", "batch_size": 8}, gpus=2, gpu_type="V100")
    with client_of(app, world.token) as client:
        number = client.post("/v1/jobs", json=body).json()["id"]
        shown = client.get(f"/v1/jobs/{number}/spec").json()
        assert shown["graph"] == {"model": "resnet50", "batch_size": 8}
        world.servers = [Server("new", 4, gpu_type="V100", gpu_speed=3.0)]
        shown = client.get(f"/v1/jobs/{number}/spec").json()
        assert set(shown["graph"]) == {"stages", "edges", "model", "batch_size"}
        again = client.post("/v1/jobs", json=shown).json()["id"]
    first, second = world.store.jobs([JobId(number), JobId(again)])
    assert first.spec == second.spec


STAGE = {"name": "a", "forward_s": 1.0, "backward_s": 2.0, "parameter_bytes": 10}


@pytest.mark.parametrize(
    ("changes", "pointers"),
    [
        ({"graph": {"stages": [STAGE] * 2, "edges": [[0, 1, 5]]}, "parallelism": None}, ["/parallelism"]),
        ({"graph": {"stages": [STAGE] * 3, "edges": [[0, 1, 5], [1, 2, 5]]}}, ["/parallelism/stages"]),
        ({"graph": {"stages": [STAGE] * 2, "edges": [[1, 0, 5], [0, 2, 5]]}}, ["/graph/edges/0", "/graph/edges/1"]),
        ({"graph": {"stages": [STAGE] * 2, "edges": [[0, 1, 5], [0, 1, 6]]}}, ["/graph/edges/1"]),
        ({"graph": {"stages": [STAGE] * 2}}, ["/graph"]),
        (
            {"graph": {"stages": [STAGE | {"forward_s": 0, "backward_s": 0}] * 2, "edges": [[0, 1, 5]]}},
            ["/graph/stages"],
        ),
    ],
)
def test_a_graph_of_stages_is_checked(
    app: FastAPI, world: World, changes: Mapping[str, Any], pointers: list[str]
) -> None:
    body = plain_job(**{"gpus": 2, "parallelism": {"stages": 2, "replicas": [1, 1]}} | changes)
    with client_of(app, world.token) as client:
        assert_problem(client.post("/v1/jobs", json=body), "invalid-body", pointers)
