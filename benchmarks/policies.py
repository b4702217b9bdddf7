"""Runs every policy over whole workloads, and prints that it finishes: jobs, CPU time, ratio to the lower bound, preemptions.

python -m benchmarks.policies --trace workload.csv [more.csv ...] [--servers 70 | --load 0.8] [--policies asrpt,las] [--first N]

One process at a time, each ended after ``--timeout-s``. Servers have eight GPUs; ``--load`` takes as many as make that load,
and what the largest gang needs. "asrpt never" is `asrpt` without preemption. Predictions are the oracle's.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.workloads import cluster_of, load_of, servers_for, with_models
from policies.registry import make_policy, policy_names
from service.sim.experiment import SimulationOptions, run
from service.sim.results import Result
from service.sim.workloads.table import read_workload

ALIASES = ("wcs_duration", "wcs_workload")
"""Other names of policies that are run already."""
VARIANTS: Mapping[str, tuple[str, Mapping[str, str]]] = {"asrpt never": ("asrpt", {"preemption": "never"})}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, nargs="+", required=True, help="workload tables")
    parser.add_argument("--first", type=int, help="rows of each table")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--servers", type=int, help="servers of eight GPUs")
    size.add_argument("--load", type=float, default=0.8, help="as many servers as make that load")
    parser.add_argument("--nic-gbps", type=float, help="give the jobs models by seed, and the servers such NICs")
    parser.add_argument("--policies", help="by name; all unless said otherwise")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="wall seconds after which a run is given up")
    arguments = parser.parse_args()

    cells = (
        "workload",
        "servers",
        "load",
        "policy",
        "jobs",
        "skipped",
        "CPU s",
        "jobs/CPU s",
        "ratio to bound",
        "preemptions",
    )
    print("| " + " | ".join(cells) + " |", "|---" * len(cells) + "|", sep="\n", flush=True)
    for trace in arguments.trace:
        workload = read_workload(trace, first=arguments.first)
        servers = arguments.servers or servers_for(workload, arguments.load)
        where = f"| {trace.stem} | {servers} | {load_of(workload, 8 * servers):.2f}"
        for label in _labels(arguments.policies):
            found = _measured((trace, arguments.first, servers, arguments.nic_gbps, label), arguments.timeout_s)
            print(f"{where} | {label} | {_cells(found)} |", flush=True)


def _labels(wanted: str | None) -> Iterator[str]:
    if wanted is not None:
        yield from wanted.split(",")
        return
    yield from VARIANTS
    yield from (name for name in policy_names() if name not in ALIASES)


def _measured(run_of: tuple[Path, int | None, int, float | None, str], timeout_s: float) -> tuple[float, Result] | None:
    """CPU seconds and the result, from a process of its own; None if it took too long or failed."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_simulate, args=(sender, *run_of))
    process.start()
    sender.close()
    found: tuple[float, Result] | None = None
    try:
        if receiver.poll(timeout_s):
            found = receiver.recv()
    except EOFError:
        print(f"{run_of[-1]} failed", file=sys.stderr)
    process.kill()
    process.join()
    return found


def _simulate(sender: Any, trace: Path, first: int | None, servers: int, nic_gbps: float | None, label: str) -> None:
    workload = read_workload(trace, first=first)
    if nic_gbps is not None:
        workload = with_models(workload, 0)
    name, options = VARIANTS.get(label, (label, {}))
    started_s = time.process_time()
    simulation = run(
        workload,
        cluster_of(servers, nic_gbps or 100.0),
        make_policy(name, options),
        "oracle",
        SimulationOptions(skip_invalid=True),
    )
    sender.send((time.process_time() - started_s, simulation.result))


def _cells(found: tuple[float, Result] | None) -> str:
    if found is None:
        return " | ".join(["not finished", *["-"] * 5])
    spent_s, result = found
    done = f"{result.finished:,}" if result.finished == result.jobs else f"{result.finished:,} of {result.jobs:,}"
    ratio = "-" if result.ratio_to_lower_bound is None else f"{result.ratio_to_lower_bound:.3f}"
    rates = (f"{spent_s:.1f}", f"{result.finished / spent_s:,.0f}")
    return " | ".join((done, str(result.skipped), *rates, ratio, f"{result.preemptions:,}"))


if __name__ == "__main__":
    main()
