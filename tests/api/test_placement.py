"""Where the stages of a job are, and what the model says of an iteration there."""

from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import insert, update

from policies.lifecycle import AttemptState
from policies.model.cluster import Cluster
from policies.model.graph import Stage, StageGraph
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.job import IterationTimes, JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare, Slowdown, TypeFactor, place
from policies.model.plan import PipelineSchedule, TrainingPlan
from policies.throughput import alpha, iteration_time_s
from service.api.placement_documents import NO_ATTEMPT, NO_GRAPH, NO_STAGES
from service.db.codec import encode
from service.db.rows import attempt_values
from service.db.tables import ATTEMPTS, JOBS
from service.domain.access import Role
from service.engine.record import AttemptRecord
from tests.api import people
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import person

HOSTILE = "</td><script>\u202e"
STAGES = (Stage(HOSTILE, 1.0, 2.0, 8 * 10**9, 6 * 10**9), Stage("head", 0.5, 0.5, 10**9))
CONFIG = ParallelismConfig((2, 1), (1, 2), PipelineSchedule.PIPEDREAM)
SPEC = JobSpec("n", "u", 4, "p", stage_graph=StageGraph(STAGES, ((0, 1, 10**9),)), parallelism=CONFIG)
ACROSS = place([ServerShare(ServerIndex(0), 3, (1, 1)), ServerShare(ServerIndex(1), 1, (1, 0))])
TOGETHER = place([ServerShare(ServerIndex(1), 4, (2, 1))])


def placed(
    world: World,
    spec: JobSpec = SPEC,
    placement: Placement = ACROSS,
    number: int = 1,
    job: int | None = None,
    state: AttemptState = AttemptState.RUNNING,
) -> int:
    """A job with an attempt on the first GPUs of its servers."""
    with world.database.writing() as session:
        found = JobId(job) if job is not None else world.store.submit(session, [spec], NOW_S)[0]
        ids = tuple(tuple(range(share.gpus)) for share in placement.shares)
        record = AttemptRecord(AttemptId(f"{found}.{number}"), found, number, state, placement, ids, NOW_S)
        session.connection().execute(insert(ATTEMPTS), [attempt_values(record)])
    return found


def shown(client: Client, job: int) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/placement")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def cluster(world: World) -> Cluster:
    return Cluster("test", tuple(world.servers))


def test_stages_and_replicas_are_on_their_gpus(client: Client, world: World) -> None:
    found = shown(client, placed(world))
    assert (found["attempt"], found["state"], found["span"], found["reason"]) == ("1.1", "running", "rack", None)
    assert found["servers"] == [
        {"server": "a", "rack": "r1", "gpu_type": "V100", "gpus": 3, "gpu_ids": [0, 1, 2]},
        {"server": "b", "rack": "r1", "gpu_type": "V100", "gpus": 1, "gpu_ids": [0]},
    ]
    stages = [(stage["stage"], stage["name"], stage["tensor"]) for stage in found["stages"]]
    assert stages == [(0, HOSTILE, 1), (1, "head", 2)]
    gpus = [
        (stage["stage"], replica["replica"], [(gpu["server"], gpu["gpu_id"]) for gpu in replica["gpus"]])
        for stage in found["stages"]
        for replica in stage["replicas"]
    ]
    assert gpus == [(0, 0, [(1, 0)]), (0, 1, [(0, 0)]), (1, 0, [(0, 1), (0, 2)])]


@pytest.mark.parametrize("placement", [ACROSS, TOGETHER])
def test_the_seconds_are_those_that_decide_placements(client: Client, world: World, placement: Placement) -> None:
    found = shown(client, placed(world, placement=placement))
    assert SPEC.stage_graph is not None
    assert found["iteration_s"] == iteration_time_s(SPEC.stage_graph, CONFIG, cluster(world), placement)
    assert found["correction"] == 1.0
    assert sum(found["parts"].values()) == pytest.approx(found["iteration_s"])
    bottleneck = found["bottleneck"]
    assert bottleneck["seconds"] == max(found["parts"].values()) == found["parts"][f"{bottleneck['part']}_s"]
    assert (bottleneck["part"], bottleneck["stage"]) == (("all_reduce" if placement is ACROSS else "compute"), 0)
    assert bottleneck["server"] == (None if placement is ACROSS else "b")


def test_edges_have_their_bytes_and_the_links_that_they_cross(client: Client, world: World) -> None:
    edges = {edge["kind"]: edge for edge in shown(client, placed(world))["edges"]}
    assert {
        kind: (edge["source"], edge["target"], edge["total_bytes"], edge["span"]) for kind, edge in edges.items()
    } == {
        "activations": (0, 1, 2e9, "rack"),
        "all_reduce": (0, 0, 16e9, "rack"),
    } | {"tensor": (1, 1, 0.0, "server")}
    share = 12.5e9 / 4
    assert edges["all_reduce"]["seconds"] == pytest.approx(8e9 / share)
    # Stage 1 on server a has one of its two senders on server b: a half of 2 GB crosses the network.
    assert edges["activations"]["seconds"] == pytest.approx(1e9 / 120e9 + 1e9 / share)
    together = {edge["kind"]: edge for edge in shown(client, placed(world, placement=TOGETHER))["edges"]}
    assert [edge["span"] for edge in together.values()] == ["server"] * 3
    assert together["activations"]["seconds"] == pytest.approx(2e9 / 120e9)


