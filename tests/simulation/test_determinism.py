"""Same input and seed, same bytes: in one process, and in processes with other hash seeds."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from policies.model.cluster import Cluster, Server
from policies.registry import BUILT_IN, make_policy
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.generate import generate
from tests.simulation.test_swarm import swarm

ROOT = Path(__file__).parents[2]
CLUSTER = Cluster("c", tuple(Server(f"s{index}", 8) for index in range(4)))


def fingerprint(seed: int) -> str:
    """A hash over the outcomes of every policy on a generated workload, one of them on shared NICs too, and over a storm."""
    digest = hashlib.sha256()
    for name, network in [*((name, "reserved") for name in sorted(BUILT_IN)), ("asrpt", "contended")]:
        workload = generate(seed, 60)
        crowded = replace(
            workload, jobs=tuple(replace(job, submit_time_s=job.submit_time_s / 40) for job in workload.jobs)
        )
        options = SimulationOptions(seed=seed, skip_invalid=True, network=network)
        simulation = run(crowded, CLUSTER, make_policy(name), "noisy:0.5", options)
        digest.update(repr(simulation.outcomes).encode())
        digest.update(repr(replace(simulation.result, wall_s=0.0)).encode())
    digest.update(repr(swarm(seed, "asrpt").log.events).encode())
    return digest.hexdigest()


def test_another_seed_is_another_story() -> None:
    assert fingerprint(1) != fingerprint(2)


@pytest.mark.slow
def test_other_processes_tell_the_same_story() -> None:
    told = {_told_with(hash_seed) for hash_seed in ("0", "4242")}
    assert told == {fingerprint(1)}


def _told_with(hash_seed: str) -> str:
    program = "from tests.simulation.test_determinism import fingerprint; print(fingerprint(1))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
