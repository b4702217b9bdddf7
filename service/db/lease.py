"""The leader lease: one holder at a time, by the database's clock, with a token that grows with every new holder.

A process cannot ask the database before every step. :class:`LeaderLease` therefore counts on the lease only until shortly
before it can expire, measured on the machine's boot clock from *before* the database was asked. A process that was suspended,
swapped out or cut off finds that time over when it continues, and does nothing more.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update
from sqlmodel import Session

from service.db.dialects import take_locks
from service.db.session import Database
from service.db.tables import LEASES, columns
from service.engine.ports import StoreUnavailable

LEADER_LEASE = "leader"
"""The lease whose holder runs the scheduling loop."""

MARGIN_RATIO = 0.15
"""Share of a lease's duration in which its holder no longer relies on it: for steps under way and clocks that drift."""


class FencedOff(StoreUnavailable):
    """Another service leads now: this one must stop its loop instead of trying again."""


class Lease(NamedTuple):
    """A lease as it was read. ``expires_at_s`` is on the database's clock; do not compare it with any other clock."""

    name: str
    holder: str
    token: int
    expires_at_s: float


def acquire(database: Database, name: str, holder: str, duration_s: float, ended: Lease | None = None) -> Lease | None:
    """Take a lease that is free or has expired; None while another holder has it.

    ``ended``: a lease whose process has ended for certain. It is free, too, unless it has been taken since.

    The token is larger than every earlier one, even when the same holder takes the lease again: an earlier run of the same
    holder may still have a transaction under way.
    """
    with database.writing(lease=True) as session:
        connection = session.connection()
        # A row that does not exist cannot be locked: without this lock two first holders would both insert it.
        take_locks(connection, f"lease {name}")
        now_s = database.now_s(session)
        found = connection.execute(select(LEASES).where(LEASES.c.name == name).with_for_update()).one_or_none()
        gone = None if ended is None else ended.token
        if found is not None and found.expires_at_s > now_s and found.holder != holder and found.token != gone:
            return None
        lease = Lease(name, holder, 1 if found is None else found.token + 1, now_s + duration_s)
        change = insert(LEASES) if found is None else update(LEASES).where(LEASES.c.name == name)
        connection.execute(change.values(**lease._asdict()))
        return lease


def held_by_another(database: Database, name: str, holder: str) -> Lease | None:
    """The lease, if another holder has it now. Reads only: a standby service asks again and again."""
    with database.reading() as session:
        held = (LEASES.c.name == name) & (LEASES.c.holder != holder) & (LEASES.c.expires_at_s > database.now_s(session))
        found = session.connection().execute(select(*columns(LEASES, " ".join(Lease._fields))).where(held)).first()
        return None if found is None else Lease(*found)


def is_led(database: Database, session: Session) -> bool:
    """Whether a service leads. Locks the lead until the transaction ends: a service that starts meanwhile waits.

    The lease of a training does not count: that of a service that died during one lasts for as long as the training could have.
    """
    ours = select(LEASES.c.expires_at_s).where(LEASES.c.name == LEADER_LEASE).with_for_update()
    expires_at_s = session.connection().execute(ours).scalar()
    return expires_at_s is not None and expires_at_s > database.now_s(session)


def newest_token(session: Session, name: str) -> int:
    """The newest token of a lease; 0 if it was never held."""
    return int(session.connection().execute(select(LEASES.c.token).where(LEASES.c.name == name)).scalar() or 0)


def check_fence(connection: Connection, lease: str, token: int) -> None:
    """Raise :class:`FencedOff` unless ``token`` is the newest one of the lease.

    The row is locked, so that no other process can take the lease before this transaction ends (one of
    :meth:`~service.db.session.Database.writing` with ``lease``).
    """
    newest = connection.execute(select(LEASES.c.token).where(LEASES.c.name == lease).with_for_update()).scalar()
    if newest != token:
        raise FencedOff(f"the lease {lease!r} has token {newest}, this service holds {token}")


