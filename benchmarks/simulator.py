"""Prints how many jobs a CPU second the simulator does, beside a calibration loop timed in the same run.

python -m benchmarks.simulator [--jobs N] [--policies sjf,asrpt] [--trace workload.csv --servers N] [--profile]

Generated workloads at a load of 0.9, with and without communication, on 70 servers of 8 GPUs; a workload table can be added
(``sooner workload import`` makes one of a trace). Time is CPU time of this process and covers preparing, simulating and
summarising, not reading. "units a job" is the cost in calibration units, which two machines can compare.

python -m benchmarks.simulator --command --trace workload.csv [--servers N] [--policies sjf,asrpt:preemption=guided]

The whole command ``sooner sim run --json`` instead, in a process of its own: start, reading and all. Printed are jobs per
second of its user CPU time and its peak memory.

With ``PYTHONPATH=build/compiled:. python -P -m benchmarks.simulator`` the modules that ``make compile`` made run instead.
"""

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.calibration import calibrate, line
from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.runtime.compiled import compiled
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of each generated workload")
    parser.add_argument("--servers", type=int, default=70, help="servers of eight GPUs")
    parser.add_argument("--load", type=float, default=0.9, help="work offered by the generated workloads")
    parser.add_argument("--policies", default="sjf,asrpt", help="policies by name")
    parser.add_argument("--trace", type=Path, help="a workload table to run as well")
    parser.add_argument("--first", type=int, help="take the first N rows of the table")
    parser.add_argument("--command", action="store_true", help="time the whole command on the table given by --trace")
    parser.add_argument(
        "--profile", action="store_true", help="print the hot spots of each run (times are then too long)"
    )
    arguments = parser.parse_args()

    if arguments.command:
        if arguments.trace is None:
            parser.error("--command needs --trace")
        _commands(arguments)
        return
    cluster = Cluster("benchmark", tuple(Server(f"s{index}", 8) for index in range(arguments.servers)))
    unit_s = calibrate()
    print(line(unit_s))
    print(
        f"{'workload':24}{'policy':10}{'jobs':>9}{'CPU s':>9}{'jobs/CPU s':>12}{'units a job':>13}{'of the first':>14}"
    )
    for name, workload in _workloads(arguments, cluster):
        first_s: float | None = None
        for policy in arguments.policies.split(","):
            spent_s, jobs = _measure(workload, cluster, policy, arguments.profile)
            first_s = first_s or spent_s
            rates = f"{jobs / spent_s:12,.0f}{spent_s / unit_s / jobs:13.5f}{spent_s / first_s:14.2f}"
            print(f"{name:24}{policy:10}{jobs:9,}{spent_s:9.2f}{rates}", flush=True)


def _commands(arguments: argparse.Namespace) -> None:
    unit_s = calibrate()
    print(line(unit_s))
    print("compiled" if compiled() else "pure Python")
    print(f"{'policy':28}{'jobs':>10}{'user CPU s':>12}{'jobs/CPU s':>12}{'units a job':>13}{'peak MiB':>10}")
    for policy in arguments.policies.split(","):
        spent_s, peak_bytes, jobs = _whole_command(arguments.trace, arguments.servers, policy, arguments.first)
        rates = f"{jobs / spent_s:12,.0f}{spent_s / unit_s / jobs:13.5f}{peak_bytes / 2**20:10,.0f}"
        print(f"{policy:28}{jobs:10,}{spent_s:12.2f}{rates}", flush=True)


def _whole_command(trace: Path, servers: int, policy: str, first: int | None) -> tuple[float, int, int]:
    """Seconds of user CPU time, peak resident bytes and jobs of one ``sooner sim run`` in a process of its own."""
    name, *options = policy.split(":")
    with TemporaryDirectory() as folder:
        cluster = Path(folder, "cluster.yaml")
        cluster.write_text(
            f"schema: sooner.cluster/1\nname: benchmark\nservers:\n  - {{count: {servers}, gpus: 8, gpu_type: V100,"
            " nic_gbps: 100, intra_gbps: 960}\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-P", "-m", "service.cli.main", "sim", "run", "--json", "--policy", name]
        command += ["--workload", str(trace), "--cluster", str(cluster)]
        command += [word for option in options for word in ("--option", option)]
        command += [] if first is None else ["--first", str(first)]
        result = Path(folder, "result.json")
        with result.open("wb") as stream:
            child = subprocess.Popen(command, stdout=stream)
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
        return usage.ru_utime, usage.ru_maxrss * 1024, json.loads(result.read_bytes())["jobs"]


def _workloads(arguments: argparse.Namespace, cluster: Cluster) -> Iterator[tuple[str, Workload]]:
    for name, communication in (("generated", False), ("with communication", True)):
        jobs, load = arguments.jobs, arguments.load
        yield name, generate(1, jobs, gpus=cluster.gpus, load=load, communication=communication)
    if arguments.trace is not None:
        workload = read_workload(arguments.trace, first=arguments.first)
        yield workload.name[:23], workload


def _measure(workload: Workload, cluster: Cluster, policy: str, profile: bool) -> tuple[float, int]:
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    started_s = time.process_time()
    result = run(workload, cluster, make_policy(policy), "oracle", SimulationOptions(skip_invalid=True)).result
    spent_s = time.process_time() - started_s
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
    return spent_s, result.jobs


if __name__ == "__main__":
    main()
