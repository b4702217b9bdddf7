"""Which GPU of a placement computes what: its rank, and its pipeline stage, replica and place in the tensor group.

A placement says how many replicas of each stage are on each server. The order here is that of Megatron-LM: the tensor rank
changes fastest, then the replica (context, then data), then the stage. So the ranks of one stage are adjacent. The servers are
numbered by the stages that they hold, so that rank 0 is on the first.
"""

from collections.abc import Sequence

from policies.model.job import JobSpec, Launch
from policies.model.placement import Placement
from policies.model.value import value


@value
class Seat:
    """One GPU. ``share`` is the position of its server in the placement, ``gpu`` its position among the job's GPUs there.

    ``node`` is the number of the server (NODE_RANK). ``replica`` counts those of the stage, and ``tensor`` the GPUs of a replica.
    """

    rank: int
    node: int
    share: int
    gpu: int
    stage: int
    replica: int
    tensor: int


def seats(spec: JobSpec, placement: Placement) -> tuple[Seat, ...]:
    """The GPUs in the order of their ranks.

    With ``launch = gpu`` the ranks of one stage are adjacent wherever they are. With ``launch = server`` a launcher numbers the
    ranks of each server, one server after the other: then the order of the servers is all that can be chosen. A job without
    stages has one, with its plan's degrees in order. O(GPUs log GPUs).
    """
    order = node_order(placement)
    if spec.parallelism is None or not placement.shares[0].replicas:
        held_on = (share for share, held in enumerate(placement.shares) for _ in range(held.gpus))
        tensor, replicas = (
            (1, spec.gpus) if spec.plan is None else (spec.plan.tensor, spec.plan.data * spec.plan.context)
        )
        group = tensor * replicas
        rows = [(rank // group, rank % group // tensor, rank % tensor, share) for rank, share in enumerate(held_on)]
    else:
        rows = _rows(placement, order, spec.parallelism.tensor)
    node_of = {share: node for node, share in enumerate(order)}
    used = [0] * len(placement.shares)
    found = []
    for stage, replica, tensor, share in sorted(rows):
        found.append((node_of[share], share, used[share], stage, replica, tensor))
        used[share] += 1
    if spec.launch is Launch.SERVER:
        found.sort(key=lambda seat: (seat[0], seat[2]))
    return tuple(Seat(rank, *each) for rank, each in enumerate(found))


def node_order(placement: Placement) -> list[int]:
    """The positions of the shares in the order of NODE_RANK: the servers of the first stages first."""

    def span(share: int) -> tuple[int, int, int]:
        held = [stage for stage, replicas in enumerate(placement.shares[share].replicas) if replicas]
        last = len(placement.shares[share].replicas)  # of a server with parts of tensor groups alone
        return (held[0], held[-1], share) if held else (last, last, share)

    return sorted(range(len(placement.shares)), key=span)


def _rows(placement: Placement, order: Sequence[int], tensor: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """(stage, replica, tensor rank, share) of each GPU.

    A replica's first rank is on the server that counts it. The others are there too while GPUs are left, and else on the next
    servers that have some: only tensor groups across servers need that.
    """
    left = [share.gpus - sum(share.replicas) for share in placement.shares]
    homes: list[tuple[int, int, int]] = []
    counted = [0] * len(tensor)
    for position, share in enumerate(order):
        for stage, replicas in enumerate(placement.shares[share].replicas):
            for _ in range(replicas):
                homes.append((stage, counted[stage], position))
                counted[stage] += 1
    rows = []
    for stage, replica, position in sorted(homes):
        rows.append((stage, replica, 0, order[position]))
        for rank in range(1, tensor[stage]):
            around = (order[(position + step) % len(order)] for step in range(len(order)))
            share = next(share for share in around if left[share] > 0)
            left[share] -= 1
            rows.append((stage, replica, rank, share))
    return rows
