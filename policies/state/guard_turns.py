"""When a gang beyond the guarded share may have its next turn, so that turns do not take the cluster from all other jobs.

Our construction, no part of the A-SRPT paper. If every overdue gang had its turn at once, the order of jobs would be first in,
first out wherever more work waits than the cluster can do: the oldest gangs, which are the longest jobs, would take all of it.
"""

import math
from collections.abc import Mapping
from typing import Any

from policies.model.ids import JobId
from policies.model.value import value


@value
class Turn:
    """A guarded gang that runs, and the GPUs that it takes from the other jobs meanwhile (:meth:`GuardTurns.taken_gpus`).

    Without preemption its turn has started when GPUs were reserved for it, and it takes all of its GPUs.
    """

    job: JobId
    started_at_s: float
    taken_gpus: float


class GuardTurns:
    """The turn of a guarded gang, when the next may begin, and how many GPUs idle between turns.

    Turns take at most the guarded share of the cluster from the other jobs: the next one begins once the GPU time that the last
    has taken is no more than that share of the time since it began.
    """

    __slots__ = ("_free", "_idle", "_since_s", "next_from_s", "turn")

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self.next_from_s = 0.0
        self._idle: dict[str, float] = {}
        """GPUs of each type that idled while jobs waited and no gang had its turn: a mean that forgets."""
        self._free: dict[str, int] = {}
        """GPUs that are free since ``_since_s``."""
        self._since_s: float | None = None

    def taken_gpus(self, gpus: int, gpu_type: str) -> float:
        """The GPUs that a gang takes from the other jobs, less those of its own that would idle without it; at least 0.

        A gang that mostly uses what would idle costs the others nothing: its turns make better use of the cluster.
        """
        return max(0.0, gpus - 2.0 * self._idle.get(gpu_type, 0.0))

    def follow(self, turn: Turn | None, now_s: float, gpus_max: float) -> None:
        """The turn as it is now; ``gpus_max``: the guarded share in GPUs. If the last one is over, the next one has to wait."""
        last = self.turn
        if last is not None and (turn is None or (turn.job, turn.started_at_s) != (last.job, last.started_at_s)):
            self.next_from_s = last.started_at_s + last.taken_gpus / gpus_max * (now_s - last.started_at_s)
        self.turn = turn

    def watch(self, now_s: float, free: Mapping[str, int] | None, memory_s: float) -> None:
        """So many GPUs of each type are free from now on; None if no job waits for them, or a gang has its turn.

        O(GPU types). Weights fall to 1/e in ``memory_s``.
        """
        if self._since_s is not None and now_s > self._since_s:
            weight = 1.0 - math.exp((self._since_s - now_s) / memory_s) if memory_s > 0.0 else 1.0
            for name, gpus in self._free.items():
                idle = self._idle.get(name, 0.0)
                self._idle[name] = idle + weight * (gpus - idle)
        self._since_s, self._free = (None, {}) if free is None else (now_s, dict(free))

    def dump(self) -> dict[str, Any]:
        """All of it: it does not follow from the jobs."""
        turn = None if self.turn is None else [self.turn.job, self.turn.started_at_s, self.turn.taken_gpus]
        return {
            "turn": turn,
            "next_from_s": self.next_from_s,
            "idle": dict(self._idle),
            "free": dict(self._free),
            "since_s": self._since_s,
        }

    def restore(self, dump: Mapping[str, Any]) -> None:
        """Take back what an earlier dump has; an empty one changes nothing."""
        if not dump:
            return
        turn = dump["turn"]
        self.turn = None if turn is None else Turn(JobId(turn[0]), turn[1], turn[2])
        self.next_from_s, self._since_s = dump["next_from_s"], dump["since_s"]
        self._idle, self._free = dict(dump["idle"]), dict(dump["free"])
