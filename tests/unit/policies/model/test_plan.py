"""The degrees of a plan must fit each other, and a refusal names the field, its value and the limit."""

from typing import Any

import pytest

from policies.model.plan import PipelineSchedule, PlanError, TrainingPlan


def test_gpus_are_the_product_of_the_degrees_that_multiply() -> None:
    plan = TrainingPlan(
        data=4, tensor=2, pipeline=3, context=2, expert=8, global_batch=24, micro_batch=2, sequence=4096
    )
    assert plan.gpus == 4 * 2 * 3 * 2
    assert plan.micro_batches == 3
    assert plan.tokens == 24 * 4096


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({"tensor": 0}, "tensor: must be at least 1 (got 0)"),
        ({"sequence": -1}, "sequence: must be at least 1 (got -1)"),
        ({"zero_stage": 4}, "zero_stage: must be 0 to 3 (got 4)"),
        (
            {"data": 3, "micro_batch": 2, "global_batch": 8},
            "global_batch: must be a multiple of micro_batch 2 x data 3 = 6 (got 8)",
        ),
        ({"data": 4, "global_batch": 4, "shard_group": 3}, "shard_group: must divide data 4 x context 1 = 4 (got 3)"),
        (
            {"data": 4, "global_batch": 4, "expert": 8},
            "expert: expert 8 x expert_tensor 1 must divide data 4 x context 1 x tensor 1 = 4",
        ),
        ({"virtual_stages": 2, "pipeline": 2}, "virtual_stages: must be 1 with schedule 1f1b (got 2)"),
        (
            {"schedule": PipelineSchedule.INTERLEAVED, "pipeline": 2},
            "virtual_stages: must be at least 2 with schedule interleaved (got 1)",
        ),
        (
            {"schedule": PipelineSchedule.INTERLEAVED, "virtual_stages": 2},
            "schedule: interleaved needs pipeline of at least 2 (got 1)",
        ),
    ],
)
def test_a_contradiction_names_field_value_and_limit(degrees: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as refused:
        TrainingPlan(**degrees)
    assert str(refused.value) == said
    assert said.startswith(f"{refused.value.field}:")
