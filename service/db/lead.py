"""The lead of a database as one process holds it: taken, kept up, trusted no longer than is safe, and given back.

The database decides who leads, by its own clock. A process cannot ask it before every step, so it counts on its lease until
a while before it can have run out, measured on a clock that nobody sets, from the moment *before* it asked. Whoever was
stopped, swapped out or cut off finds that time over when he wakes up, and does nothing more.
"""

import logging
import threading
import time
from collections.abc import Callable

from service.db import leases
from service.db.commit import FencedOff
from service.db.session import Database

logger = logging.getLogger(__name__)

MARGIN_RATIO = 0.15
"""Share of a lease's duration in which its holder no longer trusts it: for steps that are under way, and clocks that drift."""


def boot_time_s() -> float:
    """Seconds since the machine was started, also those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lead:
    """One process's claim on a lease. Methods may be called from several threads."""

    def __init__(
        self,
        database: Database,
        name: str,
        holder: str,
        duration_s: float,
        elapsed_s: Callable[[], float] = boot_time_s,
    ) -> None:
        self.name = name
        self._database = database
        self._holder = holder
        self._duration_s = duration_s
        self._elapsed_s = elapsed_s
        self._lock = threading.Lock()
        self._lease: leases.Lease | None = None
        self._trusted_until_s = 0.0

    @property
    def token(self) -> int | None:
        """The fencing token, from :meth:`take` until the lead is lost or given back."""
        lease = self._lease
        return None if lease is None else lease.token

    def holds(self) -> bool:
        """Whether this process may decide and command now."""
        return self._lease is not None and self._elapsed_s() < self._trusted_until_s

    def check(self) -> None:
        """Raise FencedOff unless :meth:`holds`."""
        if not self.holds():
            raise FencedOff(f"the lease {self.name!r} was not renewed in time")

    def take(self) -> bool:
        """Take the lead if nobody has it. Costs a read while somebody has."""
        with self._lock:
            if leases.held_by_another(self._database, self.name, self._holder):
                return False
            asked_at_s = self._elapsed_s()
            lease = leases.acquire(self._database, self.name, self._holder, self._duration_s)
            if lease is None:
                return False
            self._lease = lease
            self._trust_from(asked_at_s)
            return True

    def keep(self) -> bool:
        """Renew; False if another one has taken the lead, which is then lost. An error of the database loses nothing yet."""
        with self._lock:
            lease = self._lease
            if lease is None:
                return False
            asked_at_s = self._elapsed_s()
            renewed = leases.renew(self._database, lease, self._duration_s)
            if self._lease is not lease:
                return False  # lost meanwhile, as a transaction has found: that stays
            self._lease = renewed
            if renewed is None:
                return False
            self._trust_from(asked_at_s)
            return True

    def stands(self) -> bool:
        """Whether this process has the lead, trusted or not. Costs a read while it is not trusted: whatever keeps :meth:`keep`
        from finding that another one has it must not make two services say that they lead."""
        if self._lease is None:
            return False
        if not self.holds() and leases.held_by_another(self._database, self.name, self._holder):
            self.lose()
        return self._lease is not None

    def lose(self) -> None:
        """Somebody else leads, as a transaction has just found."""
        self._lease = None

    def give_back(self) -> None:
        """Let the next one take it at once. Does nothing for whoever does not hold it."""
        with self._lock:
            lease, self._lease = self._lease, None
            if lease is not None:
                leases.release(self._database, lease)

    def _trust_from(self, asked_at_s: float) -> None:
        self._trusted_until_s = asked_at_s + self._duration_s * (1.0 - MARGIN_RATIO)