def renew(database: Database, lease: Lease, duration_s: float) -> Lease | None:
    """Extend the lease; None if another holder has taken it. A lease that expired but was not taken is extended too."""
    with database.writing(lease=True) as session:
        extended = lease._replace(expires_at_s=database.now_s(session) + duration_s)
        return extended if _store_expiry(session, extended) else None


def release(database: Database, lease: Lease) -> None:
    """Free the lease for the next holder at once. Does nothing if another holder has it."""
    with database.writing(lease=True) as session:
        _store_expiry(session, lease._replace(expires_at_s=0.0))


def _store_expiry(session: Session, lease: Lease) -> bool:
    ours = (LEASES.c.name == lease.name) & (LEASES.c.holder == lease.holder) & (LEASES.c.token == lease.token)
    change = update(LEASES).where(ours).values(expires_at_s=lease.expires_at_s)
    return session.connection().execute(change).rowcount == 1


def boot_time_s() -> float:
    """Seconds since the machine was started, including those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderLease:
    """A lease as one process uses it: taken, renewed, relied on no longer than is safe, and released. Thread-safe.

    ``has_ended``: whether the last process of another holder has ended for certain, as far as this one can know. Each holder has
    at most one process at a time, which takes the lease itself.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        holder: str,
        duration_s: float,
        elapsed_s: Callable[[], float] = boot_time_s,
        has_ended: Callable[[str], bool] = lambda holder: False,
    ) -> None:
        self.name = name
        self._database = database
        self._holder = holder
        self._duration_s = duration_s
        self._elapsed_s = elapsed_s
        self._has_ended = has_ended
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._valid_until_s = 0.0

    @property
    def token(self) -> int | None:
        """The fencing token, from :meth:`take` until the lease is lost or released."""
        lease = self._lease
        return None if lease is None else lease.token

    def holds(self) -> bool:
        """Whether this process may decide and command now."""
        return self._lease is not None and self._elapsed_s() < self._valid_until_s

    def check(self) -> None:
        """Raise FencedOff unless :meth:`holds`."""
        if not self.holds():
            raise FencedOff(f"the lease {self.name!r} was not renewed in time")

    def take(self) -> bool:
        """Take the lease if it is free, or its holder has ended. Costs one read, and a look at the holder, while there is one."""
        with self._lock:
            held = held_by_another(self._database, self.name, self._holder)
            # The lease is read first: whoever has taken it before has ended then, too.
            if held is not None and not self._has_ended(held.holder):
                return False
            asked_at_s = self._elapsed_s()
            lease = acquire(self._database, self.name, self._holder, self._duration_s, held)
            if lease is not None:
                self._hold(lease, asked_at_s)
            return lease is not None

    def renew(self) -> bool:
        """Renew the lease; False if it is lost to another holder. An error of the database does not lose it yet."""
        with self._lock:
            lease = self._lease
            if lease is None:
                return False
            asked_at_s = self._elapsed_s()
            renewed = renew(self._database, lease, self._duration_s)
            if self._lease is not lease:
                return False  # a transaction has found meanwhile that it is lost
            if renewed is None:
                self._lease = None
            else:
                self._hold(renewed, asked_at_s)
            return renewed is not None

    def still_leads(self) -> bool:
        """Whether this process has the lease, whether it may rely on it or not. Costs one read while it may not.

        Without that read two services could both report that they lead while :meth:`renew` cannot reach the database.
        """
        if self._lease is None:
            return False
        if not self.holds() and held_by_another(self._database, self.name, self._holder):
            self.lose()
        return self._lease is not None

    def lose(self) -> None:
        """Note that another service leads, as a transaction has just found."""
        self._lease = None

    def release(self) -> None:
        """Free the lease for the next holder at once. Does nothing if this process does not hold it."""
        with self._lock:
            lease, self._lease = self._lease, None
            if lease is not None:
                release(self._database, lease)

    def _hold(self, lease: Lease, asked_at_s: float) -> None:
        self._lease = lease
        self._valid_until_s = asked_at_s + self._duration_s * (1.0 - MARGIN_RATIO)
