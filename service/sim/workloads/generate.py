"""A seeded generator of synthetic workloads: recurring training programs of a few users, labelled synthetic.

It stands in where no trace may be shipped (the demo's history, examples, tests). Its shape follows what public studies of GPU
clusters agree on: few programs and users account for most runs, most runs of a program fall near its median, and a stubborn
share is off by more than a factor of two (early stops, longer trainings). Any number it produces is about the
generator, never about a real cluster.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from service.sim.draws import normal, uniform
from service.sim.workloads.model import Workload, WorkloadJob

LABELS = {"synthetic": "true"}
JOBS_MAX = 10_000_000
"""More rows than any public trace; memory is about 300 bytes a row."""

_OFF_SHARE = 0.12
"""Share of runs off by more than a factor of two; studies report 8 to 25%."""
_OFF_FACTORS = ((0.02, 0.45, "failed"), (0.02, 0.45, "killed"), (2.2, 8.0, "succeeded"))
_ITERATION_NOISE = 0.03
"""Log-normal spread of an iteration's time between runs of one program."""
_POPULARITY_EXPONENT = 1.1
_GPU_SIZES = ((1, 0.55), (2, 0.72), (4, 0.86), (8, 0.96), (16, 1.0))
"""Gang sizes with their cumulative share of programs: mostly small, as in the published traces."""
_PROGRAMS = ("resnet", "bert-finetune", "gpt-pretrain", "detector", "speech", "ranking", "segmentation", "diffusion")
_PROJECTS = ("vision", "nlp", "nlp", "vision", "audio", "ads", "vision", "generative")


@dataclass(frozen=True, slots=True)
class Family:
    """A recurring program: its runs share user, project, name and gang size.

    Iterations are log-normal around ``iterations_median`` with spread ``sigma``. ``walltime_s`` is the limit that its user
    asks for (None: none), ``declared_iterations`` what the user declares at each submission.
    """

    user: str
    project: str
    name: str
    gpus: int
    iterations_median: float
    iteration_s: float
    sigma: float = 0.2
    walltime_s: float | None = None
    declared_iterations: int | None = None

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of a median run."""
        return self.gpus * self.iterations_median * self.iteration_s


def make_families(seed: int, count: int = 40, users: int = 12) -> tuple[Family, ...]:
    """``count`` programs of ``users`` users; the first users own the most programs."""
    owner = _Popularity(users)
    return tuple(_family(seed, index, owner) for index in range(count))


def _family(seed: int, index: int, owner: "_Popularity") -> Family:
    def draw(purpose: str) -> float:
        return uniform(seed, str(index), f"family {purpose}")

    program = int(draw("program") * len(_PROGRAMS))
    gpus = next(size for size, share in _GPU_SIZES if draw("gpus") <= share)
    iterations = round(math.exp(normal(seed, str(index), "family iterations") * 1.2 + math.log(4000.0)))
    iteration_s = 0.05 * math.exp(draw("iteration") * math.log(20.0))
    median_s = iterations * iteration_s
    return Family(
        user=f"user{owner.pick(draw('user')) + 1:02d}",
        project=_PROJECTS[program],
        name=f"{_PROGRAMS[program]}-{index + 1:03d}",
        gpus=gpus,
        iterations_median=max(20.0, float(iterations)),
        iteration_s=iteration_s,
        sigma=0.05 + 0.3 * draw("sigma"),
        walltime_s=3600.0 * math.ceil(3.0 * median_s / 3600.0) if draw("walltime") < 0.5 else None,
        declared_iterations=_declared(iterations, draw("declares")),
    )


def _declared(iterations: int, draw: float) -> int | None:
    """Half of the users declare nothing, a third is honest, the rest pads by a factor of three."""
    if draw < 0.5:
        return None
    return iterations if draw < 0.83 else 3 * iterations


def generate(
    seed: int, jobs: int, families: Sequence[Family] | None = None, *, gpus: int = 64, load: float = 0.7
) -> Workload:
    """``jobs`` runs of the families (earlier ones are run more often), Poisson arrivals at ``load`` of ``gpus`` GPUs.

    Equal arguments give an equal workload. Raises ValueError for arguments out of range.
    """
    if not 0 <= jobs <= JOBS_MAX:
        raise ValueError(f"jobs must be from 0 to {JOBS_MAX}")
    if gpus < 1 or not 0.0 < load <= 10.0:
        raise ValueError("gpus must be at least 1, load above 0 and at most 10")
    families = tuple(families) if families is not None else make_families(seed)
    if not families:
        raise ValueError("there must be at least one family")
    popularity = _Popularity(len(families))
    mean_gpu_s = sum(share * family.gpu_s for share, family in zip(popularity.shares, families, strict=True))
    interarrival_s = mean_gpu_s / (load * gpus)
    rows: list[WorkloadJob] = []
    now_s = 0.0
    for index in range(jobs):
        name = str(index)
        if index:
            now_s += -math.log(uniform(seed, name, "arrival")) * interarrival_s
        family = families[popularity.pick(uniform(seed, name, "choice"))]
        rows.append(_run(seed, index, round(now_s, 3), family))
    return Workload(f"synthetic, seed {seed}", tuple(rows), labels=LABELS)


def _run(seed: int, index: int, submit_time_s: float, family: Family) -> WorkloadJob:
    name = str(index)
    factor = math.exp(family.sigma * normal(seed, name, "iterations"))
    final_state = "succeeded"
    off = uniform(seed, name, "off")
    if off < _OFF_SHARE:
        least, most, final_state = _OFF_FACTORS[int(off / _OFF_SHARE * len(_OFF_FACTORS))]
        factor = least * (most / least) ** uniform(seed, name, "factor")
    iterations = max(1, round(family.iterations_median * factor))
    iteration_s = family.iteration_s * math.exp(_ITERATION_NOISE * normal(seed, name, "speed"))
    if family.walltime_s is not None and iterations * iteration_s > family.walltime_s:
        iterations, final_state = max(1, int(family.walltime_s / iteration_s)), "killed"
    return WorkloadJob(
        job_id=f"synthetic-{index + 1:06d}",
        submit_time_s=submit_time_s,
        gpus=family.gpus,
        duration_s=round(iterations * iteration_s, 6),
        user=family.user,
        project=family.project,
        name=family.name,
        iterations=iterations,
        declared_iterations=family.declared_iterations,
        walltime_s=family.walltime_s,
        final_state=final_state,
    )


class _Popularity:
    """Zipf-like shares: the k-th of ``count`` is chosen in proportion to k^-1.1."""

    def __init__(self, count: int) -> None:
        weights = [(rank + 1) ** -_POPULARITY_EXPONENT for rank in range(count)]
        total = sum(weights)
        self.shares = [weight / total for weight in weights]
        self._cumulative = list(accumulate(self.shares))

    def pick(self, draw: float) -> int:
        """The choice that a number in (0, 1) stands for."""
        return min(bisect_right(self._cumulative, draw), len(self._cumulative) - 1)
