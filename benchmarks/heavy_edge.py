"""Prints how good the mapping of small gangs is, and how long that of large ones takes: 1,024 GPUs in less than 50 ms.

python -m benchmarks.heavy_edge

Quality: iteration times above those of the best of all mappings, for gangs of 2 to 8 GPUs on every way to grant them on two
to four servers; and of the choice of servers above the best of all grants out of what is free. "catalogue" is every
network of the catalogue at that NIC, "random" are seeded pipelines of up to four stages with skips, tensor groups and
both schedules.
"""

import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from policies.catalogue import MODELS, pipeline
from policies.choose import find
from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import PipelineSchedule
from policies.placement.candidates import fastest
from policies.placement.exact import exact
from policies.placement.heavy_edge import heavy_edge
from policies.placement.iteration import Counts, Gang, Link, gang, link_of, seconds
from policies.placement.mapping import mapped, searched
from policies.placement.pool import FreePool
from policies.throughput import iteration_times

GPUS_MAX, SERVERS_MAX = 8, 4
RANDOM_GANGS, POOLS = 150, 300
TOLERANCE = 0.03
"""An iteration this much above the best is counted."""


def _server(nic_gbps: float) -> Server:
    return Server("s", 8, nic_bytes_s=nic_gbps / 8 * 1e9, intra_bytes_s=120e9)


def _grants(gpus: int, servers: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every way to grant GPUs on that many servers, larger shares first."""
    if servers == 0:
        yield from [()] if gpus == 0 else []
        return
    for share in range(min(gpus, most), 0, -1):
        for rest in _grants(gpus - share, servers - 1, share):
            yield (share, *rest)


def _random_gang(draw: random.Random) -> Gang:
    """A pipeline of 2 to 8 GPUs whose traffic spans three orders of magnitude."""
    while True:
        stages = range(draw.randint(1, 4))
        replicas = tuple(draw.randint(1, 4) for _ in stages)
        tensor = tuple(draw.choice((1, 1, 1, 2)) for _ in stages)
        config = ParallelismConfig(
            replicas,
            tensor,
            draw.choice((PipelineSchedule.PIPEDREAM, PipelineSchedule.ONE_F_ONE_B)),
            draw.randint(1, 8),
        )
        if 2 <= config.gpus <= GPUS_MAX:
            break
    rows = tuple(Stage(f"s{s}", draw.uniform(0, 3), draw.uniform(0, 6), _bytes(draw), _bytes(draw)) for s in stages)
    edges = [(s, q) for s in stages for q in stages if q == s + 1 or (q > s and draw.random() < 0.2)]
    return gang(StageGraph(rows, tuple((s, q, _bytes(draw)) for s, q in edges)), config)


def _bytes(draw: random.Random) -> int:
    return round(10 ** draw.uniform(7, 10))


def quality(random_gangs: int = RANDOM_GANGS, pools: int = POOLS) -> None:
    """How far Heavy-Edge alone, the search, the mapping that is used, and the choice of servers are from the best."""
    draw = random.Random(0)
    small = [gang(*pipeline(model, gpus)) for model in MODELS for gpus in range(2, GPUS_MAX + 1)]
    synthetic = [_random_gang(draw) for _ in range(random_gangs)]
    print(f"{'':34}{'cases':>7}{'mean %':>9}{'worst %':>9}{'above 3%':>10}")
    for name, gangs, nic_gbps in (("catalogue", small, 25), ("catalogue", small, 200), ("random", synthetic, 25)):
        link = link_of(_server(nic_gbps))
        excess: dict[str, list[float]] = {"Heavy-Edge alone": [], "search": [], "mapping used": []}
        for members in gangs:
            for servers in range(2, SERVERS_MAX + 1):
                for granted in _grants(members.gpus, servers, 8):
                    _compare(members, (link,) * servers, granted, excess)
        excess["choice of servers"] = list(_choices(gangs, nic_gbps, pools))
        for what, values in excess.items():
            over = sum(value > TOLERANCE for value in values)
            label = f"{name}, {nic_gbps} Gb/s, {what}"
            print(f"{label:34}{len(values):7}{100 * fmean(values):9.3f}{100 * max(values):9.2f}{over:10}")


def _alpha(members: Gang, links: Sequence[Link], rows: Sequence[Counts]) -> float:
    used = [m for m, row in enumerate(rows) if any(row)]
    return seconds(members, [links[m] for m in used], [rows[m] for m in used])


def _compare(members: Gang, links: tuple[Link, ...], granted: tuple[int, ...], excess: dict[str, list[float]]) -> None:
    """Note each method's excess over the oracle; mappings that a method does not find are left out."""
    best = exact(members, links, granted)
    if best is None:
        return
    least = _alpha(members, links, best)
    by_edges, by_search = heavy_edge(members, granted), searched(members, links, granted)
    used = mapped(members, links, granted)
    for what, found in (
        ("Heavy-Edge alone", None if by_edges is None else _alpha(members, links, by_edges)),
        ("search", None if by_search is None else by_search[0]),
        ("mapping used", None if used is None else used[0]),
    ):
        if found is not None:
            excess[what].append(found / least - 1)


def _choices(gangs: Sequence[Gang], nic_gbps: float, pools: int) -> Iterable[float]:
    """Excess of the chosen servers over the best grant, where no single server has room and four have enough together."""
    draw = random.Random(1)
    cluster = Cluster("four", (_server(nic_gbps),) * SERVERS_MAX)
    link = link_of(cluster.servers[0])
    for _ in range(pools):
        members = draw.choice(gangs)
        free = [draw.randint(0, members.gpus - 1) for _ in cluster.servers]
        chosen = fastest(FreePool(cluster, free), cluster, members, cluster.servers[0].gpu_type)
        grants = itertools.product(*(range(gpus + 1) for gpus in free))
        distinct = {tuple(sorted(filter(None, each), reverse=True)) for each in grants if sum(each) == members.gpus}
        times = [found[0] for each in distinct if (found := mapped(members, (link,) * len(each), each)) is not None]
        if chosen is not None and times:
            yield chosen[0] / min(times) - 1


def _pipeline(stages: int, replicas: int) -> tuple[StageGraph, ParallelismConfig]:
    rows = tuple(Stage(f"s{s}", 1.0, 2.0, 10**8 * (1 + s % 3)) for s in range(stages))
    edges = tuple((s, s + 1, 10**7 * (1 + s % 5)) for s in range(stages - 1))
    return StageGraph(rows, edges), ParallelismConfig((replicas,) * stages, (1,) * stages)


def mappings() -> None:
    """Heavy-Edge alone, and the mapping that is used (with packings and exchanges), on servers of eight GPUs."""
    print("\nstages  replicas  servers   GPUs  heavy-edge ms  mapping ms")
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
    quality()
    mappings()
    choices()
