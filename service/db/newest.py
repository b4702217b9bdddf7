"""How far the service's time had come when it was last written down."""

from sqlalchemy import select

from service.db.session import Database
from service.db.tables import CycleRow, table


def newest_cycle_at_s(database: Database) -> float:
    """When the newest cycle was, in epoch seconds on the clock of the service that made it; 0.0 before the first."""
    cycles = table(CycleRow)
    statement = select(cycles.c.at_s).order_by(cycles.c.number.desc()).limit(1)
    with database.reading() as session:
        return float(session.connection().execute(statement).scalar() or 0.0)
