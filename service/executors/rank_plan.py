"""``SOONER_PLAN``: how the job is spread over GPUs, and which part of it the process has."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from policies.model.job import JobSpec
from policies.model.plan import TrainingPlan
from policies.placement.seats import Seat

NAME = "SOONER_PLAN"


def rank_plan(spec: JobSpec, seats: Sequence[Seat]) -> dict[str, str]:
    """The entry of the environment of a process with these GPUs; none for a job without stages and without a plan.

    The document has the keys ``plan`` (null without one), ``parallelism`` (null without stages), and ``places``: one a GPU of
    the process, in the order of ``CUDA_VISIBLE_DEVICES``. With ``launch = gpu`` there is one, that of ``LOCAL_RANK``.
    """
    if spec.plan is None and spec.parallelism is None:
        return {}
    plan, parallelism = spec.plan, spec.parallelism
    found = {
        "plan": None if plan is None else {**asdict(plan), "gpus": plan.gpus, "micro_batches": plan.micro_batches},
        "parallelism": None if parallelism is None else asdict(parallelism),
        "places": [_place(plan, seat) for seat in seats],
    }
    return {NAME: json.dumps(found, separators=(",", ":"))}


def _place(plan: TrainingPlan | None, seat: Seat) -> dict[str, Any]:
    """With a plan a replica of a stage is one rank of the context group of one rank of the data group."""
    place = {
        "rank": seat.rank,
        "local_rank": seat.gpu,
        "stage": seat.stage,
        "replica": seat.replica,
        "tensor": seat.tensor,
    }
    if plan is None:
        return place
    data, context = divmod(seat.replica, plan.context)
    return place | {"data": data, "context": context}
