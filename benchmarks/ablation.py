"""Prints where A-SRPT wins and where it does not: six settings of load and network, and what each of its parts is worth.

python -m benchmarks.ablation [--quick] [--parts orders,placement,network] [--trace workload.csv] [--markdown FILE]

"orders": every policy has the same predictions, the same placement and the same delay; `asrpt` without preemption against
those that do not preempt, and with it against those that do. The ratio is the policy's mean JCT over that of A-SRPT in the
same setting, the geometric mean over seeds; above 1 A-SRPT is better. "placement": Heavy-Edge against any free GPUs.
"network": networks to train at 25 Gb/s against the same jobs without communication. Workloads are generated, with models,
on 16 servers of 8 GPUs; a trace, whose jobs are given models by seed, runs on as many servers as make the load.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean

from benchmarks.workloads import cluster_of, servers_for, with_models
from service.cli.sim import run_all
from service.sim.experiment import SimulationOptions
from service.sim.results import Result
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload
from service.simulations.runs import Plan, Setting

SERVERS = 16
LOADS = (0.8, 1.3, 2.0)
NICS_GBPS = (25.0, 200.0)
PROGRAMS = 60
CLEAR_WIN, LOSS = 1.05, 0.90
"""A clear win is a mean JCT that the other exceeds by 5%, a loss one that it undercuts by 10%."""

Policies = Mapping[str, tuple[str, Mapping[str, str]]]
"""Label: (name, options). The first of a group is A-SRPT."""

GROUPS: Mapping[str, Policies] = {
    "without preemption": {
        "asrpt never": ("asrpt", {"preemption": "never"}),
        "fifo": ("fifo", {}),
        "fifo_backfill": ("fifo_backfill", {}),
        "easy": ("easy", {}),
        "sjf": ("sjf", {}),
        "sjf strict": ("sjf", {"queue": "strict"}),
        "swf": ("swf", {}),
        "swf strict": ("swf", {"queue": "strict"}),
    },
    "with preemption": {
        "asrpt guided": ("asrpt", {"preemption": "guided"}),
        "srsf": ("srsf", {}),
        "gittins": ("gittins", {}),
        "las": ("las", {}),
    },
}

PLACEMENTS: Policies = {
    f"{label}, {delay}": (name, {**options, **more})
    for label, name, options in (
        ("asrpt guided", "asrpt", {"preemption": "guided"}),
        ("asrpt never", "asrpt", {"preemption": "never"}),
        ("sjf", "sjf", {}),
    )
    for delay, more in (("delay", {}), ("no delay", {"delay_factor": "0"}))
}


@dataclass(frozen=True, slots=True)
class Case:
    """A workload with models, and the servers that it runs on."""

    workload: Workload
    servers: int


def main() -> None:
    """Run the parts and print, and perhaps write, their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs, one seed: two minutes")
    parser.add_argument("--jobs", type=int, default=1500, help="jobs of each generated workload")
    parser.add_argument("--seeds", default="1,2,3", help="of the generated workloads")
    parser.add_argument("--trace", type=Path, help="a workload table to run as well, its jobs given models by seed")
    parser.add_argument("--first", type=int, default=3000, help="rows of the trace")
    parser.add_argument("--predictor", default="oracle", help="of all policies")
    parser.add_argument("--parts", default="orders,placement,network")
    parser.add_argument("--workers", type=int, help="processes; a core each unless said otherwise")
    parser.add_argument("--markdown", type=Path, help="write the tables there as well")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.jobs, arguments.first, arguments.seeds = arguments.jobs // 5, arguments.first // 5, "1"
    started_s = time.perf_counter()
    parts = {"orders": orders, "placement": placement, "network": network}
    text = "\n".join(line for part in arguments.parts.split(",") for line in parts[part](arguments))
    if arguments.markdown is not None:
        arguments.markdown.write_text(text + "\n")
    print(f"\n{time.perf_counter() - started_s:.0f} s", file=sys.stderr)


def cases(arguments: argparse.Namespace, load: float) -> dict[str, list[Case]]:
    """Generated ones by seed, and the trace if there is one: by the name of their row."""
    gpus = cluster_of(SERVERS, 1).gpus
    found = {
        "generated": [
            Case(generate(int(seed), arguments.jobs, gpus=gpus, load=load, programs=PROGRAMS), SERVERS)
            for seed in arguments.seeds.split(",")
        ]
    }
    if arguments.trace is not None:
        workload = with_models(read_workload(arguments.trace, first=arguments.first), 0)
        found[arguments.trace.stem] = [Case(workload, servers_for(workload, load))]
    return found


