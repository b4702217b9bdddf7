"""The services of a database: their heartbeats, and the decision that one of them is dead.

A service whose last heartbeat is older than its supervisors' lease runs nothing any more: its supervisors have stopped their
attempts by themselves. To rely on that, the leader first *condemns* the service, in a transaction that conflicts with a
heartbeat. A condemned service is alive again only after it has verified that none of its attempts run (:func:`reinstate`).
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, delete, insert, select, update

from policies.model.ids import JobId
from service.db.lease import LEADER_LEASE, check_fence
from service.db.rows import OPEN_ATTEMPTS
from service.db.session import Database
from service.db.tables import ATTEMPTS, LEASES, SERVICES
from service.domain.counts import count_of


class UnknownHosts(ValueError):
    """Open attempts belong to an executor that this service does not have; the message is one line."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A service: the id of its data folder, a name for people, and the URL of its API."""

    id: str
    name: str
    url: str
    version: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class ServiceNow:
    """A service as the database knows it. ``silent_s``: seconds since its last heartbeat, on the database's clock."""

    registered: Registered
    leads: bool
    started_at_s: float
    seen_at_s: float
    silent_s: float
    condemned: bool


def register(database: Database, service: Registered, *, claim: bool) -> bool:
    """Register a service at its start; False if it was condemned meanwhile.

    With ``claim`` it takes over all open attempts without a host: those of a data folder from before attempts had hosts.
    A shorter lease counts only when none of its attempts is open: supervisors keep the lease with which they were started.
    """
    with database.writing() as session:
        connection = session.connection()
        now_s = database.now_s(session)
        ours = SERVICES.c.id == service.id
        known = select(SERVICES.c.condemned_at_s, SERVICES.c.lease_s).where(ours).with_for_update()
        found = connection.execute(known).one_or_none()
        values = asdict(service) | {"started_at_s": now_s}
        if found is not None and _has_open_attempts(connection, service.id):
            values["lease_s"] = max(found.lease_s, service.lease_s)
        if found is None:
            connection.execute(insert(SERVICES), values | {"seen_at_s": now_s})
        else:
            # Not a heartbeat: the service first has to look at what its supervisors did meanwhile.
            connection.execute(update(SERVICES).where(ours).values(values))
        if claim:
            unowned = (ATTEMPTS.c.host == "") & ATTEMPTS.c.state.in_(OPEN_ATTEMPTS)
            connection.execute(update(ATTEMPTS).where(unowned).values(host=service.id))
    return found is None or found.condemned_at_s is None


