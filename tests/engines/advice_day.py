"""A day of the emulated Slurm in minutes: recurring jobs that sleep, and what Slurm's commands answered meanwhile."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from service.slurm.cluster import Slurm
from service.slurm.jobs import SlurmJob
from service.slurm.nodes import SlurmNode
from tests.engines.slurm_cluster import GPUS, NODES, SlurmCluster

LOOK_EVERY_S: Final = 2.0


class Asked(NamedTuple):
    """A job of the day, submitted so many seconds after its start."""

    at_s: float
    user: str
    name: str
    nodes: int
    gpus_a_node: int
    seconds: float
    limit_min: int


class Look(NamedTuple):
    """What Slurm answered at one instant."""

    at_s: float
    nodes: Sequence[SlurmNode]
    jobs: Sequence[SlurmJob]


@dataclass(frozen=True, slots=True)
class Day:
    """All looks. ``started_s`` and ``users`` by the number of a job: Slurm runs all jobs as one user here."""

    looks: Sequence[Look]
    started_s: dict[int, float]


def jobs_of_a_day(seed: int, count: int, *, load: float = 0.95, users: int = 8) -> list[Asked]:
    """Each user has a few names with a typical length and size; every twentieth job fails early. Limits are padded."""
    random = np.random.default_rng(seed)
    shapes = [(1, 1), (1, 1), (1, 2), (1, 4), (2, 2), (2, 4)]
    kinds = [
        (
            f"user{user}",
            f"train{user}-{kind}",
            shapes[int(random.integers(len(shapes)))],
            float(np.clip(np.exp(random.normal(2.3, 0.7)), 3.0, 40.0)),
            int(random.choice([1, 2, 4])),
        )
        for user in range(users)
        for kind in range(int(random.integers(1, 4)))
    ]
    gpu_s = float(np.mean([nodes * gpus * seconds for _, _, (nodes, gpus), seconds, _ in kinds]))
    gap_s = gpu_s / (load * NODES * GPUS)
    found, at_s = [], 0.0
    for _ in range(count):
        at_s += float(random.exponential(gap_s))
        user, name, (nodes, gpus), typical_s, limit_min = kinds[int(random.integers(len(kinds)))]
        seconds = typical_s * float(np.exp(random.normal(0.0, 0.3)))
        if random.random() < 0.05:
            seconds = 1.0
        found.append(Asked(at_s, user, name, nodes, gpus, min(seconds, 58.0 * limit_min), limit_min))
    return found


@contextmanager
def scaled(cluster: SlurmCluster) -> Iterator[None]:
    """Slurm's backfill in the scale of the day: its usual resolution of a minute is longer than a job."""
    before = cluster.conf.read_text()
    cluster.conf.write_text(before.replace("bf_interval=2", "bf_interval=1,bf_resolution=1"))
    try:
        cluster.commands.run("scontrol", "reconfigure")
        assert "bf_resolution=1" in cluster.slurm.config()["SchedulerParameters"]
        yield
    finally:
        cluster.conf.write_text(before)
        cluster.commands.run("scontrol", "reconfigure")


def record(cluster: SlurmCluster, asked: Sequence[Asked]) -> Day:
    """Submit the jobs at their times, and look every two seconds until all have ended."""
    begin_s = time.time()
    looks: list[Look] = []
    left = list(reversed(asked))
    while left or any(not job.ended for job in looks[-1].jobs):
        now_s = time.time() - begin_s
        if left and left[-1].at_s <= now_s:
            _submit(cluster, left.pop())
        elif not looks or time.time() - looks[-1].at_s >= LOOK_EVERY_S:
            looks.append(Look(time.time(), cluster.slurm.nodes(), [_own(job) for job in cluster.slurm.jobs()]))
        else:
            time.sleep(0.02)
    started_s = {job.id: job.start_s for look in looks for job in look.jobs if job.start_s and job.state != "PENDING"}
    return Day(looks, started_s)


def _submit(cluster: SlurmCluster, job: Asked) -> None:
    cluster.commands.run(
        "sbatch", "--parsable", "--job-name", job.name, "--comment", job.user, "--nodes", str(job.nodes),
        "--gres", f"gpu:{job.gpus_a_node}", "--mem", "1000", "--time", str(job.limit_min), "--export", "ALL",
        "--output", "/dev/null", "--no-requeue", input=f"#!/bin/sh\nexec sleep {job.seconds:.2f}\n".encode(),
    )  # fmt: skip


def _own(job: SlurmJob) -> SlurmJob:
    """The job with its submitter as user: all are submitted by one."""
    return replace(job, user=job.comment)


class Recorded(Slurm):
    """Answers as Slurm did at an instant of the day; it cannot be written to."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Look | None = None

    def jobs(self, comment: str = "") -> list[SlurmJob]:
        assert self.look is not None
        return list(self.look.jobs)

    def nodes(self) -> list[SlurmNode]:
        assert self.look is not None
        return list(self.look.nodes)
