"""Servers that are set aside for a time."""

from collections.abc import Iterable

from policies.model.ids import ServerIndex
from policies.model.job import JobSpec
from policies.model.value import value


def server_reservations_after(windows: "Iterable[ServerReservation]", at_s: float) -> "tuple[ServerReservation, ...]":
    """Those that are not over by then, the first to begin first."""
    left = [window for window in windows if window.ends_at_s > at_s]
    return tuple(sorted(left, key=lambda window: (window.starts_at_s, window.id)))


@value
class ServerReservation:
    """From ``starts_at_s`` until ``ends_at_s`` only jobs of ``user`` and ``project`` may be on these servers; both None:
    nobody's, for maintenance. ``preempt``: whoever is still there at the start is stopped; otherwise it may end."""

    id: int
    servers: tuple[ServerIndex, ...]
    starts_at_s: float
    ends_at_s: float
    user: str | None = None
    project: str | None = None
    preempt: bool = True

    def admits(self, spec: JobSpec) -> bool:
        """Whether the job is one of those that the servers are set aside for."""
        if self.user is None and self.project is None:
            return False
        return self.user in (None, spec.user) and self.project in (None, spec.project)

    def active(self, now_s: float) -> bool:
        """Whether it has begun and is not over."""
        return self.starts_at_s <= now_s < self.ends_at_s
