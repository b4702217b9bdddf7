"""All mappings, and the best of them: for small gangs, and as the reference for tests of the search. Exponential."""

from collections.abc import Iterator, Sequence
from functools import cache

from policies.placement.heavy_edge import cut_bytes
from policies.placement.iteration import Counts, Gang, Link, seconds


def mappings(gang: Gang, granted: Sequence[int], links: Sequence[Link] | None = None) -> Iterator[tuple[Counts, ...]]:
    """Every way to put the whole gang on servers with ``granted`` GPUs, tensor groups unbroken.

    With ``links`` one of each set of mappings that differ only in which of two neighbouring servers, alike in link and
    grant, holds what.
    """

    @cache  # the same few rests are filled into many servers
    def rows(rest: Counts, room: int) -> list[Counts]:
        if not rest:
            return [()]
        tensor = gang.tensor[len(gang.tensor) - len(rest)]
        return [
            (held, *tail)
            for held in range(min(rest[0], room // tensor) + 1)
            for tail in rows(rest[1:], room - held * tensor)
        ]

    def fill(rest: Counts, m: int, before: Counts) -> Iterator[tuple[Counts, ...]]:
        if m == len(granted):
            if not any(rest):
                yield ()
            return
        if gang.gpus_for(rest) > sum(granted[m:]):
            return
        alike = links is not None and m > 0 and (granted[m], links[m]) == (granted[m - 1], links[m - 1])
        for row in rows(rest, granted[m]):
            if alike and row > before:
                continue
            left = tuple(r - h for r, h in zip(rest, row, strict=True))
            for tail in fill(left, m + 1, row):
                yield (row, *tail)

    yield from fill(gang.replicas, 0, ())


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
