"""Any plan of a body becomes a job with an answer, or a refusal."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import fits_empty
from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import TrainingPlan
from policies.model.shape import ModelShape
from policies.training import nearest
from policies.training.memory import MemoryBill, memory_bill
from service.api.parse import parse_submission
from service.api.plans import job_plan_document
from service.api.problems import Problem
from service.config.settings import Settings
from service.db.codec import encode
from service.domain import fit
from service.wire.bodies import JobBody, JobsBody

CLUSTER = Cluster("c", tuple(Server(f"s{i}", 8, gpu_type=("H100", "T4", "Zorn")[i % 3]) for i in range(12)))
counts = st.sampled_from([1, 2, 3, 8, 64, 1000, 10**9])
degrees = st.sampled_from([1, 2, 3, 4, 8])
transformers = st.fixed_dictionaries(
    {"form": st.just("transformer"), "name": st.just("x"), "layers": st.sampled_from([1, 4, 100, 10_000]), "hidden": counts,
     "ffn": counts, "heads": counts, "kv_heads": st.just(1), "head_dim": counts, "vocabulary": counts},
    optional={"experts": st.fixed_dictionaries({"count": counts, "top_k": st.just(1), "ffn": counts}),
              "window": counts, "dense_layers": st.just(1), "gated": st.booleans()},
)  # fmt: skip
counted = st.fixed_dictionaries(
    {"form": st.just("counted"), "name": st.just("x"), "kind": st.sampled_from(["cnn", "hybrid", "other"]),
     "layers": st.sampled_from([1, 4, 10_000]), "hidden": counts, "parameters": st.sampled_from([1, 10**9, 10**15]),
     "flops": st.sampled_from([1e-300, 1.0, 1e24])},
)  # fmt: skip
plans = st.fixed_dictionaries(
    {"model": transformers | counted | st.sampled_from(["llama3-8b", "mixtral-8x7b", "resnet-50"]), "micro_batch": counts,
     "sequence": counts},
    optional={
        **dict.fromkeys(("data", "tensor", "pipeline", "context", "expert", "expert_tensor"), degrees),
        "zero_stage": st.integers(0, 3),
        "precision": st.sampled_from(["fp32", "fp8", "fp4", "bf16"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zero_bubble", "pipedream"]),
        **dict.fromkeys(("flash_attention", "adapters", "sequence_parallel"), st.booleans()),
    },
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(plans)
def test_any_plan_is_a_job_or_a_refusal(plan: dict[str, Any]) -> None:
    body = JobBody.model_validate({"name": "x", "command": ["a"], "plan": plan})
    with suppress(Problem):
        [spec] = parse_submission(body, Settings(), CLUSTER).specs
        assert spec.plan is not None and spec.gpus == spec.plan.gpus
        assert spec.parallelism is None or spec.parallelism.gpus == spec.gpus
        answer = job_plan_document(spec, CLUSTER)
        assert answer is not None
        json.dumps([answer, encode(spec)], allow_nan=False)


def test_the_searches_of_a_request_count_few_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may have a thousand plans that fit nothing, of models as deep as a body may say."""
    counted_stages = 0

    def count(shape: ModelShape, plan: TrainingPlan) -> MemoryBill:
        nonlocal counted_stages
        counted_stages += plan.pipeline
        return memory_bill(shape, plan)

    monkeypatch.setattr(nearest, "memory_bill", count)
    deep = {"form": "transformer", "layers": 10_000, "hidden": 8192, "ffn": 8192, "heads": 64, "kv_heads": 64,
            "head_dim": 128, "vocabulary": 128_000}  # fmt: skip
    jobs = [
        {"name": "x", "command": ["a"], "gpu_type": "H100",
         "plan": {"model": deep | {"name": f"n{n}"}, "pipeline": 32, "micro_batch": 1, "global_batch": 1024, "sequence": 4096}}
        for n in range(20)
    ]  # fmt: skip
    with pytest.raises(Problem) as refused:
        parse_submission(JobsBody.model_validate({"jobs": jobs}), Settings(), CLUSTER)
    assert len(refused.value.faults) == 20
    assert 0 < counted_stages < 25_000


def test_jobs_that_differ_in_their_models_share_the_search_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placing a pipeline of 128 stages takes tens of milliseconds, and a request may have a thousand."""
    searched: list[JobSpec] = []

    def count(cluster: Cluster, spec: JobSpec) -> bool:
        searched.append(spec)
        return fits_empty(cluster, spec)

    monkeypatch.setattr(fit, "fits_empty", count)
    small = {"form": "transformer", "layers": 8, "hidden": 512, "ffn": 512, "heads": 8, "kv_heads": 8, "head_dim": 64,
             "vocabulary": 1000}  # fmt: skip
    jobs = [
        {"name": "x", "command": ["a"], "gpu_type": "H100",
         "plan": {"model": small | {"name": f"n{n}", "ffn": 512 + n}, "pipeline": 8, "micro_batch": 1, "sequence": 64}}
        for n in range(10)
    ]  # fmt: skip
    assert len(parse_submission(JobsBody.model_validate({"jobs": jobs}), Settings(), CLUSTER).specs) == 10
    assert len(searched) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_job_of_one_stage_fits_where_a_pipeline_of_equal_tensor_groups_does(
    sizes: list[int], replicas: list[int], tensor: int, across: bool
) -> None:
    cluster = Cluster("c", tuple(Server(f"s{i}", size) for i, size in enumerate(sizes)))
    stages = tuple(Stage(str(s), 1.0 + s, 1.0, 10**8 * s, 10**6) for s in range(len(replicas)))
    graph = StageGraph(stages, tuple((s, s + 1, 10**6) for s in range(len(replicas) - 1)))
    config = ParallelismConfig(tuple(replicas), (tensor,) * len(replicas), tensor_across_servers=across)
    spec = JobSpec("x", "", config.gpus, stage_graph=graph, parallelism=config)
    assert fits_empty(cluster, fit.of_one_stage(spec)) == fits_empty(cluster, spec)
