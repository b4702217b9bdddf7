"""Any plan of a body becomes a job with an answer, or a refusal."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from service.api.parse import parse_submission
from service.api.plans import job_plan_document
from service.api.problems import Problem
from service.config.settings import Settings
from service.db.codec import encode
from service.wire.bodies import JobBody

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