def _has_open_attempts(connection: Connection, service_id: str) -> bool:
    statement = select(ATTEMPTS.c.id).where(ATTEMPTS.c.host == service_id, ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
    return connection.execute(statement.limit(1)).first() is not None


def name_of(database: Database, service_id: str) -> str:
    """The name that a service has registered; empty for an unknown one."""
    return database.value(select(SERVICES.c.name).where(SERVICES.c.id == service_id)) or ""


def heartbeat(database: Database, service_id: str) -> bool:
    """Store that the service lives; False, and nothing is stored, if it has been condemned."""
    with database.writing() as session:
        ours = (SERVICES.c.id == service_id) & SERVICES.c.condemned_at_s.is_(None)
        statement = update(SERVICES).where(ours).values(seen_at_s=database.now_s(session))
        return session.connection().execute(statement).rowcount == 1


def condemn(database: Database, service_id: str, seen_at_s: float, lease: str, token: int) -> bool:
    """Decide that nothing of a service runs, if its newest heartbeat is that of ``seen_at_s``; True if that was decided before.

    The caller has waited for another one for long enough. Raises FencedOff unless ``token`` is the newest one of ``lease``.
    """
    with database.writing(lease=True) as session:
        connection = session.connection()
        check_fence(connection, lease, token)
        ours = SERVICES.c.id == service_id
        wanted = select(SERVICES.c.seen_at_s, SERVICES.c.condemned_at_s).where(ours).with_for_update()
        found = connection.execute(wanted).one_or_none()
        if found is None or found.condemned_at_s is not None:
            return found is not None
        if found.seen_at_s != seen_at_s:
            return False
        connection.execute(update(SERVICES).where(ours).values(condemned_at_s=database.now_s(session)))
        return True


def reinstate(database: Database, service_id: str) -> bool:
    """Store that a condemned service is alive: it has verified that none of its attempts run. False if it is not registered."""
    with database.writing() as session:
        values = {"condemned_at_s": None, "seen_at_s": database.now_s(session)}
        statement = update(SERVICES).where(SERVICES.c.id == service_id).values(values)
        return session.connection().execute(statement).rowcount == 1


def delete_silent(database: Database, silent_s: float) -> int:
    """Delete services without a heartbeat for so long and without an open attempt; returns how many."""
    with database.writing() as session:
        busy = select(ATTEMPTS.c.host).where(ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
        gone = (SERVICES.c.seen_at_s < database.now_s(session) - silent_s) & SERVICES.c.id.not_in(busy)
        return session.connection().execute(delete(SERVICES).where(gone)).rowcount


def services(database: Database) -> list[ServiceNow]:
    """Every registered service, newest heartbeat first."""
    with database.reading() as session:
        connection = session.connection()
        now_s = database.now_s(session)
        held = (LEASES.c.name == LEADER_LEASE) & (LEASES.c.expires_at_s > now_s)
        leading = connection.execute(select(LEASES.c.holder).where(held)).scalars().all()
        found = connection.execute(select(SERVICES).order_by(SERVICES.c.seen_at_s.desc(), SERVICES.c.id)).all()
    return [
        ServiceNow(
            Registered(row.id, row.name, row.url, row.version, row.lease_s),
            leads=row.id in leading,
            started_at_s=row.started_at_s,
            seen_at_s=row.seen_at_s,
            silent_s=now_s - row.seen_at_s,
            condemned=row.condemned_at_s is not None,
        )
        for row in found
    ]


def url_of_attempt(database: Database, host: str, job: JobId, number: int) -> str | None:
    """The URL of the service that holds an attempt of a job; None if that is ``host``, or no service: the attempts of a cluster
    are in a folder that its services share.
    """
    statement = (
        select(ATTEMPTS.c.host, SERVICES.c.url)
        .join_from(ATTEMPTS, SERVICES, SERVICES.c.id == ATTEMPTS.c.host, isouter=True)
        .where(ATTEMPTS.c.job_id == job, ATTEMPTS.c.number == number)
    )
    found = database.rows(statement)
    return None if not found or found[0].host == host else found[0].url


def check_hosts(database: Database, service_id: str, attempts_host: str, unattended: Path | None = None) -> None:
    """Raise :class:`UnknownHosts` if attempts are open that no service with this setting of the executor would attend to.

    ``attempts_host``: the id that new attempts of this service get, its own or that of a cluster. ``unattended``: where
    executor=local has the folders of its attempts, if the executor knows nothing of them.
    """
    own = ATTEMPTS.c.host == service_id
    with database.reading() as session:
        connection = session.connection()
        known = select(SERVICES.c.id)
        lone = (ATTEMPTS.c.host != "") & (ATTEMPTS.c.host != attempts_host) & (own | ATTEMPTS.c.host.not_in(known))
        if unattended is not None:
            lone |= own
        statement = select(ATTEMPTS.c.id, ATTEMPTS.c.host).where(lone, ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
        found = connection.execute(statement.order_by(ATTEMPTS.c.id)).all()
    if unattended is not None:
        found = [row for row in found if row.host != service_id or (unattended / row.id).exists()]
    if found:
        names = ", ".join(row.id for row in found[:5]) + (", ..." if len(found) > 5 else "")
        holder = "this service with executor=local" if found[0].host == service_id else f"the cluster {found[0].host}"
        raise UnknownHosts(
            f"{count_of(len(found), 'open attempt')} of {holder} ({names}) would be left alone; start with the executor and the "
            "shared_dir used before, and let these attempts end or cancel their jobs before you change the executor"
        )


def heartbeats_of(database: Database, ids: Collection[str]) -> Mapping[str, tuple[float, float]]:
    """(time of the newest heartbeat, the supervisors' lease in seconds) of those of these services that are known.

    The time is on the database's clock, which may be set: it only shows *that* there was a heartbeat.
    """
    if not ids:
        return {}
    statement = select(SERVICES.c.id, SERVICES.c.seen_at_s, SERVICES.c.lease_s).where(SERVICES.c.id.in_(ids))
    return {row.id: (row.seen_at_s, row.lease_s) for row in database.rows(statement)}
