"""Seeded synthetic users and their training programs.

The shape follows public studies of GPU clusters: most jobs are runs of a program that recurs often, the rest are programs that
run a few times at most; few users submit most jobs; durations are bimodal (debugging in minutes, training in hours);
programs drift as their owners change data and settings, and new ones replace those that end.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, count

from policies.catalogue import pipeline
from policies.model.cluster import Cluster, Server
from policies.throughput import iteration_times
from service.sim.draws import normal, uniform

RECURRING_SHARE = 0.66
"""Share of jobs drawn from recurring programs. Some of these have fewer than five runs when the workload ends, so that the
published 65% are in groups of five or more.
"""
RARE_RUNS = ((1, 0.60), (2, 0.80), (3, 0.92), (4, 1.0))
"""The number of runs of a program that does not recur, with cumulative shares."""
ZIPF_EXPONENT = 1.1
DRIFT_SHARE = 0.04
"""Share of runs before which the owner changed the program permanently."""
DRIFT_SIGMA = 0.35
"""Log-normal size of such a change."""
_LIFETIME_RUNS_MIN = 8
_LIFETIME_RUNS_MEDIAN = 40.0

_MEDIANS_S = (180.0, 10_800.0)
"""The two modes of durations: minutes and hours."""
_MEDIAN_SIGMA = 0.6
"""Log-normal spread of programs around their mode."""
_GPU_SIZES = ((1, 0.52), (2, 0.68), (4, 0.83), (8, 0.95), (16, 0.985), (32, 1.0))
"""Gang sizes with their cumulative share of programs: mostly small, as in the published traces."""
_PROGRAMS = (
    ("classifier", "vision", "resnet50", 1),
    ("detector", "vision", "vgg19", 1),
    ("segmentation", "vision", "inception_v3", 1),
    ("vit-pretrain", "vision", "vit_l16", 1),
    ("bert-finetune", "nlp", "bert_large", 1),
    ("gpt-medium", "nlp", "gpt2_medium", 1),
    ("gpt-pretrain", "nlp", "gpt2_xl", 4),
    ("mixture", "generative", "moe_mixtral_8x7b", 32),
)
"""Program, project, model of the catalogue, and the smallest gang with about enough memory for its training state."""


@dataclass(frozen=True, slots=True)
class Family:
    """A recurring program: its runs share user, project, name and gang size.

    Iterations are log-normal around ``iterations_median`` with spread ``sigma``. ``walltime_s`` is the requested
    limit (None: none), ``declared_iterations`` the declared total of each submission, ``model`` its model in the catalogue
    ("": no communication).
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
    model: str = ""

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of a median run."""
        return self.gpus * self.iterations_median * self.iteration_s


class Zipf:
    """Shares of ``many`` choices: the k-th is chosen in proportion to k^-1.1."""

    def __init__(self, many: int) -> None:
        weights = [(rank + 1) ** -ZIPF_EXPONENT for rank in range(many)]
        total = sum(weights)
        self.shares = [weight / total for weight in weights]
        self._cumulative = list(accumulate(self.shares))

    def pick(self, draw: float) -> int:
        """The choice for a number in (0, 1)."""
        return min(bisect_right(self._cumulative, draw), len(self._cumulative) - 1)


def make_families(seed: int, programs: int = 40, users: int = 12, *, gpus_max: int = 16) -> tuple[Family, ...]:
    """``programs`` programs of ``users`` users with gangs of at most ``gpus_max``; the first users own the most."""
    owner = Zipf(users)
    return tuple(
        make_family(seed, index, owner.pick(uniform(seed, str(index), "family user")), index % 2, gpus_max)
        for index in range(programs)
    )


def make_family(seed: int, index: int, user: int, mode: int, gpus_max: int) -> Family:
    """The ``index``-th program of all, owned by the ``user``-th user; ``mode`` 0: minutes, 1: hours."""

    def draw(purpose: str) -> float:
        return uniform(seed, str(index), f"family {purpose}")

    gpus = min(gpus_max, next(size for size, share in _GPU_SIZES if draw("gpus") <= share))
    fitting = [program for program in _PROGRAMS if program[3] <= gpus]
    name, project, model, _ = fitting[int(draw("program") * len(fitting))]
    iteration_s = nominal_iteration_s(model, gpus)
    wished_s = _MEDIANS_S[mode] * math.exp(_MEDIAN_SIGMA * normal(seed, str(index), "family duration"))
    iterations = max(3, round(wished_s / iteration_s))
    median_s = iterations * iteration_s
    return Family(
        user=f"user{user + 1:02d}",
        project=project,
        name=f"{name}-{index + 1:03d}",
        gpus=gpus,
        iterations_median=float(iterations),
        iteration_s=iteration_s,
        sigma=0.05 + 0.3 * draw("sigma"),
        walltime_s=3600.0 * math.ceil(3.0 * median_s / 3600.0) if draw("walltime") < 0.5 else None,
        declared_iterations=_declared(iterations, draw("declares")),
        model=model,
    )


def _declared(iterations: int, draw: float) -> int | None:
    """Half of the programs declare nothing, a third the true total, the rest three times that."""
    if draw < 0.5:
        return None
    return iterations if draw < 0.83 else 3 * iterations


@lru_cache(maxsize=1024)
def nominal_iteration_s(model: str, gpus: int) -> float:
    """Seconds of an iteration in the model's usual parallelism at its best placement on servers of eight V100 GPUs."""
    graph, parallelism = pipeline(model, gpus)
    cluster = Cluster("nominal", tuple(Server(f"s{index}", 8) for index in range(-(-gpus // 8))))
    return iteration_times(graph, parallelism, cluster, None).min_s


@dataclass(slots=True)
class _Program:
    """A family in use. ``log_level`` is its drift, ``runs_left`` the number of runs until another replaces it."""

    family: Family
    mode: int
    runs_left: int
    log_level: float = 0.0


class Population:
    """Users, their recurring programs and the rare ones. Equal arguments and calls give equal programs."""

    def __init__(self, seed: int, programs: int, users: int, gpus_max: int) -> None:
        self._seed = seed
        self._gpus_max = gpus_max
        self._numbers = count()
        self._users = Zipf(users)
        slots = _slots(programs, self._users.shares)
        self._choice = {many: Zipf(many) for many in {*slots} if many}
        self._recurring = [
            [self._recurring_program(user, (user + slot) % 2) for slot in range(many)]
            for user, many in enumerate(slots)
        ]
        self._rare: list[list[tuple[Family, int]]] = [[] for _ in range(users)]

    def submit(self, index: int) -> tuple[Family, float]:
        """The program of the ``index``-th job, and the factor by which it has drifted. Call with 0, 1, 2, ..."""
        user = self._users.pick(self._draw(index, "user"))
        mine = self._recurring[user]
        if not mine or self._draw(index, "kind") >= RECURRING_SHARE:
            return self._rare_run(index, user), 1.0
        slot = self._choice[len(mine)].pick(self._draw(index, "choice"))
        program = mine[slot]
        if self._draw(index, "drift") < DRIFT_SHARE:
            program.log_level += DRIFT_SIGMA * normal(self._seed, str(index), "drift size")
        program.runs_left -= 1
        if program.runs_left == 0:
            mine[slot] = self._recurring_program(user, program.mode)
        return program.family, math.exp(program.log_level)

    def _recurring_program(self, user: int, mode: int) -> _Program:
        number = next(self._numbers)
        many = _LIFETIME_RUNS_MEDIAN * math.exp(normal(self._seed, str(number), "family lifetime"))
        family = make_family(self._seed, number, user, mode, self._gpus_max)
        return _Program(family, mode, _LIFETIME_RUNS_MIN + round(many))

    def _rare_run(self, index: int, user: int) -> Family:
        """A run of a rare program with runs left, or of a new one."""
        pending = self._rare[user]
        if pending and self._draw(index, "again") < 0.5:
            chosen = int(self._draw(index, "which") * len(pending))
            family, left = pending[chosen]
            if left > 1:
                pending[chosen] = (family, left - 1)
            else:
                pending[chosen] = pending[-1]
                pending.pop()
            return family
        number = next(self._numbers)
        mode = int(self._draw(index, "mode") < 0.4)
        family = make_family(self._seed, number, user, mode, self._gpus_max)
        draw = self._draw(index, "runs")
        runs = next(many for many, share in RARE_RUNS if draw <= share)
        if runs > 1:
            pending.append((family, runs - 1))
        return family

    def _draw(self, index: int, purpose: str) -> float:
        return uniform(self._seed, str(index), purpose)


def _slots(programs: int, shares: Sequence[float]) -> list[int]:
    """The number of recurring programs of each user: one each as far as possible, the rest by the users' shares."""
    slots = [int(user < programs) for user in range(len(shares))]
    for _ in range(programs - sum(slots)):
        user = max(range(len(shares)), key=lambda user: shares[user] / (slots[user] + 1))
        slots[user] += 1
    return slots


def submissions(seed: int, jobs: int, programs: int, users: int, gpus_max: int) -> Iterator[tuple[Family, float]]:
    """The first ``jobs`` submissions of such a population."""
    population = Population(seed, programs, users, gpus_max)
    return (population.submit(index) for index in range(jobs))
