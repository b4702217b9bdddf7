"""The pipeline schedules of stored jobs get their usual names."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_RENAMED = {"1f1b": "pipedream", "sync": "1f1b"}
_ROWS_PER_STATEMENT = 500


def upgrade() -> None:
    """``1f1b`` was the asynchronous schedule of PipeDream, and ``sync`` what is elsewhere called 1F1B, with a flush.

    The rows are read in parts, so that memory does not grow with their number. They are changed here and not by a replacement in
    the database, in which a label or a variable named ``schedule`` would be changed too.
    """
    for name in ("jobs", "array_specs", "history"):
        _rename(sa.table(name, sa.column("id", sa.BigInteger), sa.column("spec", sa.JSON)))


def _rename(table: sa.TableClause) -> None:
    connection = op.get_bind()
    text = sa.cast(table.c.spec, sa.Text)
    changed = (
        sa.update(table).where(table.c.id == sa.bindparam("row")).values(spec=sa.bindparam("document", type_=sa.JSON))
    )
    last: int | None = None
    while True:
        query = sa.select(table.c.id, text).where(text.like('%"parallelism"%')).order_by(table.c.id)
        rows = connection.execute(
            (query if last is None else query.where(table.c.id > last)).limit(_ROWS_PER_STATEMENT)
        ).all()
        if not rows:
            return
        last = rows[-1][0]
        updates = []
        for row, stored in rows:
            document = json.loads(stored)
            parallelism = document.get("parallelism") if isinstance(document, dict) else None
            if isinstance(parallelism, dict) and parallelism.get("schedule") in _RENAMED:
                parallelism["schedule"] = _RENAMED[parallelism["schedule"]]
                updates.append({"row": row, "document": document})
        if updates:
            connection.execute(changed, updates)
