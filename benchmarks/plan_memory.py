"""The memory bill of published training runs, all of which fitted.

``python -m benchmarks.plan_memory --table FILE --models FILE --gpus FILE``. The tables are those of
``benchmarks.iteration_time``. Rows whose model is known by its operations alone have no bill.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.throughput_table import Measured, load
from policies.model.plan import PlanError
from policies.model.shape import CountedShape
from policies.training.memory import memory_bill
from policies.training.nearest import TOLERANCE


@dataclass(frozen=True, slots=True)
class Billed:
    """A run with the share of its GPU's memory that the bill says."""

    run: Measured
    share: float


def bill(runs: Sequence[Measured]) -> list[Billed]:
    """The runs whose model has a shape and whose plan its layers allow, the fullest first."""
    found = []
    for run in runs:
        if isinstance(run.shape, CountedShape):
            continue
        try:
            peak = memory_bill(run.shape, run.plan).peak
        except PlanError:
            continue
        found.append(Billed(run, peak / run.gpu.memory_bytes))
    return sorted(found, key=lambda each: -each.share)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints how many runs fit by their bill, and those that would be refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("table", "models", "gpus"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args(arguments)
    runs, _ = load(given.table, given.models, given.gpus)
    billed = bill(runs)
    refused = [each for each in billed if each.share > TOLERANCE]
    print(f"{len(billed)} runs: {sum(each.share <= 1 for each in billed)} fit, {len(refused)} would be refused")
    for each in refused:
        plan = each.run.plan
        print(
            f"{each.share:.0%} of {each.run.gpu.name}: {each.run.shape.name} on {plan.gpus} GPUs, data {plan.data}, tensor"
            f" {plan.tensor}, pipeline {plan.pipeline}, context {plan.context}, expert {plan.expert}, micro_batch"
            f" {plan.micro_batch}, zero_stage {plan.zero_stage}, recompute {plan.recompute}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
