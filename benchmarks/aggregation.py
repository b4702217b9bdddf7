"""Prints what the parts of the aggregation are worth: the pinball loss of what is served with one of them changed.

python -m benchmarks.aggregation --trace workload.csv [more.csv ...] [--first N] [--chunks 12] [--seed 0]

The experts predict each workload once, by the protocol of ``sooner model evaluate``. Then they are aggregated with each variant.
``best`` is the loss over that of the best single expert in hindsight, ``cov`` the coverage of the 80% interval.
"""

import argparse
import math
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from policies.model.estimate import Unit
from predictor import aggregation, conformal, prequential
from predictor.dataset import Knowledge, replay
from predictor.evaluation import coverage, pinball
from predictor.experts import BASIC, EMPIRICAL
from predictor.intervals import Array, at_levels
from predictor.training import ESTIMATORS, TEST_RATIO
from service.sim.evaluate import rows_of
from service.sim.workloads.table import read_workload

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "as served": {},
    "mean of the quantiles": {"mixture": False},
    "one memory of 300 jobs": {"forgetting": (0.003,)},
    "one memory of 70 jobs": {"forgetting": (0.015,)},
    "levels apart": {"smoothing": None},
    "buckets apart": {"sharing": np.eye(4)},
    "new programs apart": {"cold_share": 0.0},
    "each job of a burst counts fully": {"bursts": False},
    "all labels count as late": {"delays": False},
    "no calibration": {"step": 0.0},
    "calibration in steps of 0.02": {"step": 0.02},
    "ended jobs alone": {"unfinished": False},
    "without distributions of the past": {"leave_out": EMPIRICAL},
    "without models": {"leave_out": tuple(ESTIMATORS)},
    **{f"without {kind.replace('_', ' ')}": {"leave_out": (kind,)} for kind in ESTIMATORS},
}


def _mean_of_quantiles(quantiles: Array, weights: Array) -> Array:
    return np.asarray(
        (at_levels(np.where(np.isinf(quantiles), 0.0, quantiles), aggregation.LEARNT) * weights).sum(axis=1)
    )


@contextmanager
def changed(
    mixture: bool = True,
    forgetting: tuple[float, ...] | None = None,
    smoothing: float | None = aggregation.SMOOTHING,
    sharing: Any = None,
    cold_share: float = aggregation.COLD_SHARE,
    bursts: bool = True,
    delays: bool = True,
    step: float = conformal.STEP,
    unfinished: bool = True,
) -> Iterator[None]:
    """The aggregation with other constants."""
    with ExitStack() as stack:

        def put(module: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(module, name, value))

        if not mixture:
            put(aggregation, "_mixed", _mean_of_quantiles)
        if forgetting is not None:
            put(aggregation, "FORGETTING", forgetting)
            put(aggregation, "_FORGETTING", np.array(forgetting))
        if smoothing is None:
            put(aggregation, "_SMOOTHER", np.eye(len(aggregation.LEARNT)))
        known = np.arange(4) > 0
        apart = np.where(np.equal.outer(known, known), 1.0, cold_share)
        put(aggregation, "_SHARING", apart if sharing is None else sharing)
        if not bursts:
            ended = aggregation.Bursts.ended
            put(aggregation.Bursts, "ended", lambda self, *job: ended(self, *job)._replace(share=1.0))
        if not delays:
            put(aggregation.Aggregation, "delayed", lambda self, delay: None)
        put(conformal, "STEP", step)
        if not unfinished:
            for each in (aggregation.Aggregation, conformal.SpreadCalibration):
                put(each, "expect", lambda self, jobs: None)
        yield


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, nargs="+", required=True, help="workload tables")
    parser.add_argument("--first", type=int, help="jobs of each table")
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for trace in arguments.trace:
        workload = read_workload(trace, first=arguments.first)
        found = (examples.get(Unit.SERVICE_S) for _, examples in replay(rows_of(workload.jobs), Knowledge()))
        examples = [replace(each, features=array("d", each.features)) for each in found if each is not None]
        test_start = len(examples) - int(len(examples) * TEST_RATIO)
        run = prequential.run(examples, ESTIMATORS, test_start=test_start, chunks=arguments.chunks, seed=arguments.seed)
        best = min(pinball(run.labels, quantiles) for quantiles in run.tested.values())
        print(f"{trace.name}: {len(run.labels):,} test jobs")
        print(f"{'':34} {'pinball':>8} {'best':>6} {'cov':>6}")
        for name, variant in VARIANTS.items():
            of = dict(variant)
            out = of.pop("leave_out", ())
            with changed(**of):
                served = prequential.serve(run, [expert for expert in (*BASIC, *ESTIMATORS) if expert not in out])
            quantiles = served.tested(run)
            loss = pinball(run.labels, quantiles)
            ratios[name].append(loss / best)
            print(f"{name:34} {loss:8.4f} {loss / best:6.3f} {coverage(run.labels, quantiles):6.3f}")
    print("geometric mean over the workloads, and the worst of them")
    for name, each in ratios.items():
        print(f"{name:34} {math.exp(float(np.mean(np.log(each)))):8.4f} {max(each):6.3f}")


if __name__ == "__main__":
    main()
