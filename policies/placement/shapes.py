"""Placements of gangs where the engine of the cluster starts only equal shares, or only gangs within one server."""

from collections.abc import Iterator
from functools import lru_cache

from policies.model.cluster import Gangs
from policies.model.placement import Placement
from policies.placement.pool import FreePool, Grant


def allowed(gangs: Gangs, placement: Placement) -> bool:
    """Whether the engine can start a gang on these shares. O(servers of the placement)."""
    if gangs is Gangs.ANY or len(placement.shares) == 1:
        return True
    return gangs is Gangs.EQUAL_SHARES and len({share.gpus for share in placement.shares}) == 1


def grants(pool: FreePool, gangs: Gangs, gpus: int, gpu_type: str) -> Iterator[list[Grant]]:
    """Equal shares on free GPUs of the type, one list for each number of servers on which they are free, fewest first.

    A gang that has an allowed placement has one on these numbers of servers: servers with enough free GPUs hold equal shares
    alike. O(divisors of ``gpus`` x (levels + racks) + servers granted).
    """
    for servers in (1,) if gangs is Gangs.ONE_SERVER else _divisors(gpus):
        found = pool.fit([gpus // servers] * servers, gpu_type)
        if found is not None:
            yield found


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(divisor for divisor in range(1, number + 1) if number % divisor == 0)
