"""Prints how long the mapping of large gangs takes; the promise is 1,024 GPUs in less than 50 ms.

python -m benchmarks.heavy_edge
"""

import time
from itertools import pairwise

from policies.catalogue import MODELS, pipeline
from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.placement.choose import find
from policies.placement.heavy_edge import heavy_edge
from policies.placement.iteration import Link, gang
from policies.placement.mapping import mapped
from policies.placement.pool import FreePool
from policies.throughput import iteration_times


def _pipeline(stages: int, replicas: int) -> tuple[StageGraph, ParallelismConfig]:
    rows = tuple(Stage(f"s{s}", 1.0, 2.0, 10**8 * (1 + s % 3)) for s in range(stages))
    edges = tuple((s, s + 1, 10**7 * (1 + s % 5)) for s in range(stages - 1))
    return StageGraph(rows, edges), ParallelismConfig((replicas,) * stages, (1,) * stages)


def mappings() -> None:
    """Heavy-Edge alone, and the mapping that is used (with whole stages and swaps), on servers of eight GPUs."""
    print("stages  replicas  servers   GPUs  heavy-edge ms  mapping ms")
    for stages, replicas in ((1, 1024), (4, 256), (8, 128), (16, 64), (64, 16), (8, 8), (16, 4), (4, 8)):
        members = gang(*_pipeline(stages, replicas))
        servers = members.gpus // 8
        start = time.perf_counter()
        heavy_edge.__wrapped__(members, (8,) * servers)
        middle = time.perf_counter()
        mapped.__wrapped__(members, (Link(1.5e9, 1.2e11, 1.0),) * servers, (8,) * servers)
        end = time.perf_counter()
        sizes = f"{stages:6} {replicas:9} {servers:8} {members.gpus:6}"
        print(f"{sizes} {1e3 * (middle - start):14.2f} {1e3 * (end - middle):11.2f}")


def choices() -> None:
    """A choice of servers on 10,000 half-taken servers in 250 racks, and the constants of a job, each for the first time."""
    cluster = Cluster("large", tuple(Server(f"s{m}", 8, rack=f"r{m // 40}") for m in range(10_000)))
    pool = FreePool(cluster, [(5 * m) % 9 for m in range(10_000)])
    print("\nmodel               GPUs  find ms  again ms  iteration_times ms")
    for model in MODELS:
        for gpus in (8, 64, 512):
            graph, config = pipeline(model, gpus)
            spec = JobSpec("job", "user", gpus, stage_graph=graph, parallelism=config)
            times = [time.perf_counter()]
            find(pool, cluster, spec)
            times.append(time.perf_counter())
            find(pool, cluster, spec)
            times.append(time.perf_counter())
            iteration_times(graph, config, cluster, None)
            times.append(time.perf_counter())
            first, again, constants = (1e3 * (b - a) for a, b in pairwise(times))
            print(f"{model:18} {gpus:5} {first:8.2f} {again:9.2f} {constants:19.2f}")


if __name__ == "__main__":
    mappings()
    choices()
