"""Random placement: the baseline that shows the benefit of choosing servers and mapping replicas.

A draw depends only on the job, its attempt and the free GPUs, so a policy with random placement is deterministic.
"""

from collections.abc import Iterator
from itertools import repeat

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from policies.model.placement import ServerShare, place
from policies.placement.candidates import Timed, timed
from policies.placement.iteration import Gang
from policies.placement.pool import FreePool, Grant

_WORD = 2**64 - 1


def salt_of(job: int, attempts: int) -> int:
    """The seed of the draws for an attempt of a job."""
    return next(_draws(job)) ^ attempts


def scattered_gang(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str | None, salt: int) -> Timed | None:
    """alpha(x) and a placement on random free GPUs of one type; None if the draw leaves no room for the tensor groups.

    Every replica goes to any of the places for its tensor group with equal chance, larger groups first. O(free GPUs).
    """
    groups = sorted(((t, s) for s, t in enumerate(gang.tensor) for _ in range(gang.replicas[s])), reverse=True)
    draws = _draws(salt)
    for name in _types(pool, gpu_type, draws):
        servers = _drawn(dict(pool.fullest(name)), [tensor for tensor, _ in groups], draws)
        if servers is None:
            continue
        rows = {server: [0] * len(gang.replicas) for server in sorted(servers)}
        for (_, s), server in zip(groups, servers, strict=True):
            rows[server][s] += 1
        grants: list[Grant] = [(server, gang.gpus_for(row)) for server, row in rows.items()]
        return timed(cluster, gang, grants, [tuple(row) for row in rows.values()])
    return None


def scattered_gpus(pool: FreePool, gpus: int, gpu_type: str | None, salt: int) -> list[ServerShare] | None:
    """Random free GPUs of one type, for a job without a stage graph; None if not enough are free. O(free GPUs)."""
    draws = _draws(salt)
    for name in _types(pool, gpu_type, draws):
        servers = _drawn(dict(pool.fullest(name)), list(repeat(1, gpus)), draws)
        if servers is not None:
            return list(place([ServerShare(server, servers.count(server)) for server in {*servers}]).shares)
    return None


def _types(pool: FreePool, gpu_type: str | None, draws: Iterator[int]) -> list[str]:
    """The job's type, or all of them, beginning with a random one."""
    names = list(pool.gpu_types) if gpu_type is None else [gpu_type]
    first = next(draws) % max(1, len(names))
    return names[first:] + names[:first]


def _drawn(free: dict[ServerIndex, int], sizes: list[int], draws: Iterator[int]) -> list[ServerIndex] | None:
    """A server for each size, sizes descending: each time one of the places for that many GPUs that are left."""
    servers: list[ServerIndex] = []
    places: list[ServerIndex] = []
    size = 0
    for wanted in sizes:
        if wanted != size:
            size = wanted
            places = [server for server, room in free.items() for _ in range(room // size)]
        if not places:
            return None
        chosen = next(draws) % len(places)
        places[chosen], places[-1] = places[-1], places[chosen]
        server = places.pop()
        free[server] -= size
        servers.append(server)
    return servers


def _draws(state: int) -> Iterator[int]:
    """Numbers of 64 bits that look random (the generator SplitMix64 of Steele, Lea and Flood, OOPSLA 2014)."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _WORD
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
        yield mixed ^ (mixed >> 31)