def orders(arguments: argparse.Namespace) -> Iterator[str]:
    """Six settings, two groups of policies."""
    for group, policies in GROUPS.items():
        ours, *others = policies
        yield from _say("", f"Mean JCT over that of {ours}, {group}", "")
        head = ["workload", "load", "NIC Gb/s", f"{ours}: ratio to bound", *others, "clear wins", "losses"]
        if group == "with preemption":
            head += ["preemptions a job", "of srsf"]
        yield from _say(_row(head), _row(["---"] * len(head)))
        for load in LOADS:
            for name, each in cases(arguments, load).items():
                for nic_gbps in NICS_GBPS:
                    runs = [_run(case, policies, nic_gbps, arguments) for case in each]
                    yield from _say(_row([name, f"{load}", f"{nic_gbps:g}", *_compared(runs, ours, others)]))


def _compared(runs: Sequence[Mapping[str, Result]], ours: str, others: Sequence[str]) -> list[str]:
    """The cells of one setting."""
    ratios = {label: _mean([run[label].mean_jct_s / run[ours].mean_jct_s for run in runs]) for label in others}
    bound = _mean([run[ours].ratio_to_lower_bound or 1.0 for run in runs])
    wins = sum(ratio >= CLEAR_WIN for ratio in ratios.values())
    losses = [label for label, ratio in ratios.items() if ratio <= LOSS]
    cells = [
        f"{bound:.2f}",
        *(f"{ratio:.2f}" for ratio in ratios.values()),
        f"{wins} of {len(others)}",
        ", ".join(losses) or "none",
    ]
    if "srsf" in others:
        cells += [f"{fmean(run[label].preemptions / run[label].jobs for run in runs):.2f}" for label in (ours, "srsf")]
    return cells


def placement(arguments: argparse.Namespace) -> Iterator[str]:
    """Heavy-Edge against any free GPUs at 25 Gb/s, with the consolidation delay and without."""
    random = {label: (name, {**options, "placement": "random"}) for label, (name, options) in PLACEMENTS.items()}
    yield from _say("", "Mean JCT under Heavy-Edge over that under random placement, 25 Gb/s", "")
    yield from _say(_row(["workload", "load", *PLACEMENTS]), _row(["---"] * (len(PLACEMENTS) + 2)))
    for load in LOADS:
        for name, each in cases(arguments, load).items():
            pairs = [tuple(_run(case, plans, 25.0, arguments) for plans in (PLACEMENTS, random)) for case in each]
            ratios = [
                _mean([near[label].mean_jct_s / far[label].mean_jct_s for near, far in pairs]) for label in PLACEMENTS
            ]
            yield from _say(_row([name, f"{load}", *(f"{ratio:.2f}" for ratio in ratios)]))


def network(arguments: argparse.Namespace) -> Iterator[str]:
    """What communication costs `asrpt guided`: with models at 25 Gb/s over the same jobs without."""
    guided: Policies = {"asrpt guided": GROUPS["with preemption"]["asrpt guided"]}
    yield from _say("", "Mean JCT of asrpt guided with models at 25 Gb/s over that without communication", "")
    yield from _say(_row(["workload", "load", "ratio"]), _row(["---"] * 3))
    for load in LOADS:
        for name, each in cases(arguments, load).items():
            ratios = []
            for case in each:
                silent = replace(case.workload, jobs=tuple(replace(job, model="") for job in case.workload.jobs))
                told, untold = (
                    _run(either, guided, 25.0, arguments)["asrpt guided"].mean_jct_s
                    for either in (case, replace(case, workload=silent))
                )
                ratios.append(told / untold)
            yield from _say(_row([name, f"{load}", f"{_mean(ratios):.3f}"]))


def _run(case: Case, policies: Policies, nic_gbps: float, arguments: argparse.Namespace) -> dict[str, Result]:
    setting = Setting(case.workload, cluster_of(case.servers, nic_gbps), SimulationOptions(skip_invalid=True))
    plans = [Plan(label, name, options, arguments.predictor) for label, (name, options) in policies.items()]
    return {done.result.policy: done.result for done in run_all(setting, plans, arguments.workers)}


def _mean(ratios: Sequence[float]) -> float:
    return exp(fmean(map(log, ratios)))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _say(*lines: str) -> Iterator[str]:
    """Print at once, for those who wait, and hand on for the file."""
    for line in lines:
        print(line, flush=True)
        yield line


if __name__ == "__main__":
    main()
