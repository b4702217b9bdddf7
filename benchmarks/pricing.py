"""A tighter lower bound on the mean JCT: the capacity of the cluster is priced, and each job pays for what it uses.

Our construction, an instance of Lagrangian relaxation. Let mu(t) >= 0 be any price of capacity. A job of g_i of G GPUs,
released at r_i, that runs for d_i seconds in the set S_i and ends at C_i pays C_i + (g_i / G) x (integral of mu over S_i). In
any schedule the GPUs in use never exceed G, so all jobs together pay at most sum C_i + (integral of mu). And no job can pay
less than phi_i = the least, over all C >= r_i + d_i, of C + (g_i / G) x (the d_i cheapest seconds of [r_i, C]). So for every mu

    sum of C_i >= sum of phi_i - (integral of mu).

Prices are constant on cells of equal width; subgradient ascent looks for good ones (where jobs demand more than there is the
price rises). Whatever it finds is a bound: the search decides how tight it is, never whether it holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import fsum

from policies.bounds import BoundJob, lower_bound

STALL_MAX = 3
"""Steps without a gain after which the search returns to the best prices and goes on with smaller steps."""

AMBITION = 0.5
"""The first steps aim at a bound that is larger by this fraction of the mean; each stall halves it."""


@dataclass(frozen=True, slots=True)
class PricedBound:
    """Seconds of mean JCT; ``prices_s`` are those of capacity per second of the whole cluster, ``cell_s`` apart."""

    lower_bound_mean_jct_s: float
    cell_s: float
    prices_s: Sequence[float]


def priced_bound(jobs: Sequence[BoundJob], gpus: int, *, cells: int = 512, steps: int = 60) -> PricedBound:
    """The best bound that ``steps`` steps of ascent find, never below :func:`~policies.bounds.lower_bound`.

    Deterministic. O(steps x (jobs + cells that jobs span)). Raises ValueError as ``lower_bound`` does.
    """
    known_s = lower_bound(jobs, gpus).lower_bound_mean_jct_s
    if not jobs:
        return PricedBound(0.0, 1.0, ())
    first_s = min(job.release_s for job in jobs)
    end_s = max(job.release_s + job.duration_s for job in jobs)
    # Behind the last cell capacity costs nothing, as if the cluster were empty: that only loosens the bound.
    cell_s = (end_s - first_s) / cells
    market = _Market(jobs, gpus, first_s, cell_s, cells)
    best = prices = [0.0] * cells
    best_s, demand = market.ask(best)
    ambition, stalled = AMBITION * max(known_s * len(jobs), best_s), 0
    excess = _excess(demand, cell_s, best)
    for _ in range(steps):
        norm = fsum(more * more for more in excess)
        if norm == 0.0:
            break
        scale = ambition / norm
        prices = [max(0.0, price + scale * more) for price, more in zip(prices, excess, strict=True)]
        total_s, demand = market.ask(prices)
        if total_s > best_s:
            best, best_s, stalled = prices, total_s, 0
        else:
            stalled += 1
        if stalled > STALL_MAX:
            prices, stalled, ambition = best, 0, ambition / 2
            _, demand = market.ask(prices)
        excess = _excess(demand, cell_s, prices)
    return PricedBound(max(known_s, best_s / len(jobs)), cell_s, best)


def _excess(demand: Sequence[float], supply: float, prices: Sequence[float]) -> list[float]:
    """Demand beyond supply; 0 where there is too little of it and the price is 0 already."""
    return [used - supply if price > 0.0 or used > supply else 0.0 for used, price in zip(demand, prices, strict=True)]


class _Market:
    """All jobs, and what they pay and demand at given prices."""

    def __init__(self, jobs: Sequence[BoundJob], gpus: int, first_s: float, cell_s: float, cells: int) -> None:
        self._jobs = [(job.release_s - first_s, job.duration_s, job.gpus / gpus) for job in jobs]
        self._cell_s = cell_s
        self._cells = cells

    def ask(self, prices: Sequence[float]) -> tuple[float, list[float]]:
        """(sum of phi_i - r_i) - (integral of the prices), and the demand in each cell, both in seconds."""
        demand = [0.0] * self._cells
        costs_s = [self._serve(job, prices, demand) for job in self._jobs]
        return fsum(costs_s) - fsum(prices) * self._cell_s, demand

    def _serve(self, job: tuple[float, float, float], prices: Sequence[float], demand: list[float]) -> float:
        """phi_i - r_i; adds what the job uses to the demand."""
        release_s, duration_s, share = job
        cell_s, cells = self._cell_s, self._cells
        cell = min(int(release_s / cell_s), cells)
        used: list[tuple[float, int, float]] = []  # (- price, cell, seconds), the dearest first
        position_s, missing_s, paid_s = release_s, duration_s, 0.0
        while missing_s > 0.0 and cell < cells:
            seconds = min(missing_s, (cell + 1) * cell_s - position_s)
            if seconds > 0.0:
                used.append((-prices[cell], cell, seconds))
                paid_s += seconds * prices[cell]
                missing_s -= seconds
                position_s += seconds
            if missing_s > 0.0:
                cell += 1
        ends_s = release_s + duration_s
        cheapest_s = ends_s + share * paid_s
        chosen = used
        # Who ends in the cell of its release finds nothing cheaper before the next cell.
        if paid_s > 0.0 and (len(used) > 1 or cheapest_s > (cell + 1) * cell_s):
            cheapest_s, chosen = self._wait(prices, share, used, ends_s, cell, paid_s, cheapest_s)
        for _, at, seconds in chosen:
            demand[at] += share * seconds
        return cheapest_s - release_s

    def _wait(
        self,
        prices: Sequence[float],
        share: float,
        used: list[tuple[float, int, float]],
        ends_s: float,
        cell: int,
        paid_s: float,
        cheapest_s: float,
    ) -> tuple[float, list[tuple[float, int, float]]]:
        """Let the end move on, cell by cell, and give up the dearest seconds for cheaper ones that come into reach."""
        cell_s, heap, chosen = self._cell_s, list(used), used
        heapify(heap)
        while ends_s < cheapest_s and heap[0][0] < 0.0:
            free = cell >= self._cells
            price = 0.0 if free else prices[cell]
            left_s = sum(seconds for _, _, seconds in heap) if free else (cell + 1) * cell_s - ends_s
            taken_s = 0.0
            while left_s > 0.0 and heap and -heap[0][0] > price:
                dearest, at, seconds = heappop(heap)
                moved_s = min(left_s, seconds)
                if moved_s < seconds:
                    heappush(heap, (dearest, at, seconds - moved_s))
                paid_s -= moved_s * (-dearest - price)
                left_s -= moved_s
                taken_s += moved_s
                cost_s = ends_s + taken_s + share * paid_s
                if cost_s < cheapest_s:
                    cheapest_s = cost_s
                    chosen = [*heap] if free else [*heap, (-price, cell, taken_s)]
            if free:
                break
            if taken_s > 0.0:
                heappush(heap, (-price, cell, taken_s))
            cell += 1
            ends_s = max(ends_s, cell * cell_s)
        return cheapest_s, chosen
