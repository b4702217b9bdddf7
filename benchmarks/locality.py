"""Prints what it is worth to know, or to learn, how much jobs without a stage graph are slowed over servers and racks.

python -m benchmarks.locality [--trace workload.csv] [--first N] [--servers N] [--load L] [--seeds 0,1] [--policies asrpt,sjf]
python -m benchmarks.locality --profiles profiles.csv

Servers of eight GPUs, eight servers a rack. Each program's hidden slowdown is drawn from the seed (``--sensitivity`` of
``sooner sim run``). A table runs on as many servers as give the load; its rows without a name get a program, drawn with a
popularity of 1 / rank and 25 runs a program in the mean. Printed are mean completion times in seconds, what ``learnt`` and
``known`` gain over ``blind``, and how far ``learnt`` is from ``known`` (above 0: it is worse).

``--profiles`` prints what measured iterations say of slowdowns over servers instead: the deciles from which they are drawn, and
the mean logarithm, which is the prior of the learner. Rows: model, gpu_type, gpus, placement (GPUs of each server as
digits), local_bsz, step_s; of a T4 with 4 GPUs; each model weighs the same.
"""

import argparse
import csv
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from benchmarks.workloads import GPUS_A_SERVER, load_of, servers_for
from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.sim.draws import uniform
from service.sim.experiment import SimulationOptions, run
from service.sim.sensitivity import Sensitivity
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload

SERVERS_A_RACK = 8
RUNS_A_PROGRAM = 25
MODES = (Sensitivity.BLIND, Sensitivity.LEARNT, Sensitivity.KNOWN)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a workload table")
    parser.add_argument("--first", type=int, default=5000, help="take the first N rows, or generate so many jobs")
    parser.add_argument("--servers", type=int, default=40, help="servers of the generated workload")
    parser.add_argument("--load", type=float, default=0.95, help="work at the best placements over the cluster's GPUs")
    parser.add_argument("--seeds", default="0,1,2", help="seeds of the slowdowns, the programs and the generated jobs")
    parser.add_argument("--policies", default="asrpt", help="policies with their options")
    parser.add_argument("--profiles", type=Path, help="print the deciles of these measurements")
    arguments = parser.parse_args()
    if arguments.profiles is not None:
        print(profile_lines(arguments.profiles))
        return
    print(f"{'policy':28}{'seed':>5}{'jobs':>7}{'load':>6}{'blind':>10}{'learnt':>10}{'known':>10}", end="")
    print(f"{'learnt gains':>14}{'known gains':>13}{'off known':>11}")
    for label in arguments.policies.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            workload, cluster = setting(arguments.trace, arguments.first, arguments.servers, arguments.load, seed)
            jct_s = [mean_jct_s(workload, cluster, label, mode, seed) for mode in MODES]
            blind_s, learnt_s, known_s = jct_s
            print(f"{label:28}{seed:5}{len(workload.jobs):7,}{load_of(workload, cluster.gpus):6.2f}", end="")
            print("".join(f"{each:10,.0f}" for each in jct_s), end="")
            gains = 100.0 * (1.0 - learnt_s / blind_s), 100.0 * (1.0 - known_s / blind_s)
            print(f"{gains[0]:13.1f}%{gains[1]:12.1f}%{100.0 * (learnt_s / known_s - 1.0):10.1f}%", flush=True)


def mean_jct_s(workload: Workload, cluster: Cluster, label: str, mode: Sensitivity, seed: int) -> float:
    """The mean completion time under a policy, given as NAME or NAME:OPTION=VALUE."""
    name, *options = label.split(":")
    policy = make_policy(name, dict(option.split("=", 1) for option in options))
    options_of_run = SimulationOptions(skip_invalid=True, sensitivity=mode, seed=seed)
    return run(workload, cluster, policy, "oracle", options_of_run).result.mean_jct_s


def setting(trace: Path | None, first: int, servers: int, load: float, seed: int) -> tuple[Workload, Cluster]:
    """The workload, and a cluster on which it offers the load."""
    if trace is None:
        cluster = racks(servers)
        return generate(seed, first, gpus=cluster.gpus, load=load, communication=False), cluster
    table = read_workload(trace, first=first)
    programs = max(1, len(table.jobs) // RUNS_A_PROGRAM)
    jobs = tuple(job if job.name else replace(job, name=_program(seed, job.job_id, programs)) for job in table.jobs)
    return replace(table, jobs=jobs), racks(servers_for(table, load))


def racks(servers: int) -> Cluster:
    """Equal servers in racks."""
    rows = (Server(f"s{index:04d}", GPUS_A_SERVER, rack=f"r{index // SERVERS_A_RACK:03d}") for index in range(servers))
    return Cluster(f"{servers} servers in racks of {SERVERS_A_RACK}", tuple(rows))


def _program(seed: int, job: str, programs: int) -> str:
    """The k-th of these programs with a chance of about 1 / k."""
    return f"program-{int((programs + 1.0) ** uniform(seed, job, 'program')) - 1}"


def profile_lines(path: Path) -> str:
    """The deciles of the slowdown over several servers, and the mean of its logarithm."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row["placement"] and (row["gpu_type"], row["gpus"]) == ("t4", "4")
        ]
    alone_s = {(row["model"], row["local_bsz"]): float(row["step_s"]) for row in rows if len(row["placement"]) == 1}
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if len(row["placement"]) > 1 and (key := (row["model"], row["local_bsz"])) in alone_s:
            ratios[row["model"]].append(max(1.0, float(row["step_s"]) / alone_s[key]))
    weighted = sorted((ratio, 1.0 / len(each) / len(ratios)) for each in ratios.values() for ratio in each)
    mean_log = sum(weight * math.log(ratio) for ratio, weight in weighted)
    deciles, passed = [], 0.0
    for ratio, weight in weighted:
        passed += weight
        while len(deciles) <= 10 and passed >= len(deciles) / 10 - 1e-9:
            deciles.append(ratio)
    counted = f"{len(weighted)} placements of {len(ratios)} models"
    return f"{counted}\ndeciles   {' '.join(f'{each:.3f}' for each in deciles)}\nmean log  {mean_log:.3f}"


if __name__ == "__main__":
    main()
