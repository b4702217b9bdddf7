"""What a graph and a parallelism become: sums by hand, the catalogue's numbers, and times on the reference GPU."""

import pytest
from httpx import Client

from policies.catalogue import build
from policies.model.cluster import Server
from policies.model.graph import StageGraph
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.wire.base import STAGES_MAX
from tests.api.conftest import World
from tests.api.helpers import assert_problem, graph_job, plain_job


def submitted(client: Client, world: World, body: dict[str, object]) -> JobSpec:
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return world.store.jobs([JobId(answer.json()["id"])])[0].spec


def stages(spec: JobSpec) -> StageGraph:
    assert spec.stage_graph is not None
    return spec.stage_graph


def chain(*times_s: float) -> dict[str, object]:
    layers = [
        {"name": f"l{i}", "forward_s": t, "backward_s": 2 * t, "parameter_bytes": 10 + i, "activation_bytes": 100 + i}
        for i, t in enumerate(times_s)
    ]
    return {"layers": layers, "edges": [[f"l{i}", f"l{i + 1}"] for i in range(len(times_s) - 1)]}


def test_a_number_of_stages_is_cut_at_the_least_bottleneck(client: Client, world: World) -> None:
    body = graph_job(graph=chain(1, 1, 1, 3), parallelism={"stages": 2, "replicas": [2, 1]})
    graph = stages(submitted(client, world, body))
    assert [stage.forward_s for stage in graph.stages] == [3.0, 3.0]
    assert [stage.parameter_bytes for stage in graph.stages] == [10 + 11 + 12, 13]
    assert graph.edges == ((0, 1, 102),)


def test_lists_of_layers_are_taken_as_they_are(client: Client, world: World) -> None:
    lists = [["l0"], ["l1", "l2", "l3"]]
    body = graph_job(graph=chain(1, 1, 1, 3), parallelism={"stages": lists, "replicas": [1, 1]})
    graph = stages(submitted(client, world, body))
    assert [stage.forward_s for stage in graph.stages] == [1.0, 5.0]
    assert graph.edges == ((0, 1, 100),)


def test_layers_with_gpus_alone_are_one_data_parallel_stage(client: Client, world: World) -> None:
    body = plain_job(graph=chain(1, 2), gpus=3)
    spec = submitted(client, world, body)
    assert len(stages(spec).stages) == 1
    assert spec.parallelism is not None
    assert (spec.parallelism.replicas, spec.parallelism.tensor, spec.gpus) == ((3,), (1,), 3)


def test_a_model_of_the_catalogue_is_built_for_the_global_batch(client: Client, world: World) -> None:
    spec = submitted(client, world, plain_job(graph={"model": "resnet50", "batch_size": 64}, gpus=2))
    layers = build("resnet50", 64).layers
    assert (spec.model, spec.batch_size, spec.gpus) == ("resnet50", 64, 2)
    assert sum(stage.parameter_bytes for stage in stages(spec).stages) == sum(x.parameter_bytes for x in layers)
    assert sum(stage.forward_s for stage in stages(spec).stages) == pytest.approx(sum(x.forward_s for x in layers))


def test_a_model_of_the_catalogue_may_be_spread_by_hand(client: Client, world: World) -> None:
    graph = {"model": "gpt2_medium", "batch_size": 8}
    body = plain_job(graph=graph, gpus=None, parallelism={"stages": 2, "replicas": [1, 1], "tensor": [2, 1]})
    spec = submitted(client, world, body)
    assert spec.parallelism is not None
    assert (spec.gpus, spec.parallelism.replicas, spec.parallelism.tensor) == (3, (1, 1), (2, 1))
    assert len(stages(spec).stages) == 2


@pytest.mark.parametrize("asked", ["A100", "a100", "gpu:a100"])
def test_times_are_stated_on_the_jobs_own_gpu_type(client: Client, world: World, asked: str) -> None:
    """A server of speed 2 halves times: what was measured there is twice as long on the reference GPU."""
    world.servers.append(Server("fast", 4, gpu_type="A100", gpu_speed=2.0))
    parallelism = {"stages": 1, "replicas": [1]}
    assert (
        stages(submitted(client, world, graph_job(graph=chain(1), parallelism=parallelism))).stages[0].forward_s == 1.0
    )
    body = graph_job(graph=chain(1), parallelism=parallelism, gpu_type=asked)
    stage = stages(submitted(client, world, body)).stages[0]
    assert (stage.forward_s, stage.backward_s) == (2.0, 4.0)
    model = {"model": "vgg19", "batch_size": 8}
    spec = submitted(client, world, plain_job(graph=model, gpus=1, gpu_type=asked))
    expected_s = 2.0 * sum(layer.forward_s for layer in build("vgg19", 8, "A100").layers)
    assert sum(stage.forward_s for stage in stages(spec).stages) == pytest.approx(expected_s)


def test_a_tensor_group_that_no_server_holds_never_fits(client: Client) -> None:
    parallelism = {"stages": 1, "replicas": [1], "tensor": [5]}
    answer = client.post("/v1/jobs", json=graph_job(graph=chain(1), parallelism=parallelism))
    assert "tensor" in assert_problem(answer, "never-fits", ["/parallelism"])["detail"]
    across = graph_job(graph=chain(1), parallelism=parallelism, tensor_across_servers=True)
    assert client.post("/v1/jobs", json=across).status_code == 201


def test_a_graph_in_pieces_cannot_be_cut(client: Client) -> None:
    graph = chain(1, 1) | {"edges": []}
    answer = client.post("/v1/jobs", json=graph_job(graph=graph, parallelism={"stages": 2, "replicas": [1, 1]}))
    assert_problem(answer, "invalid-body", ["/parallelism/stages"])


def test_the_deepest_pipeline_is_taken(client: Client, world: World) -> None:
    world.servers.append(Server("large", STAGES_MAX))
    parallelism = {"stages": STAGES_MAX, "replicas": [1] * STAGES_MAX}
    spec = submitted(client, world, graph_job(graph=chain(*[0.1] * STAGES_MAX), parallelism=parallelism))
    assert len(stages(spec).stages) == spec.gpus == STAGES_MAX