def test_a_link_between_racks_spans_the_cluster(client: Client, world: World) -> None:
    placement = place([ServerShare(ServerIndex(1), 2, (2, 0)), ServerShare(ServerIndex(2), 2, (0, 1))])
    found = shown(client, placed(world, placement=placement))
    assert found["span"] == "cluster"
    assert {edge["kind"]: edge["span"] for edge in found["edges"]} == {
        "activations": "cluster",
        "all_reduce": "server",
        "tensor": "server",
    }


def test_measured_speeds_correct_the_model(client: Client, world: World) -> None:
    slowdown = Slowdown(rack=3.0, cluster=5.0, server=1.5, gpu_types=(TypeFactor("V100", 2.0),))
    times = IterationTimes(1.0, 9.0, 1.0, slowdown)
    job = placed(world)
    plain = shown(client, job)
    with world.database.writing() as session:
        session.connection().execute(update(JOBS).where(JOBS.c.id == job).values(iteration_times=encode(times)))
    found = shown(client, job)
    assert found["correction"] == pytest.approx(6.0)
    assert found["iteration_s"] == alpha(SPEC, times, cluster(world), ACROSS)
    assert found["parts"] == pytest.approx({name: 6.0 * part for name, part in plain["parts"].items()})
    assert [edge["seconds"] for edge in found["edges"]] == pytest.approx(
        [6 * edge["seconds"] for edge in plain["edges"]]
    )
    for stage, before in zip(found["stages"], plain["stages"], strict=True):
        assert stage["all_reduce_s"] == pytest.approx(6.0 * before["all_reduce_s"])
        assert stage["compute_s"] == pytest.approx(6.0 * before["compute_s"])


def test_the_bubble_of_a_flushed_pipeline_is_a_part(client: Client, world: World) -> None:
    config = replace(CONFIG, schedule=PipelineSchedule.GPIPE, micro_batches=1)
    found = shown(client, placed(world, replace(SPEC, parallelism=config), TOGETHER))
    assert found["parts"]["bubble_s"] == pytest.approx(found["parts"]["compute_s"] + found["parts"]["activations_s"])
    assert sum(found["parts"].values()) == pytest.approx(found["iteration_s"])


def test_the_newest_attempt_counts(client: Client, world: World) -> None:
    job = placed(world, state=AttemptState.PREEMPTED)
    placed(world, placement=TOGETHER, number=2, job=job)
    found = shown(client, job)
    assert (found["attempt"], [server["server"] for server in found["servers"]]) == (f"{job}.2", ["b"])
    ended = placed(world, state=AttemptState.COMPLETED)
    assert (shown(client, ended)["attempt"], shown(client, ended)["state"]) == (f"{ended}.1", "completed")


def test_the_gpus_that_the_engine_reported_count(client: Client, world: World) -> None:
    job = placed(world, placement=TOGETHER)
    with world.database.writing() as session:
        statement = update(ATTEMPTS).where(ATTEMPTS.c.job_id == job).values(got_gpu_ids=[[4, 5, 6, 7]])
        session.connection().execute(statement)
    found = shown(client, job)
    assert found["servers"][0]["gpu_ids"] == [4, 5, 6, 7]
    assert found["stages"][0]["replicas"][1]["gpus"] == [{"server": 0, "gpu_id": 5, "rank": 1}]


def test_a_job_without_stages_has_its_gpus_and_says_why(client: Client, world: World) -> None:
    placement = place([ServerShare(ServerIndex(0), 2), ServerShare(ServerIndex(2), 1)])
    found = shown(client, placed(world, JobSpec("n", "u", 3), placement))
    assert [(server["server"], server["gpu_ids"]) for server in found["servers"]] == [("a", [0, 1]), ("c", [0])]
    assert (found["span"], found["stages"], found["edges"], found["reason"]) == ("cluster", [], [], NO_STAGES)
    assert [found[key] for key in ("iteration_s", "correction", "parts", "bottleneck")] == [None] * 4


def test_a_plan_whose_graph_is_not_known_has_stages_without_seconds(client: Client, world: World) -> None:
    plan = TrainingPlan(pipeline=2, tensor=2, global_batch=1)
    found = shown(client, placed(world, JobSpec("n", "u", 4, plan=plan), place([ServerShare(ServerIndex(0), 4)])))
    assert [(stage["name"], stage["tensor"], stage["compute_s"]) for stage in found["stages"]] == [
        ("s0", 2, None),
        ("s1", 2, None),
    ]
    assert (found["edges"], found["iteration_s"], found["reason"]) == ([], None, NO_GRAPH)


def test_before_the_first_attempt_nothing_is_placed(client: Client) -> None:
    job = client.post("/v1/jobs", json=plain_job()).json()["id"]
    found = shown(client, job)
    assert (found["attempt"], found["state"], found["servers"], found["reason"]) == (None, None, [], NO_ATTEMPT)


def test_unknown_and_hidden_jobs_are_not_found(app: FastAPI, client: Client, world: World) -> None:
    assert_problem(client.get("/v1/jobs/77/placement"), "not-found")
    assert_problem(client.get("/v1/jobs/x/placement"), "invalid-parameter")
    job = placed(world)
    with people.client(app, person(world, "ada", Role.VIEWER, "nlp")) as stranger:
        assert_problem(stranger.get(f"/v1/jobs/{job}/placement"), "not-found")
    with people.client(app, person(world, "bob", Role.VIEWER, "p")) as member:
        assert shown(member, job)["attempt"] == f"{job}.1"
