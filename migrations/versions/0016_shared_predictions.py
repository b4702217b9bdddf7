"""The elements of an array share one prediction."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table and a reference to it. Stored predictions stay as they are."""
    documents = (
        sa.Column(name, sa.JSON(none_as_null=True), nullable=False) for name in ("points", "features", "shadows")
    )
    op.create_table(
        "shared_predictions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        *documents,
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shared_predictions")),
        sqlite_autoincrement=True,
    )
    op.add_column("predictions", sa.Column("shared_id", sa.BigInteger(), nullable=True))
    shared = sa.text("shared_id IS NOT NULL")
    op.create_index(
        "ix_predictions_shared_id",
        "predictions",
        ["shared_id"],
        unique=False,
        sqlite_where=shared,
        postgresql_where=shared,
    )
