"""The best mapping by exhaustion: the oracle that tests hold Heavy-Edge against. Exponential; for a dozen GPUs at most."""

from collections.abc import Iterator, Sequence

from policies.placement.heavy_edge import cut_bytes
from policies.placement.iteration import Counts, Gang, Link, seconds


def mappings(gang: Gang, granted: Sequence[int]) -> Iterator[tuple[Counts, ...]]:
    """Every way to put the whole gang on servers with ``granted`` GPUs, tensor groups unbroken."""

    def rows(rest: Sequence[int], room: int) -> Iterator[Counts]:
        if not rest:
            yield ()
            return
        tensor = gang.tensor[len(gang.tensor) - len(rest)]
        for held in range(min(rest[0], room // tensor) + 1):
            for tail in rows(rest[1:], room - held * tensor):
                yield (held, *tail)

    def fill(rest: Counts, servers: Sequence[int]) -> Iterator[tuple[Counts, ...]]:
        if not servers:
            if not any(rest):
                yield ()
            return
        if gang.gpus_for(rest) > sum(servers):
            return
        for row in rows(rest, servers[0]):
            left = tuple(r - h for r, h in zip(rest, row, strict=True))
            for tail in fill(left, servers[1:]):
                yield (row, *tail)

    yield from fill(gang.replicas, granted)


def exact(gang: Gang, links: Sequence[Link], granted: Sequence[int]) -> tuple[Counts, ...] | None:
    """The mapping of least alpha(x), then of least cut bytes, then the first in lexicographic order; None if none fits."""
    return min(
        mappings(gang, granted),
        key=lambda rows: (_alpha(gang, links, rows), cut_bytes(gang, rows), rows),
        default=None,
    )


def _alpha(gang: Gang, links: Sequence[Link], rows: Sequence[Counts]) -> float:
    used = [m for m, row in enumerate(rows) if any(row)]
    return seconds(gang, [links[m] for m in used], [rows[m] for m in used])
