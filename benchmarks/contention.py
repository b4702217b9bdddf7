"""Prints what it costs that jobs share NICs, under several policies.

python -m benchmarks.contention [--trace workload.csv | --load L] [--first N] [--servers N] [--nic-gbps G]
    [--policies a,b:OPTION=VALUE] [--seed N]

Every job of the table (``sooner workload import`` makes one of a trace; without it a generated one) trains a network of the
catalogue, drawn from the seed and its id. Each policy runs on three networks: ``reserved``; ``undisturbed``, on which a
straddling job has whole NICs whoever else is there (contended:xi1=0); ``contended``. It ignores contention there, and foresees it
in a fourth run. Figures are mean completion times over the lower bound; ``costs`` is ``contended`` over ``undisturbed`` and
``gains`` is ``foreseen`` over ``contended``, each less one. ``straddling`` counts jobs whose last attempt on the contended
network lay on several servers, contention ignored.
"""

import argparse
from pathlib import Path

from benchmarks.workloads import cluster_of, load_of, with_models
from policies.model.cluster import Cluster
from policies.registry import make_policy
from service.sim.experiment import SimulationOptions, run
from service.sim.results import Simulation
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload

RUNS = (
    ("reserved", "ignore"),
    ("contended:xi1=0", "ignore"),
    ("contended", "ignore"),
    ("contended", "foresee"),
)
"""Networks, and the option ``contention`` of the policy."""
POLICIES = (
    "asrpt,asrpt:preemption=never,las,sjf,sjf:delay_factor=0,"
    "asrpt:placement=random:delay_factor=0,sjf:placement=random:delay_factor=0"
)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a workload table")
    parser.add_argument("--first", type=int, default=6000, help="take the first N rows, or generate so many jobs")
    parser.add_argument("--servers", type=int, default=50, help="servers of eight GPUs")
    parser.add_argument("--nic-gbps", type=float, default=25.0, help="gigabits per second of a server's NIC")
    parser.add_argument("--policies", default=POLICIES, help="policies with their options")
    parser.add_argument("--load", type=float, default=0.9, help="of generated jobs")
    parser.add_argument("--seed", type=int, default=0, help="draws the networks that jobs train")
    arguments = parser.parse_args()

    cluster = cluster_of(arguments.servers, arguments.nic_gbps)
    workload = with_models(_jobs(arguments, cluster), arguments.seed)
    gangs = sum(1 for job in workload.jobs if job.gpus > 1)
    load = load_of(workload, cluster.gpus)
    print(f"{cluster.name}: {len(workload.jobs)} jobs, {gangs} of several GPUs, load {load:.2f}")
    header = f"{'policy':42}{'reserved':>10}{'undisturbed':>13}{'contended':>11}{'costs':>8}"
    header += f"{'foreseen':>10}{'gains':>8}{'straddling':>12}"
    print(header)
    for label in arguments.policies.split(","):
        print(f"{label:42}{_row(label, workload, cluster)}", flush=True)


def _jobs(arguments: argparse.Namespace, cluster: Cluster) -> Workload:
    if arguments.trace is not None:
        return read_workload(arguments.trace, first=arguments.first)
    return generate(arguments.seed, arguments.first, gpus=cluster.gpus, load=arguments.load, communication=False)


def _row(label: str, workload: Workload, cluster: Cluster) -> str:
    found: list[Simulation] = []
    name, *options = label.split(":")
    for network, contention in RUNS:
        policy = make_policy(name, dict(option.split("=", 1) for option in options) | {"contention": contention})
        found.append(run(workload, cluster, policy, "oracle", SimulationOptions(skip_invalid=True, network=network)))
    jct_s = [simulation.result.mean_jct_s for simulation in found]
    reserved, undisturbed, contended, foreseen = (each / found[0].result.lower_bound_mean_jct_s for each in jct_s)
    straddling = sum(1 for outcome in found[2].outcomes if len(outcome.placement.shares) > 1)
    costs, gains = 100.0 * (contended / undisturbed - 1.0), 100.0 * (foreseen / contended - 1.0)
    means = f"{reserved:10.3f}{undisturbed:13.3f}{contended:11.3f}{costs:7.1f}%{foreseen:10.3f}{gains:7.1f}%"
    return f"{means}{straddling:12}"


if __name__ == "__main__":
    main()
