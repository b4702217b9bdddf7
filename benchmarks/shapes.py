"""Compares a policy with others on many small clusters, each with a workload of another shape, and prints where it is worst.

python -m benchmarks.shapes [--cases 240] [--policy asrpt] [--against asrpt:fill=first_fit,srtf,sjf,easy,las,srsf,gittins]
        [--predictor oracle] [--restart-s 60] [--worst 5] [--gpu-types]

A case draws from its number: 4 to 128 GPUs on 1 to 16 servers, sizes of gangs, run times, the load, bursts, and whether jobs
communicate. 600 jobs each. With ``--gpu-types`` there are at least two servers, of two GPU types: some jobs take either, the
others name one that can hold them. Printed are ratios of mean JCT and of mean slowdown: below 1, the policy is better.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.workloads import INTRA_BYTES_S, with_models
from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.sim.experiment import SimulationOptions, run
from service.sim.results import Result
from service.sim.workloads.model import Workload, WorkloadJob

JOBS = 600
NIC_BYTES_S = 12.5e9
RUN_S_MIN, RUN_S_MAX = 5.0, 400_000.0

GANGS: Mapping[str, Mapping[int, float]] = {
    "single GPUs": {1: 1},
    "powers of two": {1: 4, 2: 3, 4: 2, 8: 1},
    "few wide": {1: 8, 8: 1, 16: 1},
    "odd": {1: 2, 3: 2, 5: 1, 6: 1},
    "2 and 4": {2: 1, 4: 1},
    "4 and 8": {4: 1, 8: 1},
    "up to 32": {1: 6, 2: 3, 4: 3, 8: 2, 16: 1, 32: 1},
}
"""Gangs and how frequent they are; those that are larger than the cluster do not occur."""

RUN_TIMES: Mapping[str, Callable[[random.Random, int], float]] = {
    "exponential": lambda dice, gpus: dice.expovariate(1 / 3_600),
    "log-normal": lambda dice, gpus: dice.lognormvariate(6.5, 1.8),
    "minutes or hours": lambda dice, gpus: dice.expovariate(1 / (120 if dice.random() < 0.8 else 20_000)),
    "equal": lambda dice, gpus: dice.uniform(3_600, 3_780),
    "wide ones long": lambda dice, gpus: dice.expovariate(1 / (300 * gpus)),
    "wide ones short": lambda dice, gpus: dice.expovariate(gpus / 7_200),
}
"""Seconds of a job of so many GPUs."""


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, its workload, and what was drawn for them."""

    title: str
    cluster: Cluster
    workload: Workload


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=240, help="the cases 0, 1, ...")
    parser.add_argument("--policy", default="asrpt", help="name, and options as in asrpt:fill=first_fit")
    parser.add_argument(
        "--against", default="asrpt:fill=first_fit,srtf,sjf,easy,las,srsf,gittins", help="other policies"
    )
    parser.add_argument("--predictor", default="oracle", help="as of sooner sim run")
    parser.add_argument("--restart-s", type=float, default=60.0, help="cost of a restart")
    parser.add_argument("--worst", type=int, default=5, help="cases to print where the others are furthest ahead")
    parser.add_argument("--gpu-types", action="store_true", help="clusters of two GPU types")
    arguments = parser.parse_args()
    options = SimulationOptions(restart_s=arguments.restart_s)

    others = arguments.against.split(",")
    found = []
    for number in range(arguments.cases):
        case = of_two_types(draw(number), number) if arguments.gpu_types else draw(number)
        results = {name: _simulate(case, name, arguments.predictor, options) for name in (arguments.policy, *others)}
        found.append((case, results))
    print(
        f"| {arguments.policy} over | mean JCT | best | worst | slowdown | best | worst |",
        "|---|" + "---|" * 6,
        sep="\n",
    )
    for other in others:
        pairs = [(results[arguments.policy], results[other]) for _, results in found]
        jct = _summary([mine.mean_jct_s / theirs.mean_jct_s for mine, theirs in pairs])
        slowdown = _summary([mine.mean_slowdown / theirs.mean_slowdown for mine, theirs in pairs])
        print(f"| {other} | {jct} | {slowdown} |")
    print(f"\n| case | {arguments.policy} over the best other | which |", "|---|---|---|", sep="\n")
    ranked = sorted(((_over_best(results, arguments.policy), case.title) for case, results in found), reverse=True)
    for (ratio, other), title in ranked[: arguments.worst]:
        print(f"| {title} | {ratio:.2f} | {other} |")


