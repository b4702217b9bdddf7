"""The spec of a job array is stored once."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table, filled from the first job of each array; its elements, which differ by their index alone, refer to it.

    The rows stay in the database while they are changed, so that memory does not grow with their number.
    """
    op.create_table(
        "array_specs",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_array_specs")),
    )
    op.add_column("history", sa.Column("array_id", sa.Integer(), nullable=True))
    of_array = sa.text("array_id IS NOT NULL")
    op.create_index(
        "ix_history_array_id", "history", ["array_id"], unique=False, sqlite_where=of_array, postgresql_where=of_array
    )
    first = "SELECT MIN(id) FROM jobs WHERE array_id IS NOT NULL GROUP BY array_id"
    op.execute(f"INSERT INTO array_specs (id, spec) SELECT array_id, spec FROM jobs WHERE id IN ({first})")  # noqa: S608
    reference = """'{"v":1,"element_of":' || array_id || ',"index":' || array_index || '}'"""
    if op.get_bind().dialect.name == "postgresql":
        reference = f"CAST({reference} AS json)"
    # Not as a text of SQLAlchemy, in which a colon begins a parameter.
    op.get_bind().exec_driver_sql(f"UPDATE jobs SET spec = {reference} WHERE array_id IS NOT NULL")  # noqa: S608
