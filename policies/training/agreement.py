"""A plan against the shape of its model: degrees that do not divide what they divide are refused, as launchers refuse them."""

from policies.model.plan import PlanError, TrainingPlan
from policies.model.shape import CountedShape, ModelShape

ENDS = 2
"""The embedding and the output, each of which may have a pipeline stage of its own."""


def require_agreement(shape: ModelShape, plan: TrainingPlan) -> None:
    """Raises :class:`PlanError` for more stages than layers, and for a degree that does not divide heads, experts or tokens."""
    stages, most = plan.pipeline * plan.virtual_stages, shape.layers + ENDS
    limits = [
        (
            "pipeline",
            stages <= most,
            f"{stages} stages are more than the {most} layers, embedding and output of {shape.name}",
        ),
        ("context", plan.sequence % plan.context == 0, f"must divide sequence {plan.sequence}"),
    ]
    if not isinstance(shape, CountedShape):
        heads, experts = shape.heads, shape.experts
        limits.append(("tensor", heads % plan.tensor == 0, f"must divide the {heads} attention heads of {shape.name}"))
        if experts is None:
            limits.append(("expert", plan.expert == 1, f"must be 1: {shape.name} has no experts"))
        else:
            count = experts.count
            limits.append(("expert", count % plan.expert == 0, f"must divide the {count} experts of {shape.name}"))
    for field, allowed, limit in limits:
        if not allowed:
            raise PlanError(field, f"{limit} (got {getattr(plan, field)})")
