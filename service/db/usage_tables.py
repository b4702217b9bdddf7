"""The table of what was used of the GPUs, summed up by day."""

import sqlalchemy as sa
from sqlmodel import Field

from service.db.tables import Base, _seconds


class UsageRow(Base, table=True):
    """What the ended attempts and jobs of one user in one project come to on one UTC day (days since 1970-01-01).

    Written in the transaction that ends them, so it says neither less nor more than the attempts themselves, and reading it
    costs the same however many jobs there were.
    """

    __tablename__ = "usage"

    day: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    user: str = Field(primary_key=True)
    project: str = Field(primary_key=True)
    held_gpu_s: float = _seconds()
    useful_gpu_s: float = _seconds()
    attempts: int = Field(sa_type=sa.BigInteger)
    preemptions: int = Field(sa_type=sa.BigInteger)
    jobs: int = Field(sa_type=sa.BigInteger)
