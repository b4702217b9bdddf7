"""Prints what arrivals and finishes cost the live loop's engine, and how much more they cost with a longer queue.

python -m benchmarks.cycle [--servers 1000 10000] [--queued 1000 100000] [--policies asrpt] [--shadow NAME] [--events N]
                           [--networks]

The engine of the service with the memory store and an executor in simulated time, on servers of eight GPUs that are all
taken. First the running jobs start, then the queue is filled; only then is every event timed alone: its cycles from the
request to the last command that it causes, in wall time of this process. An "arrival" joins the queue, an "urgent" one is so
short that the policies which preempt stop others for it, after a "finish" others start. With ``--networks`` the jobs name models,
and those that run have the generator's sizes: placements differ in speed, and ranks fall at as many rates.
"""

import argparse
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np

from benchmarks.calibration import calibrate, line
from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.runtime.garbage import frozen
from service.shadow.process import ShadowProcess
from service.shadow.shadow import Shadow
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.jobs import prepare
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob

GPUS_A_RUNNING_JOB = 4
_GENERATED_GPUS = 64
"""Sizes are those that the generator draws for a cluster of so many GPUs."""
_FIRST_S = 10.0
"""When the first timed event happens."""
_LONG_S = 1e6
"""Run time of the jobs that fill the cluster and do not end while events are timed."""
_QUEUED_S = 10.0 * _LONG_S
"""Least run time of the queue: even on one GPU more work than what the running jobs have left."""
_SHORT_S = 10_000.0
"""Run time of urgent jobs: worth a preemption, and longer than events are timed."""

_SHADOW_BUDGET_S = 10.0
"""No decision of the shadow is to be left out here."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--queued", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--policies", default="asrpt", help="policies by name")
    parser.add_argument("--shadow", help="a second policy that decides beside it and is not obeyed, as in the service")
    parser.add_argument("--events", type=int, default=500, help="arrivals, and finishes, that are timed")
    parser.add_argument("--networks", action="store_true", help="jobs that communicate")
    arguments = parser.parse_args()

    print(line(calibrate()))
    print(
        f"{'policy':8}{'servers':>8}{'running':>9}{'queued':>9}  {'event':8}{'p50 ms':>9}{'p99 ms':>9}{'p50 ratio':>11}"
    )
    for policy in arguments.policies.split(","):
        for servers in arguments.servers:
            shortest: dict[str, float] = {}
            for queued in arguments.queued:
                running, costs_s = _measure(arguments, policy, servers, queued)
                for event, each_s in costs_s.items():
                    p50_ms, p99_ms = (1e3 * float(value) for value in np.percentile(each_s, (50, 99)))
                    ratio = p50_ms / shortest.setdefault(event, p50_ms)
                    sizes = f"{policy:8}{servers:8,}{running:9,}{queued:9,}"
                    print(f"{sizes}  {event:8}{p50_ms:9.2f}{p99_ms:9.2f}{ratio:11.2f}", flush=True)


def _measure(
    arguments: argparse.Namespace, policy: str, servers: int, queued: int
) -> tuple[int, dict[str, list[float]]]:
    """How many jobs run, and the seconds of each timed arrival and finish."""
    cluster = Cluster("benchmark", tuple(Server(f"s{index}", 8) for index in range(servers)))
    running = _running(cluster.gpus, arguments.events, networks=arguments.networks)
    later = _arriving(queued, arguments.events, networks=arguments.networks)
    jobs = prepare(Workload("benchmark", (*running, *later)), cluster).jobs
    chosen = make_policy(policy)
    if arguments.shadow is not None:
        shadow, worker = make_policy(arguments.shadow), ShadowProcess(2**31)
        chosen = Shadow(chosen, shadow, budget_s=_SHADOW_BUDGET_S, worker=worker)
    simulator = Simulator(jobs, cluster, chosen, "oracle", SimulationOptions())
    while (at_s := simulator.clock.next_at_s) is not None and at_s < 2.0 and simulator.step():
        pass
    waiting = len(simulator.engine.world.jobs) - len(running)
    assert waiting == queued, f"{waiting} jobs wait instead of {queued}"
    return len(running), _timed(simulator, arguments.events)


def _running(gpus: int, events: int, *, networks: bool) -> list[WorkloadJob]:
    """At 0 s jobs that fill the cluster. The first of them end while events are timed, between two whole seconds."""
    rows: list[WorkloadJob] = []
    if networks:
        for job in generate(2, gpus // GPUS_A_RUNNING_JOB, gpus=_GENERATED_GPUS).jobs:
            if job.gpus <= gpus:
                gpus -= job.gpus
                rows.append(job)
    while gpus:
        rows.append(WorkloadJob("", 0.0, min(gpus, GPUS_A_RUNNING_JOB), _LONG_S))
        gpus -= rows[-1].gpus
    return [
        replace(
            job,
            job_id=f"running-{index}",
            submit_time_s=0.0,
            duration_s=_FIRST_S + index + 0.5 if index < events else _LONG_S,
            iterations=None,
        )
        for index, job in enumerate(rows)
    ]


def _arriving(queued: int, events: int, *, networks: bool) -> list[WorkloadJob]:
    """At 1 s the queue, then an arrival at each whole second.

    Sizes are the generator's. No job of the queue is worth a preemption; of the arrivals every other one is.
    """
    rows = []
    for index, job in enumerate(generate(1, queued + events, gpus=_GENERATED_GPUS, communication=networks).jobs):
        at_s = 1.0 if index < queued else _FIRST_S + index - queued
        duration_s = _SHORT_S if _urgent(at_s) else _QUEUED_S + job.duration_s
        rows.append(
            WorkloadJob(f"queued-{index}", at_s, job.gpus, duration_s, job.user, name=job.name, model=job.model)
        )
    return rows


def _urgent(at_s: float) -> bool:
    return at_s >= _FIRST_S and at_s % 2.0 == 1.0


def _timed(simulator: Simulator, events: int) -> dict[str, list[float]]:
    """Wall seconds of each event, all cycles at its instant together. Garbage of the setup is collected before."""
    costs_s: defaultdict[float, float] = defaultdict(float)
    end_s = _FIRST_S + events
    with frozen():
        while (at_s := simulator.clock.next_at_s) is not None and at_s < end_s:
            started_s = time.perf_counter()
            simulator.step()
            costs_s[simulator.clock.now_s()] += time.perf_counter() - started_s
    found: dict[str, list[float]] = {"arrival": [], "urgent": [], "finish": []}
    for at_s, cost_s in costs_s.items():
        found["urgent" if _urgent(at_s) else "arrival" if at_s == int(at_s) else "finish"].append(cost_s)
    return found


if __name__ == "__main__":
    main()
