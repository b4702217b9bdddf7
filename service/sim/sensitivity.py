"""Hidden slowdowns by span of simulated jobs without a stage graph.

A program's slowdown over several servers is drawn from (seed, recurrence key) over measured ones: :data:`ON_FOUR_GPUS`. It
grows with the gang as the traffic of a ring does. Within a rack a share of the excess remains.
"""

import math
from enum import StrEnum
from typing import Final

from policies.model.placement import Slowdown
from service.sim.draws import normal, uniform
from service.sim.workloads.model import WorkloadJob

ON_FOUR_GPUS: Final = (1.0, 1.015, 1.058, 1.213, 1.386, 1.536, 1.743, 1.981, 2.186, 2.476, 3.654)
"""Deciles of step time on several servers over that on one, with 4 T4 GPUs: 6 models of petuum/adaptdl with equal weight
(``python -m benchmarks.locality --profiles FILE`` computes them)."""

_RACK_SHARE: Final = (0.5, 1.0)
"""Range of the share of the excess that remains within one rack. Our assumption: the measurements have one network tier."""
_ITERATION_S: Final = (0.05, 5.0)
_ITERATION_NOISE: Final = 0.03
"""Log-normal spread of an iteration's time between runs of one program, as in the generated workloads."""


class Sensitivity(StrEnum):
    """Whether jobs without a stage graph are slowed by a wide placement, and what is known of it."""

    NONE = "none"
    """All placements are equally fast."""
    BLIND = "blind"
    LEARNT = "learnt"
    KNOWN = "known"


def true_slowdown(seed: int, row: WorkloadJob) -> Slowdown:
    """The slowdown of the row's program with so many GPUs."""
    program = _program(row)
    place = uniform(seed, program, "slowdown") * (len(ON_FOUR_GPUS) - 1)
    lower = int(place)
    excess = ON_FOUR_GPUS[lower] + (place - lower) * (ON_FOUR_GPUS[lower + 1] - ON_FOUR_GPUS[lower]) - 1.0
    # A ring sends 2 (g - 1) / g times the parameters.
    excess *= (1.0 - 1.0 / row.gpus) / (1.0 - 1.0 / 4.0)
    low, high = _RACK_SHARE
    share = low + (high - low) * uniform(seed, program, "rack")
    return Slowdown(1.0 + share * excess, 1.0 + excess)


def drawn_iterations(seed: int, row: WorkloadJob) -> float:
    """A number of iterations for a row without one, so that its speed can be measured."""
    low, high = map(math.log, _ITERATION_S)
    seconds = low + (high - low) * uniform(seed, _program(row), "iteration")
    seconds += _ITERATION_NOISE * normal(seed, row.job_id, "speed")
    return max(1.0, float(round(row.duration_s / math.exp(seconds))))


def _program(row: WorkloadJob) -> str:
    return "\0".join((row.user, row.project, row.name))
