"""The services of a database: their signs of life, and the verdict that one of them is gone for good.

A service whose last sign of life is older than its supervisors' lease runs nothing any more: they have stopped their
attempts by themselves. Whoever wants to rely on that *condemns* it first, in a transaction that a sign of life would
contradict, and a condemned service is alive again only after it has looked itself (:func:`absolve`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Row, delete, insert, select, update

from policies.lifecycle import ATTEMPT_OPEN
from policies.model.ids import JobId
from service.db.commit import check_fence
from service.db.session import Database
from service.db.store import LEADER_LEASE
from service.db.tables import ATTEMPTS, LEASES, SERVICES

_OPEN = tuple(state.value for state in ATTEMPT_OPEN)


@dataclass(frozen=True, slots=True)
class Registered:
    """Who a service is: the identity of its data folder, a name for people, and where its API answers."""

    id: str
    name: str
    url: str
    version: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class ServiceNow:
    """A service as the database knows it. ``silent_s``: seconds since its last sign of life, on the database's clock."""

    registered: Registered
    leads: bool
    started_at_s: float
    seen_at_s: float
    silent_s: float
    condemned: bool


def register(database: Database, service: Registered, *, claim: bool) -> bool:
    """Enter a service at its start; False if it was condemned meanwhile. With ``claim`` it takes all open attempts that
    belong to nobody: those of a data folder from before attempts had hosts."""
    values = {
        "name": service.name,
        "url": service.url,
        "version": service.version,
        "lease_s": service.lease_s,
    }
    with database.writing() as session:
        connection = session.connection()
        now_s = database.now_s(session)
        ours = SERVICES.c.id == service.id
        found = connection.execute(select(SERVICES.c.condemned_at_s).where(ours).with_for_update()).one_or_none()
        if found is None:
            fresh = {"id": service.id, "seen_at_s": now_s, "started_at_s": now_s}
            connection.execute(insert(SERVICES), values | fresh)
        else:
            # Not a sign of life yet: what its supervisors did meanwhile has to be looked at first.
            connection.execute(update(SERVICES).where(ours).values(started_at_s=now_s, **values))
        if claim:
            orphans = (ATTEMPTS.c.host == "") & ATTEMPTS.c.state.in_(_OPEN)
            connection.execute(update(ATTEMPTS).where(orphans).values(host=service.id))
    return found is None or found.condemned_at_s is None


def sign_of_life(database: Database, service_id: str) -> bool:
    """Say that the service lives; False, and nothing is said, if it has been condemned."""
    with database.writing() as session:
        ours = (SERVICES.c.id == service_id) & SERVICES.c.condemned_at_s.is_(None)
        statement = update(SERVICES).where(ours).values(seen_at_s=database.now_s(session))
        return session.connection().execute(statement).rowcount == 1


def condemn(database: Database, service_id: str, silent_s: float, lease: str, token: int) -> bool:
    """Decide that nothing of a service runs, if it has been silent for so long; True also if that was decided before.

    Raises FencedOff unless ``token`` is the newest one of ``lease``.
    """
    with database.writing(lease=True) as session:
        connection = session.connection()
        check_fence(connection, lease, token)
        now_s = database.now_s(session)
        found = connection.execute(
            select(SERVICES.c.seen_at_s, SERVICES.c.condemned_at_s).where(SERVICES.c.id == service_id).with_for_update()
        ).one_or_none()
        if found is None or found.condemned_at_s is not None:
            return found is not None
        if now_s - found.seen_at_s < silent_s:
            return False
        connection.execute(update(SERVICES).where(SERVICES.c.id == service_id).values(condemned_at_s=now_s))
        return True


def absolve(database: Database, service_id: str) -> None:
    """The service has made sure that nothing of its attempts runs: it is alive."""
    with database.writing() as session:
        statement = update(SERVICES).where(SERVICES.c.id == service_id)
        session.connection().execute(statement.values(condemned_at_s=None, seen_at_s=database.now_s(session)))


def forget_silent(database: Database, silent_s: float) -> int:
    """Delete services that were not seen for so long and have no open attempt; returns how many."""
    with database.writing() as session:
        busy = select(ATTEMPTS.c.host).where(ATTEMPTS.c.state.in_(_OPEN))
        gone = (SERVICES.c.seen_at_s < database.now_s(session) - silent_s) & SERVICES.c.id.not_in(busy)
        return session.connection().execute(delete(SERVICES).where(gone)).rowcount


def services(database: Database) -> list[ServiceNow]:
    """Everybody who was ever entered, the one seen last first."""
    with database.reading() as session:
        connection = session.connection()
        now_s = database.now_s(session)
        held = (LEASES.c.name == LEADER_LEASE) & (LEASES.c.expires_at_s > now_s)
        leading = connection.execute(select(LEASES.c.holder).where(held)).scalars().all()
        found = connection.execute(select(SERVICES).order_by(SERVICES.c.seen_at_s.desc(), SERVICES.c.id)).all()
    return [_service(row, now_s, leading) for row in found]


def url_of_attempt(database: Database, host: str, job: JobId, number: int | None) -> str | None:
    """Where the service answers that holds an attempt of a job (None: the newest); None if that is ``host``, or unknown."""
    statement = (
        select(ATTEMPTS.c.host, SERVICES.c.url)
        .join_from(ATTEMPTS, SERVICES, SERVICES.c.id == ATTEMPTS.c.host)
        .where(ATTEMPTS.c.job_id == job)
        .order_by(ATTEMPTS.c.number.desc())
        .limit(1)
    )
    if number is not None:
        statement = statement.where(ATTEMPTS.c.number == number)
    with database.reading() as session:
        found = session.connection().execute(statement).one_or_none()
    return None if found is None or found.host == host else str(found.url)


def silences(database: Database, ids: Collection[str]) -> Mapping[str, tuple[float, float]]:
    """(seconds since its last sign of life, its supervisors' lease) of each of these services that is known."""
    if not ids:
        return {}
    with database.reading() as session:
        now_s = database.now_s(session)
        statement = select(SERVICES.c.id, SERVICES.c.seen_at_s, SERVICES.c.lease_s).where(SERVICES.c.id.in_(ids))
        return {row.id: (now_s - row.seen_at_s, row.lease_s) for row in session.connection().execute(statement)}


def _service(row: Row[tuple[object, ...]], now_s: float, leading: Collection[str]) -> ServiceNow:
    return ServiceNow(
        Registered(row.id, row.name, row.url, row.version, row.lease_s),
        row.id in leading,
        row.started_at_s,
        row.seen_at_s,
        now_s - row.seen_at_s,
        row.condemned_at_s is not None,
    )
