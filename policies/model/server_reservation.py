"""Server reservations: servers that are set aside for a time."""

from collections.abc import Iterable

from policies.model.ids import ServerIndex
from policies.model.job import JobSpec
from policies.model.value import value


def server_reservations_after(
    reservations: "Iterable[ServerReservation]", at_s: float
) -> "tuple[ServerReservation, ...]":
    """The reservations that end after ``at_s``, in the order in which they begin."""
    left = [each for each in reservations if each.ends_at_s > at_s]
    return tuple(sorted(left, key=lambda each: (each.starts_at_s, each.id)))


@value
class ServerReservation:
    """From ``starts_at_s`` until ``ends_at_s`` only jobs of ``user`` and ``project`` may be on these servers; both None:
    no jobs at all, for maintenance. ``preempt``: other jobs that run there at the start are stopped; else they may end."""

    id: int
    servers: tuple[ServerIndex, ...]
    starts_at_s: float
    ends_at_s: float
    user: str | None = None
    project: str | None = None
    preempt: bool = True

    def admits(self, spec: JobSpec) -> bool:
        """Whether the servers are set aside for this job."""
        if self.user is None and self.project is None:
            return False
        return self.user in (None, spec.user) and self.project in (None, spec.project)

    def active(self, now_s: float) -> bool:
        """Whether it has begun and is not over."""
        return self.starts_at_s <= now_s < self.ends_at_s
