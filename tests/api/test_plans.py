"""Training plans of jobs: what is read, what is refused, and what is answered."""

import json
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from policies.model.cluster import Server
from policies.model.ids import JobId
from tests.api.conftest import World
from tests.api.helpers import assert_problem, plain_job

MEGATRON = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    " --sequence-parallel --use-distributed-optimizer --bf16 --use-flash-attn --num-layers 32 --hidden-size 4096"
    " --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu --seq-length 4096 --vocab-size 32000"
    " --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --attention-dropout 0 --hidden-dropout 0"
)
LLAMA = {"model": "llama3-8b", "data": 8, "zero_stage": 3, "micro_batch": 1, "global_batch": 64, "recompute": "full"}
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
ZERO_3 = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}


def h100(name: str, gpus: int = 8, **more: Any) -> Server:
    return Server(name, gpus, gpu_type="H100", intra_bytes_s=450e9, nic_bytes_s=400e9, **more)


@pytest.fixture(autouse=True)
def _servers(world: World) -> None:
    world.servers = [h100("a"), h100("b")]


def planned(plan: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = plain_job() | {"plan": plan} | more
    if "gpus" not in more:
        body.pop("gpus", None)
    return body


def refused(client: Client, body: dict[str, Any], pointer: str, slug: str = "invalid-body") -> str:
    document = assert_problem(client.post("/v1/jobs", json=body), slug, [pointer])
    return str(document["errors"][0]["detail"])


@pytest.mark.parametrize(
    ("body", "gpus", "degrees"),
    [
        (planned(LLAMA), 8, {"data": 8, "zero_stage": 3, "sequence": 8192, "micro_batches": 8}),
        (planned({**LLAMA, "data": None, "tensor": 2, "zero_stage": 1}, gpus=16), 16, {"data": 8, "tensor": 2}),
        (planned({"megatron": MEGATRON}), 16, {"data": 2, "tensor": 4, "pipeline": 2, "zero_stage": 1}),
        (planned({"model": CONFIG, "deepspeed": ZERO_3, "sequence": 8192}, gpus=16), 16, {"data": 16, "zero_stage": 3}),
        (
            planned({"model": CONFIG, "deepspeed": ZERO_3, "sequence": 8192, "recompute": "full", "micro_batch": 2}, gpus=16),
            16,
            {"recompute": "full", "micro_batch": 2, "global_batch": 32},
        ),
        (
            planned({"model": "qwen3-8b", "torchrun": "torchrun --nnodes 2 --nproc-per-node 8 t.py --fsdp full_shard --bf16"
                     " --block_size 4096 --per_device_train_batch_size 1 --gradient_checkpointing"}),
            16,
            {"data": 16, "zero_stage": 3, "recompute": "full"},
        ),
        (
            planned({"model": "resnet-50", "accelerate": {"num_processes": 8, "mixed_precision": "fp16"}, "micro_batch": 64}),
            8,
            {"data": 8, "precision": "fp16", "global_batch": 512},
        ),
    ],
    ids=["fields", "data left out", "megatron", "deepspeed", "deepspeed with fields", "torchrun", "accelerate"],
)  # fmt: skip
def test_a_plan_is_read_answered_and_kept(
    client: Client, body: dict[str, Any], gpus: int, degrees: dict[str, Any]
) -> None:
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert job["gpus"] == job["plan"]["plan"]["gpus"] == gpus
    assert degrees.items() <= job["plan"]["plan"].items()
    asked = job["plan"]
    assert asked["gpu_type"] == "H100"
    assert asked["memory"]["peak_bytes"] < asked["memory"]["limit_bytes"] == 80 * 2**30
    assert sum(asked["memory"]["parts_bytes"].values()) == pytest.approx(asked["memory"]["peak_bytes"], abs=10)
    time = asked["iteration"]
    assert time["bottleneck"] == max(time["parts_s"], key=time["parts_s"].get)
    assert time["time_s"] == pytest.approx(sum(time["parts_s"].values()), rel=0.03)
    tokens = asked["plan"]["global_batch"] * asked["plan"]["sequence"]
    assert time["tokens_per_s"] == pytest.approx(tokens / time["time_s"])
    shown = client.get("/v1/jobs/1").json()["plan"]
    assert shown == {**asked, "warnings": []}
    assert "plan" not in client.get("/v1/jobs").json()["items"][0]
    again = client.post("/v1/jobs", json=client.get("/v1/jobs/1/spec").json())
    assert again.status_code == 201, again.text
    assert again.json()["plan"] == shown


def test_the_stages_of_a_plan_are_kept_for_placement(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=planned({"megatron": MEGATRON}))
    [record] = world.store.jobs([JobId(1)])
    assert record.spec.parallelism is not None and record.spec.stage_graph is not None
    assert (record.spec.parallelism.replicas, record.spec.parallelism.tensor) == ((2, 2), (4, 4))
    assert record.spec.parallelism.gpus == 16
    assert len(record.spec.stage_graph.stages) == 2


def test_what_a_reader_did_not_count_is_said_at_submission(client: Client) -> None:
    job = client.post("/v1/jobs", json=planned({"megatron": MEGATRON + " --mtp-num-layers 1"})).json()
    assert "--mtp-num-layers" in " ".join(job["plan"]["warnings"])


def test_elements_of_an_array_have_one_plan(client: Client) -> None:
    jobs = client.post("/v1/jobs", json=planned(LLAMA, array={"count": 3})).json()["jobs"]
    assert [job["plan"] is None for job in jobs] == [False, True, True]
    assert client.get("/v1/jobs/3").json()["plan"] == jobs[0]["plan"]


def test_a_job_without_a_plan_says_so(client: Client) -> None:
    assert client.post("/v1/jobs", json=plain_job()).json()["plan"] is None
    assert client.get("/v1/jobs/1").json()["plan"] is None


@pytest.mark.parametrize(
    ("plan", "more", "pointer", "words"),
    [
        ({"tensor": 0}, {}, "/plan/tensor", "must be at least 1 (got 0)"),
        ({"colour": 1}, {}, "/plan/colour", ""),
        ({"model": "lama3-8b"}, {}, "/plan/model", "llama3-8b"),
        ({"model": {"model_type": "cube"}}, {}, "/plan/model", "'cube' is not known"),
        ({"model": {"model_type": "llama", "hidden_size": 64}}, {}, "/plan/model", "num_hidden_layers"),
        ({"model": {"form": "transformer"}}, {}, None, ""),
        ({"global_batch": 9}, {}, "/plan/global_batch", "must be a multiple of micro_batch 1 x data 8"),
        ({"tensor": 3}, {}, "/plan/tensor", "must divide the 32 attention heads"),
        ({"schedule": "interleaved"}, {}, "/plan/virtual_stages", "at least 2"),
        ({"pipeline": 257, "data": 1}, {}, "/plan/pipeline", "256"),
        ({"model": None}, {}, "/plan/sequence", "add sequence"),
        ({"micro_batch": None, "global_batch": None}, {}, "/plan/micro_batch", "add micro_batch"),
        ({}, {"gpus": 4}, "/gpus", "must be data 8 = 8 (got 4"),
        ({}, {"graph": {"model": "resnet50", "batch_size": 8}}, "/graph", "must be left out with a plan"),
        ({"megatron": MEGATRON, "torchrun": "torchrun t.py"}, {}, "/plan/torchrun", "left out beside megatron"),
        ({"megatron": "--tensor-model-parallel-size x"}, {"gpus": 8}, "/plan/megatron", "--tensor-model-parallel-size"),
        ({"deepspeed": {"zero_optimization": {"stage": 7}}}, {}, "/plan/deepspeed", "zero_optimization.stage"),
        ({"megatron": ""}, {}, "/plan/megatron", ""),
        ({"megatron": "x" * 65_537}, {}, "/plan/megatron", ""),
        ({"megatron": "a\0b"}, {}, "/plan/megatron", ""),
    ],
)
def test_a_plan_with_a_fault_is_refused_where_it_is(
    client: Client, plan: dict[str, Any], more: dict[str, Any], pointer: str | None, words: str
) -> None:
    body = planned({**LLAMA, **plan}, **more)
    if pointer is None:
        answer = client.post("/v1/jobs", json=body)
        assert answer.status_code == 422
        assert all(fault["pointer"].startswith("/plan/model") for fault in answer.json()["errors"])
        return
    assert words in refused(client, body, pointer)


@pytest.mark.parametrize(
    "plan",
    [
        {"torchrun": "torchrun --nproc-per-node 8 t.py --deepspeed {file} --block_size 128"},
        {"torchrun": "torchrun --nproc-per-node 8 t.py --fsdp full_shard --fsdp_config {file} --block_size 128"},
        {"torchrun": "accelerate launch --config_file {file} t.py --block_size 128"},
        {"accelerate": {"distributed_type": "DEEPSPEED", "num_processes": 8,
                        "deepspeed_config": {"deepspeed_config_file": "{file}"}}, "micro_batch": 1},
        {"model": "{file}", "data": 8, "micro_batch": 1},
    ],
)  # fmt: skip
def test_no_file_that_a_request_names_is_opened(client: Client, tmp_path: Path, plan: dict[str, Any]) -> None:
    file = tmp_path / "secret.json"
    file.write_text('{"hunter2": 1, "zero_optimization": {"stage": "hunter2"}}')
    text = json.dumps({"model": "llama3-8b", **plan}).replace("{file}", str(file))
    answer = client.post("/v1/jobs", json=planned(json.loads(text)))
    assert answer.status_code == 422
    assert "hunter2" not in answer.text
    if "model" not in plan:
        assert "is a file, which is not opened here" in answer.text


@pytest.mark.parametrize(
    ("plan", "gpus", "key", "message"),
    [
        (
            {"model": "llama3-8b", "micro_batch": 10**9, "deepspeed": {"gradient_accumulation_steps": 10}},
            8,
            "deepspeed",
            "global_batch: must be at most 1000000000 (got 80000000000)",
        ),
        (
            {**LLAMA, "global_batch": None, "micro_batch": 10**9},
            None,
            "global_batch",
            "must be at most 1000000000 (got 8000000000)",
        ),
        (
            {"model": {"model_type": "gpt2", "n_embd": 10**9, "n_head": 1, "n_layer": 1, "vocab_size": 9}, "micro_batch": 1,
             "sequence": 1},
            1,
            "model",
            "ffn: must be at most 1000000000 (got 4000000000)",
        ),
        (
            {"megatron": MEGATRON.replace("32000", "1000000000 --make-vocab-size-divisible-by 300")},
            16,
            "megatron",
            "model.vocabulary: must be at most 1000000000 (got 1000000800)",
        ),
        (
            {"megatron": MEGATRON.replace("-size 2 ", "-size 512 --nnodes 1024 ").replace("num-layers 32", "num-layers 512")},
            None,
            "megatron",
            "pipeline: must be at most 256 (got 512)",
        ),
    ],
)  # fmt: skip
def test_what_follows_from_a_configuration_has_the_limits_of_a_body(
    client: Client, plan: dict[str, Any], gpus: int | None, key: str, message: str
) -> None:
    body = planned(plan) if gpus is None else planned(plan, gpus=gpus)
    assert refused(client, body, f"/plan/{key}") == message


def test_a_plan_that_fits_no_gpu_is_refused_with_the_bill_and_the_nearest_plans(client: Client) -> None:
    said = refused(client, planned({**LLAMA, "zero_stage": 0}), "/plan", "never-fits")
    assert "memory: the plan needs" in said and "H100 has 80 GiB" in said
    assert "optimizer 89.7" in said
    assert "Nearest plans that fit: zero_stage 0 -> 1" in said
    none = refused(client, planned({**LLAMA, "zero_stage": 0, "sequence": 10**8}), "/plan", "never-fits")
    assert "No plan that fits was found." in none


def test_the_nearest_plans_keep_tensor_groups_within_the_servers(client: Client, world: World) -> None:
    body = planned({**LLAMA, "zero_stage": 0, "micro_batch": 8})
    assert "tensor 1 -> 8" in refused(client, body, "/plan", "never-fits")
    world.servers = [h100(name, 2) for name in "abcd"]
    said = refused(client, body, "/plan", "never-fits")
    assert "Nearest plans that fit: " in said
    assert "tensor 1 -> 4" not in said and "tensor 1 -> 8" not in said


def test_stated_memory_counts_and_unknown_memory_is_a_warning(client: Client, world: World) -> None:
    world.servers = [h100("a", gpu_memory_gib=24.0)]
    assert "has 24 GiB" in refused(client, planned(LLAMA), "/plan", "never-fits")
    world.servers = [Server("v", 8, gpu_type="A100"), Server("w", 8, gpu_type="A100")]
    job = client.post("/v1/jobs", json=planned(LLAMA)).json()
    assert job["plan"]["memory"]["limit_bytes"] == 80 * 2**30
    assert job["plan"]["iteration"]["time_s"] > 0
    assert "may be A100-40 or A100-80: time and memory are those of A100-80" in job["plan"]["warnings"][0]
    too_large = planned({**LLAMA, "zero_stage": 0})
    assert "A100-80 has 80 GiB" in refused(client, too_large, "/plan", "never-fits"), "it is too large for any A100"
    world.servers = [Server("z", 8, gpu_type="Zorn9000")]
    job = client.post("/v1/jobs", json=planned({**LLAMA, "zero_stage": 0})).json()
    assert (job["plan"]["iteration"], job["plan"]["gpu_type"]) == (None, None)
    assert "'Zorn9000'" in job["plan"]["warnings"][0] and "not known" in job["plan"]["warnings"][0]


def test_types_that_the_plan_does_not_fit_are_not_used(client: Client, world: World) -> None:
    world.servers = [Server("t", 8, gpu_type="T4"), h100("a"), Server("x", 8, gpu_type="A100-80")]
    job = client.post("/v1/jobs", json=planned(LLAMA)).json()
    assert job["plan"]["gpu_type"] == "H100"
    assert "does not fit the memory of T4" in job["plan"]["warnings"][0]
    assert client.get("/v1/jobs/1/spec").json()["gpu_types"] == ["H100", "A100-80"]
    job = client.post("/v1/jobs", json=planned(LLAMA, gpu_types=["T4", "A100-80"])).json()
    assert job["plan"]["gpu_type"] == "A100-80"
    assert "T4 has 16 GiB" in refused(client, planned(LLAMA, gpu_type="T4"), "/plan", "never-fits")


def test_servers_of_a_type_with_too_little_memory_are_not_used(client: Client, world: World) -> None:
    world.servers = [
        Server("a", 8, gpu_type="A100", gpu_memory_gib=24.0),
        Server("b", 8, gpu_type="A100", gpu_memory_gib=80.0),
    ]
    client.post("/v1/jobs", json=planned(LLAMA))
    needed = client.get("/v1/jobs/1/spec").json()["gpu_memory_gib"]
    assert 24 < needed < 40
    client.post("/v1/jobs", json=planned(LLAMA, gpu_memory_gib=70))
    assert client.get("/v1/jobs/2/spec").json()["gpu_memory_gib"] == 70
    world.servers = [Server("b", 8, gpu_type="A100", gpu_memory_gib=80.0)]
    client.post("/v1/jobs", json=planned(LLAMA))
    assert client.get("/v1/jobs/3/spec").json()["gpu_memory_gib"] is None


def test_the_model_of_a_plan_is_evidence_for_predictions(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=planned(LLAMA))
    [record] = world.store.jobs([JobId(1)])
    assert (record.spec.model, record.spec.batch_size) == ("llama3-8b", 64)


def test_a_plan_of_a_model_that_is_not_known_has_gpus_and_no_time(client: Client) -> None:
    body = planned({"data": 4, "tensor": 2, "micro_batch": 1, "sequence": 2048})
    job = client.post("/v1/jobs", json=body).json()
    assert (job["gpus"], job["plan"]["model"], job["plan"]["iteration"]) == (8, None, None)
    assert "model of the plan is not known" in job["plan"]["warnings"][0]
    again = client.post("/v1/jobs", json=client.get("/v1/jobs/1/spec").json())
    assert again.json()["plan"] == job["plan"]


def test_a_plan_of_a_submission_shows_what_the_training_asks_of_the_cluster(client: Client, world: World) -> None:
    bodies = [planned(LLAMA), planned(LLAMA, array={"count": 3}), plain_job()]
    answer = client.post("/v1/plans", json={"jobs": bodies})
    assert answer.status_code == 200, answer.text
    first, *elements, without = [each["plan"] for each in answer.json()["plans"]]
    submitted = client.post("/v1/jobs", json=bodies[0]).json()["plan"]
    assert {**first, "warnings": []} == {**submitted, "warnings": []}
    assert first["memory"]["peak_bytes"] <= first["memory"]["limit_bytes"]
    assert first["iteration"]["bottleneck"] in first["iteration"]["parts_s"]
    assert elements == [first] * 3
    assert without is None
