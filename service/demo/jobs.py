"""The jobs of the demo: four recurring families of real training programs, their synthetic history, and a burst of new jobs.

The history comes from the seeded generator and is labelled synthetic. The lengths of the new jobs come from the same generator,
so they are predictable as on a real cluster: most jobs are like earlier ones.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.runtime.packaged import packaged_folder
from service.sim.workloads.generate import Family, generate
from service.sim.workloads.model import Workload

GPUS = 8
HISTORY_JOBS = 500
HISTORY_SEED = 12
TODAY_SEED = 7
HISTORY_SOURCE = "demo-synthetic"
HISTORY_LOAD = 0.6
ITERATION_S = 0.1
"""Shortest time of a step of every program, so that eight simulated GPUs fit on two cores."""


@dataclass(frozen=True, slots=True)
class Program:
    """A kind of run and the example that is its training program. ``launch``: the command runs once a server or once a GPU.

    Trial and full runs of a family have one name and different walltimes. A model can distinguish them, a median of past
    runs cannot.
    """

    family: Family
    script: str
    launch: str = "server"


def _program(
    user: str,
    name: str,
    gpus: int,
    iterations: float,
    sigma: float,
    walltime_s: float,
    script: str,
    launch: str = "server",
) -> Program:
    return Program(Family(user, "demo", name, gpus, iterations, ITERATION_S, sigma, walltime_s), script, launch)


SGD = _program("ada", "digits-sgd", 1, 45.0, 0.1, 40.0, "train_digits.py")
MLP_TRIAL = _program("ben", "tumour-mlp", 1, 25.0, 0.2, 20.0, "train_mlp_numpy.py")
MLP = _program("ben", "tumour-mlp", 1, 90.0, 0.3, 90.0, "train_mlp_numpy.py")
PAIR_TRIAL = _program("ada", "digits-pair", 2, 25.0, 0.1, 20.0, "train_ddp_sockets.py", "gpu")
PAIR = _program("ada", "digits-pair", 2, 80.0, 0.15, 80.0, "train_ddp_sockets.py", "gpu")
QUAD = _program("cleo", "digits-quad", 4, 110.0, 0.05, 120.0, "train_ddp_sockets.py", "gpu")
PROGRAMS = (MLP_TRIAL, PAIR, SGD, MLP, PAIR_TRIAL, QUAD)

FIRST_WAVE = (QUAD, QUAD)
"""They fill all eight GPUs. The later jobs are shorter, so preempting one of these pays off."""
SECOND_WAVE = (
    *(MLP, PAIR, SGD, MLP_TRIAL, PAIR_TRIAL, QUAD),
    *(SGD, MLP_TRIAL, PAIR, MLP, PAIR_TRIAL, SGD),
    *(MLP_TRIAL, SGD, PAIR_TRIAL, MLP, SGD, MLP_TRIAL),
)
_TODAY = (*FIRST_WAVE, *SECOND_WAVE)
FIRST_OF_EACH = tuple(_TODAY.index(program) for program in PROGRAMS)
"""Positions in :func:`bodies`."""


def synthetic_history() -> Workload:
    """The history of the demo: runs of the four families, labelled synthetic."""
    # In both orders: the generator runs earlier families more often, and every family needs past runs.
    families = [program.family for program in (*PROGRAMS, *reversed(PROGRAMS))]
    return generate(HISTORY_SEED, HISTORY_JOBS, families, gpus=GPUS, load=HISTORY_LOAD)


def bodies() -> list[dict[str, Any]]:
    """The bodies of today's jobs, those of the first wave first; the same each time."""
    drawn = {program: _lengths(program, TODAY_SEED + index, len(_TODAY)) for index, program in enumerate(PROGRAMS)}
    return [body(program, next(drawn[program]), seed=number) for number, program in enumerate(_TODAY)]


def _lengths(program: Program, seed: int, count: int) -> Iterator[int]:
    """Iterations of runs that succeed well within their walltime."""
    limit_s = (program.family.walltime_s or math.inf) / 2.0
    for run in generate(seed, 2 * count + 10, [program.family]).jobs:
        if run.final_state == "succeeded" and run.duration_s < limit_s and run.iterations is not None:
            yield run.iterations


def body(program: Program, iterations: int, *, seed: int = 0) -> dict[str, Any]:
    """One job of a program. The iterations are in its command. The synthetic history has no commands, so the predictor can
    learn only from today's jobs, once they have ended, that the totals follow this argument.
    """
    family = program.family
    return {
        "name": family.name,
        "project": family.project,
        "user": family.user,
        "gpus": family.gpus,
        "launch": program.launch,
        "walltime_s": family.walltime_s,
        "command": [
            sys.executable,
            str(examples() / program.script),
            f"--iterations={iterations}",
            f"--step-seconds-min={ITERATION_S}",
            "--checkpoint-every=20",
            f"--seed={seed}",
        ],
        "env": dict(ONE_THREAD),
        "checkpoint_period_s": 20 * ITERATION_S,
        "preemption": {"signal": "SIGUSR1", "grace_s": 5.0},
        "labels": {"demo": "true"},
    }


ONE_THREAD: Mapping[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def examples() -> Path:
    """The example programs."""
    return packaged_folder("examples")
