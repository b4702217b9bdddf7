"""All mappings, and the best of them: for small gangs, and as the reference for tests of the search. Exponential."""

from collections.abc import Iterator, Sequence

from policies.placement.heavy_edge import cut_bytes
from policies.placement.iteration import Counts, Gang, Link, seconds


def mappings(gang: Gang, granted: Sequence[int], links: Sequence[Link] | None = None) -> Iterator[tuple[Counts, ...]]:
    """Every way to put the whole gang on servers with ``granted`` GPUs, tensor groups unbroken.

    With ``links`` one of each set of mappings that differ only in which of two neighbouring servers, alike in link and
    grant, holds what.
    """

    return _Filling(gang, granted, links).fill(gang.replicas, 0, ())


class _Filling:
    """Fills one server after the other."""

    def __init__(self, gang: Gang, granted: Sequence[int], links: Sequence[Link] | None) -> None:
        self._gang = gang
        self._granted = granted
        self._links = links
        self._known: dict[tuple[Counts, int], list[Counts]] = {}

    def fill(self, rest: Counts, m: int, before: Counts) -> Iterator[tuple[Counts, ...]]:
        """Every way to put these replicas on the servers from the m-th on; ``before`` is what the last one before it holds."""
        granted, links = self._granted, self._links
        if m == len(granted):
            if not any(rest):
                yield ()
            return
        if self._gang.gpus_for(rest) > sum(granted[m:]):
            return
        alike = links is not None and m > 0 and (granted[m], links[m]) == (granted[m - 1], links[m - 1])
        for row in self._rows(rest, granted[m]):
            if alike and row > before:
                continue
            left = tuple([r - h for r, h in zip(rest, row, strict=True)])
            for tail in self.fill(left, m + 1, row):
                yield (row, *tail)

    def _rows(self, rest: Counts, room: int) -> list[Counts]:
        """What one server may hold of these replicas. Kept, because the same few rests are filled into many servers."""
        found = self._known.get((rest, room))
        if found is not None:
            return found
        if not rest:
            return [()]
        tensor = self._gang.tensor[len(self._gang.tensor) - len(rest)]
        found = self._known[rest, room] = [
            (held, *tail)
            for held in range(min(rest[0], room // tensor) + 1)
            for tail in self._rows(rest[1:], room - held * tensor)
        ]
        return found


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
