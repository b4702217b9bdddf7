"""What-if runs in the database. A run is stored as queued, claimed by the leader, and closed once.

``starts`` counts the claims and fences off earlier ones: what a run that was given up writes later changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, text, update

from service.db.dialects import take_locks
from service.db.lease import LEADER_LEASE, check_fence
from service.db.pages import page
from service.db.session import Database
from service.db.tables import SIMULATIONS, columns
from service.domain.simulations import STARTS_MAX, SimulationState

_OPEN = text("state IN ('queued', 'running')")
"""Written as in the partial index, so that both databases use it."""

_SUMMARY = columns(
    SIMULATIONS, "id state request user created_at_s started_at_s ended_at_s starts done total eta_s error"
)
"""All but the report, which may be large."""

_GIVEN_UP = f"the service ended during the run, {STARTS_MAX} times; it is not started again"


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that the caller is to make. ``starts`` identifies the claim."""

    id: int
    starts: int
    request: Mapping[str, Any]


def add_simulation(
    connection: Connection, request: Mapping[str, Any], user: str | None, waiting_max: int, now_s: float
) -> int | None:
    """Store a run as queued, and return its number; None if ``waiting_max`` wait already."""
    # Two transactions that count side by side would both find room.
    take_locks(connection, "simulations")
    waiting = (
        select(func.count()).select_from(SIMULATIONS).where(_OPEN, SIMULATIONS.c.state == SimulationState.QUEUED.value)
    )
    if connection.execute(waiting).scalar_one() >= waiting_max:
        return None
    values = {
        "state": SimulationState.QUEUED.value,
        "request": request,
        "user": user,
        "created_at_s": now_s,
        "starts": 0,
    }
    return int(connection.execute(insert(SIMULATIONS).values(values).returning(SIMULATIONS.c.id)).scalar_one())


def simulations(connection: Connection, before: int | None, limit: int) -> list[Row[Any]]:
    """Runs without their reports, newest first."""
    return list(page(connection, select(*_SUMMARY), [SIMULATIONS.c.id], before, limit, descending=True))


def simulation(connection: Connection, number: int, *, report: bool = False) -> Row[Any] | None:
    """One run, or None; its report only where it is asked for."""
    wanted = (*_SUMMARY, SIMULATIONS.c.report) if report else _SUMMARY
    return connection.execute(select(*wanted).where(SIMULATIONS.c.id == number)).one_or_none()


def cancel_simulation(connection: Connection, number: int, now_s: float) -> bool:
    """Close an open run as cancelled; False if it is not open. Whoever makes it finds its claim void and kills the process."""
    values = {"state": SimulationState.CANCELLED.value, "ended_at_s": now_s, "eta_s": None}
    change = update(SIMULATIONS).where(SIMULATIONS.c.id == number, _OPEN).values(values)
    return connection.execute(change).rowcount == 1


def is_any_open(database: Database) -> bool:
    """Whether a run waits or is under way."""
    return bool(database.rows(select(SIMULATIONS.c.id).where(_OPEN).limit(1)))


def claim_simulation(database: Database, token: int, now_s: float) -> Claim | None:
    """The run to make next, now marked as running; None if none waits. For a leader that makes none.

    A run that is marked as running then belongs to a service that ended or lost the lead: it waits again, and comes first
    as the oldest. Raises FencedOff if ``token`` is not that of the lead.
    """
    state = SIMULATIONS.c.state
    left = state == SimulationState.RUNNING.value
    with database.writing(lease=True) as session:
        connection = session.connection()
        check_fence(connection, LEADER_LEASE, token)
        failed = {"state": SimulationState.FAILED.value, "ended_at_s": now_s, "error": _GIVEN_UP, "eta_s": None}
        connection.execute(update(SIMULATIONS).where(_OPEN, left, SIMULATIONS.c.starts >= STARTS_MAX).values(failed))
        again = {"state": SimulationState.QUEUED.value, "done": None, "total": None, "eta_s": None}
        connection.execute(update(SIMULATIONS).where(_OPEN, left).values(again))
        waiting = select(SIMULATIONS.c.id, SIMULATIONS.c.starts, SIMULATIONS.c.request)
        waiting = waiting.where(_OPEN, state == SimulationState.QUEUED.value).order_by(SIMULATIONS.c.id).limit(1)
        found = connection.execute(waiting.with_for_update()).one_or_none()
        if found is None:
            return None
        values = {"state": SimulationState.RUNNING.value, "started_at_s": now_s, "starts": found.starts + 1}
        connection.execute(update(SIMULATIONS).where(SIMULATIONS.c.id == found.id).values(values))
        return Claim(found.id, found.starts + 1, found.request)


def note_progress(database: Database, claim: Claim, done: int, total: int, eta_s: float | None) -> bool:
    """Store how far a run is; False if the claim is void."""
    values = {"done": done, "total": total, "eta_s": eta_s}
    return database.execute(update(SIMULATIONS).where(*_held(claim)).values(values)) == 1


def is_held(database: Database, claim: Claim) -> bool:
    """Whether the claim holds: the run is neither cancelled nor claimed by another service."""
    return bool(database.rows(select(SIMULATIONS.c.id).where(*_held(claim))))


def close_simulation(
    database: Database, claim: Claim, now_s: float, report: Mapping[str, Any] | None, error: str | None
) -> None:
    """Store how a run ended; nothing if the claim is void."""
    state = SimulationState.FAILED if report is None else SimulationState.SUCCEEDED
    values: dict[str, Any] = {
        "state": state.value,
        "ended_at_s": now_s,
        "report": report,
        "error": error,
        "eta_s": None,
    }
    if report is not None:
        values["done"] = SIMULATIONS.c.total
    database.execute(update(SIMULATIONS).where(*_held(claim)).values(values))


def return_simulation(database: Database, claim: Claim) -> None:
    """Let a run wait again that is not finished, as the service stops; nothing if the claim is void."""
    values = {"state": SimulationState.QUEUED.value, "done": None, "total": None, "eta_s": None}
    database.execute(update(SIMULATIONS).where(*_held(claim)).values(values))


def _held(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    rows = SIMULATIONS.c
    return (rows.id == claim.id, rows.state == SimulationState.RUNNING.value, rows.starts == claim.starts)
