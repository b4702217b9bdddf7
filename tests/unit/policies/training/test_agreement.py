"""A plan that contradicts its model is refused with the field, the value and the limit."""

from typing import Any

import pytest

from policies.catalogue.shapes import SHAPES
from policies.model.plan import PlanError, TrainingPlan
from policies.training.memory import memory_bill


@pytest.mark.parametrize(
    ("model", "degrees", "said"),
    [
        (
            "llama3-8b",
            {"pipeline": 64},
            "pipeline: 64 stages are more than the 34 layers, embedding and output of llama3-8b (got 64)",
        ),
        ("gpt2-xl", {"tensor": 2}, "tensor: must divide the 25 attention heads of gpt2-xl (got 2)"),
        ("llama3-8b", {"data": 8, "expert": 8}, "expert: must be 1: llama3-8b has no experts (got 8)"),
        ("mixtral-8x7b", {"data": 16, "expert": 16}, "expert: must divide the 8 experts of mixtral-8x7b (got 16)"),
        ("llama3-8b", {"context": 3}, "context: must divide sequence 1024 (got 3)"),
    ],
)
def test_a_plan_that_contradicts_its_model_is_refused(model: str, degrees: dict[str, Any], said: str) -> None:
    plan = TrainingPlan(sequence=1024, global_batch=64, **degrees)
    with pytest.raises(PlanError) as refused:
        memory_bill(SHAPES[model].shape, plan)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("llama3-8b", {"pipeline": 34}),
        ("mixtral-8x7b", {"data": 8, "expert": 8, "tensor": 8}),
        ("gpt2-xl", {"tensor": 5, "context": 4}),
    ],
)
def test_a_plan_that_agrees_with_its_model_has_a_bill(model: str, degrees: dict[str, Any]) -> None:
    plan = TrainingPlan(sequence=1024, global_batch=64, **degrees)
    assert len(memory_bill(SHAPES[model].shape, plan).stages) == plan.pipeline
