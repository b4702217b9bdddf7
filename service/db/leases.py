"""Leases in the database: one holder at a time, by the database's clock, with a token that grows at every change of hands."""

from typing import NamedTuple

from sqlalchemy import insert, select, update
from sqlmodel import Session

from service.db.dialects import take_turns
from service.db.session import Database
from service.db.tables import LEASES


class Lease(NamedTuple):
    """A lease that was ours when it was read. ``expires_at_s`` is on the database's clock: never compare it with another."""

    name: str
    holder: str
    token: int
    expires_at_s: float


def acquire(database: Database, name: str, holder: str, duration_s: float) -> Lease | None:
    """Take a lease that is free or has run out; None while another holder has it.

    The token is larger than every earlier one, also when the same holder takes it again: its earlier self may still have
    a transaction under way.
    """
    with database.writing(lease=True) as session:
        connection = session.connection()
        # A row that is not there yet cannot be locked: without this, two first holders would both insert it.
        take_turns(connection, f"lease {name}")
        now_s = database.now_s(session)
        found = (
            connection.execute(select(LEASES).where(LEASES.c.name == name).with_for_update()).mappings().one_or_none()
        )
        if found is not None and found["expires_at_s"] > now_s and found["holder"] != holder:
            return None
        lease = Lease(name, holder, 1 if found is None else found["token"] + 1, now_s + duration_s)
        if found is None:
            connection.execute(insert(LEASES), lease._asdict())
        else:
            connection.execute(update(LEASES).where(LEASES.c.name == name).values(**lease._asdict()))
        return lease


def held_by_another(database: Database, name: str, holder: str) -> bool:
    """Whether somebody else holds the lease now. Reads only: those who wait for it ask again and again."""
    with database.reading() as session:
        held = (LEASES.c.name == name) & (LEASES.c.holder != holder) & (LEASES.c.expires_at_s > database.now_s(session))
        return session.connection().execute(select(LEASES.c.token).where(held)).first() is not None


def anybody_leads(database: Database, session: Session) -> bool:
    """Whether any lease runs. Locks them all until the transaction ends: a service that starts meanwhile waits."""
    expiries = session.connection().execute(select(LEASES.c.expires_at_s).with_for_update()).scalars().all()
    return bool(expiries) and max(expiries) > database.now_s(session)


def newest_token(session: Session, name: str) -> int:
    """The token of whoever holds or held the lease last; 0 if nobody ever did."""
    return int(session.connection().execute(select(LEASES.c.token).where(LEASES.c.name == name)).scalar() or 0)


def renew(database: Database, lease: Lease, duration_s: float) -> Lease | None:
    """Extend the lease; None if another holder has taken it. One that ran out untaken is extended too."""
    with database.writing(lease=True) as session:
        extended = lease._replace(expires_at_s=database.now_s(session) + duration_s)
        return extended if _store_expiry(session, extended) else None


def release(database: Database, lease: Lease) -> None:
    """Let the next one take it at once. Does nothing if it is not ours any more."""
    with database.writing(lease=True) as session:
        _store_expiry(session, lease._replace(expires_at_s=0.0))


def _store_expiry(session: Session, lease: Lease) -> bool:
    ours = (LEASES.c.name == lease.name) & (LEASES.c.holder == lease.holder) & (LEASES.c.token == lease.token)
    return (
        session.connection().execute(update(LEASES).where(ours).values(expires_at_s=lease.expires_at_s)).rowcount == 1
    )
