"""Prints what arrivals and finishes cost the live loop's engine, and how much more they cost with a longer queue.

python -m benchmarks.cycle [--servers 1000 10000] [--queued 1000 100000] [--policies asrpt] [--shadow NAME] [--events N]

The engine of the service with the memory store and an executor in simulated time, on servers of eight GPUs that are all
taken. First the running jobs start, then the queue is filled; only then is every event timed alone: its cycles from the
request to the last command that it causes, in wall time of this process. An "arrival" joins the queue, an "urgent" one is so
short that the policies which preempt stop others for it, after a "finish" others start.
"""

import argparse
import time
from collections import defaultdict

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
    arguments = parser.parse_args()

    print(line(calibrate()))
    print(
        f"{'policy':8}{'servers':>8}{'running':>9}{'queued':>9}  {'event':8}{'p50 ms':>9}{'p99 ms':>9}{'p50 ratio':>11}"
    )
    for policy in arguments.policies.split(","):
        for servers in arguments.servers:
            shortest: dict[str, float] = {}
            for queued in arguments.queued:
                running, costs_s = _measure(policy, arguments.shadow, servers, queued, arguments.events)
                for event, each_s in costs_s.items():
                    p50_ms, p99_ms = (1e3 * float(value) for value in np.percentile(each_s, (50, 99)))
                    ratio = p50_ms / shortest.setdefault(event, p50_ms)
                    sizes = f"{policy:8}{servers:8,}{running:9,}{queued:9,}"
                    print(f"{sizes}  {event:8}{p50_ms:9.2f}{p99_ms:9.2f}{ratio:11.2f}", flush=True)


def _measure(
    policy: str, shadow: str | None, servers: int, queued: int, events: int
) -> tuple[int, dict[str, list[float]]]:
    """How many jobs run, and the seconds of each timed arrival and finish."""
    cluster = Cluster("benchmark", tuple(Server(f"s{index}", 8) for index in range(servers)))
    running = cluster.gpus // GPUS_A_RUNNING_JOB
    options = SimulationOptions()
    jobs = prepare(Workload("benchmark", _rows(running, queued, events)), cluster).jobs
    chosen = make_policy(policy)
    if shadow is not None:
        chosen = Shadow(chosen, make_policy(shadow), budget_s=_SHADOW_BUDGET_S, worker=ShadowProcess(2**31))
    simulator = Simulator(jobs, cluster, chosen, "oracle", options)
    while (at_s := simulator.clock.next_at_s) is not None and at_s < 2.0 and simulator.step():
        pass
    waiting = len(simulator.engine.world.jobs) - running
    assert waiting == queued, f"{waiting} jobs wait instead of {queued}"
    costs_s = _timed(simulator, events)
    return running, costs_s


def _rows(running: int, queued: int, events: int) -> tuple[WorkloadJob, ...]:
    """At 0 s jobs that fill the cluster, at 1 s the queue, then an arrival at each whole second and a finish between them.

    Sizes are the generator's. No job of the queue is worth a preemption; of the arrivals every other one is.
    """
    rows = [
        WorkloadJob(f"running-{index}", 0.0, GPUS_A_RUNNING_JOB, _FIRST_S + index + 0.5 if index < events else _LONG_S)
        for index in range(running)
    ]
    for index, job in enumerate(generate(1, queued + events, gpus=64, communication=False).jobs):
        at_s = 1.0 if index < queued else _FIRST_S + index - queued
        duration_s = _SHORT_S if _urgent(at_s) else _QUEUED_S + job.duration_s
        rows.append(WorkloadJob(f"queued-{index}", at_s, job.gpus, duration_s, user=job.user, name=job.name))
    return tuple(rows)


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