def draw(number: int) -> Case:
    """The case of this number."""
    dice = random.Random(number)
    servers, gpus = dice.choice((1, 2, 3, 4, 8, 16)), dice.choice((4, 8, 8))
    gangs, run_times = dice.choice(list(GANGS)), dice.choice(list(RUN_TIMES))
    load, burst, communicates = dice.choice((0.5, 0.8, 0.95, 1.1)), dice.choice((1, 1, 10)), dice.random() < 1 / 3
    shares = {size: share for size, share in GANGS[gangs].items() if size <= servers * gpus}
    rows = []
    for _ in range(JOBS):
        size = dice.choices(list(shares), list(shares.values()))[0]
        rows.append((size, min(max(RUN_TIMES[run_times](dice, size), RUN_S_MIN), RUN_S_MAX)))
    waits = [0.0 if index % burst else dice.expovariate(1.0) for index in range(JOBS)]
    unit_s = sum(size * run_s for size, run_s in rows) / (load * servers * gpus) / sum(waits)
    jobs, at_s = [], 0.0
    for index, (size, run_s) in enumerate(rows):
        at_s += waits[index] * unit_s
        jobs.append(WorkloadJob(str(index), round(at_s, 3), size, round(run_s, 3)))
    workload = Workload(str(number), tuple(jobs))
    title = f"{number}: {servers} x {gpus} GPUs, gangs {gangs}, times {run_times}, load {load:g}, bursts of {burst}"
    return Case(
        title + (", networks" if communicates else ""),
        Cluster("shapes", tuple(Server(f"s{n}", gpus, "V100", "", NIC_BYTES_S, INTRA_BYTES_S) for n in range(servers))),
        with_models(workload, number) if communicates else workload,
    )


def of_two_types(case: Case, number: int) -> Case:
    """The case with A100s on half or a quarter of the servers, and V100s on the others.

    Jobs come at the same load: a second server makes them come twice as fast.
    """
    dice = random.Random(f"types of {number}")
    servers = case.cluster.servers if len(case.cluster.servers) > 1 else case.cluster.servers * 2
    first = max(1, len(servers) // dice.choice((2, 4)))
    made = tuple(
        replace(server, name=f"s{index}", gpu_type="A100" if index < first else "V100")
        for index, server in enumerate(servers)
    )
    cluster, either = Cluster("shapes", made), dice.choice((0.0, 0.3, 0.7))
    by_type, faster = cluster.gpus_by_type, cluster.gpus / case.cluster.gpus
    most_gpus = max(by_type.values())
    jobs = []
    for job in case.workload.jobs:
        gpus = min(job.gpus, most_gpus)
        fitting = [name for name, held in by_type.items() if held >= gpus]
        named = dice.choices(fitting, [by_type[name] for name in fitting])[0]
        gpu_type = "" if dice.random() < either else named
        jobs.append(replace(job, gpus=gpus, gpu_type=gpu_type, submit_time_s=round(job.submit_time_s / faster, 3)))
    title = f"{case.title}; {by_type}, {either:.0%} take either"
    return Case(title, cluster, replace(case.workload, jobs=tuple(jobs)))


def _simulate(case: Case, policy: str, predictor: str, options: SimulationOptions) -> Result:
    name, *settings = policy.split(":")
    made = make_policy(name, dict(setting.split("=", 1) for setting in settings))
    return run(case.workload, case.cluster, made, predictor, options).result


def _summary(ratios: Sequence[float]) -> str:
    return f"{math.exp(fmean(math.log(ratio) for ratio in ratios)):.3f} | {min(ratios):.2f} | {max(ratios):.2f}"


def _over_best(results: Mapping[str, Result], policy: str) -> tuple[float, str]:
    best, name = min((result.mean_jct_s, name) for name, result in results.items() if name != policy)
    return results[policy].mean_jct_s / best, name


if __name__ == "__main__":
    main()
