"""The program of :mod:`.test_sweep`: a sweep that is forked and interrupted where the command line says."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.base import Policy
from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.runtime.workers import best_method
from service.sim.drive import SimulationStuck
from service.sim.experiment import SimulationOptions
from service.sim.workloads.generate import generate
from service.simulations import runs
from service.simulations.course import Course
from service.simulations.runs import Finished, Plan, Setting
from service.simulations.sweep import Keeping, sweep

SETTING = Setting(
    generate(5, 60, gpus=16, load=0.9), Cluster("c", (Server("s1", 8), Server("s2", 8))), SimulationOptions()
)


def plans(root: Path) -> list[Plan]:
    """Eight runs below this folder."""
    return [
        Plan(name, name, {}, "noisy:1", root / name / f"seed-{seed}", seed=seed)
        for name in ("fifo", "las", "sjf", "asrpt")
        for seed in (1, 2)
    ]


def main() -> None:
    """``what folder``: make the runs, and print what was taken over and what became of the others."""
    what, root = sys.argv[1], Path(sys.argv[2])

    def policy(name: str, options: Mapping[str, str]) -> Policy[Any]:
        if what == "worker" and name == "sjf":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stuck" and name == "sjf":
            raise SimulationStuck("it is stuck")
        return make_policy(name, options)

    # Forked workers have it too.
    runs.make_policy = policy  # type: ignore[assignment]

    def show(course: Course) -> None:
        if what == "parent" and course.made >= 3:
            os.kill(os.getpid(), signal.SIGKILL)

    found: list[int] = []
    outcomes = sweep(SETTING, plans(root), 2, Keeping(root), show, found.append)
    print(
        json.dumps(
            {
                "method": best_method(),
                "taken_over": found,
                "runs": [
                    each.result.mean_jct_s if isinstance(each, Finished) else str(each.error) for each in outcomes
                ],
            }
        )
    )


if __name__ == "__main__":
    main()
