"""The result of the last scan of the queue heads, which saves the next cycle an equal scan."""

import math

from policies.model.ids import JobId
from policies.state.keys import GangClass


class LastScan:
    """The result of the last scan, and whether it still holds.

    ``valid``: nothing but running jobs has changed since then that could let another waiting job start.
    ``partial``: GPUs were given to jobs before the last scan, so that no job could displace these then; also true before the
    first scan. ``blocked``: the job of each class for which nothing could be done. ``delayed``: classes in which jobs wait for
    a better placement, the first of them until ``repeat_at_s``.
    """

    __slots__ = ("at_s", "blocked", "delayed", "partial", "repeat_at_s", "valid")

    def __init__(self) -> None:
        self.at_s = -math.inf
        self.valid = False
        self.partial = True
        self.repeat_at_s = math.inf
        self.blocked: dict[GangClass, JobId] = {}
        self.delayed: set[GangClass] = set()

    def begin(self, now_s: float) -> None:
        """A new scan begins."""
        self.at_s = now_s
        self.valid = True
        self.delayed.clear()
