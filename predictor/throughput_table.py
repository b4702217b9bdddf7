"""The throughput table: measured seconds per iteration, per program, GPU type and servers spanned.

It gives a speed to jobs without a stage graph.
"""

import math
from collections import OrderedDict, deque
from statistics import median
from typing import Final

from predictor.rows import EndedRow, plausible

MEASUREMENTS_KEPT: Final = 20
ENTRIES_MAX: Final = 100_000
"""Entries kept; the one that was measured longest ago is evicted first."""

Recurrence = tuple[str, str, str]


class ThroughputTable:
    """(recurrence, GPUs, GPU type, servers spanned) -> newest seconds per iteration."""

    def __init__(self) -> None:
        self._entries: dict[Recurrence, dict[tuple[int, str, int], deque[float]]] = {}
        self._order: OrderedDict[tuple[Recurrence, tuple[int, str, int]], None] = OrderedDict()

    def observe(
        self, recurrence: Recurrence, gpus: int, gpu_type: str, servers: int, seconds_per_iteration: float
    ) -> None:
        """A run was measured. Values that are not positive and finite are ignored."""
        if plausible(seconds_per_iteration) is None:
            return
        where = (gpus, gpu_type, servers)
        entries = self._entries.setdefault(recurrence, {})
        entries.setdefault(where, deque(maxlen=MEASUREMENTS_KEPT)).append(seconds_per_iteration)
        self._order[(recurrence, where)] = None
        self._order.move_to_end((recurrence, where))
        if len(self._order) > ENTRIES_MAX:
            (oldest, place), _ = self._order.popitem(last=False)
            del self._entries[oldest][place]
            if not self._entries[oldest]:
                del self._entries[oldest]

    def observe_row(self, row: EndedRow) -> None:
        """Learn from an ended job: its measured speed, else the mean over its productive seconds."""
        seconds = row.seconds_per_iteration
        if seconds is None and row.iterations:
            seconds = row.service_s / row.iterations
        if seconds is not None:
            job = row.submission
            self.observe(
                job.recurrence, job.gpus, row.ran_on_gpu_type or job.gpu_type, row.servers_spanned or 1, seconds
            )

    def lookup(self, recurrence: Recurrence, gpus: int, gpu_type: str = "") -> float | None:
        """Seconds per iteration, the median of the newest runs of the closest match; None if the program was never measured.

        Backs off: same GPUs and type, on the servers where it was fastest; same GPUs; nearest number of GPUs. ``gpu_type`` ""
        means the fastest measured.
        """
        entries = self._entries.get(recurrence)
        if not entries:
            return None
        nearest = min((abs(math.log(where[0] / gpus)), where[0]) for where in entries)[1]
        places = [where for where in entries if where[0] == nearest]
        alike = [where for where in places if gpu_type and where[:2] == (gpus, gpu_type)]
        return min(median(entries[where]) for where in alike or places)
