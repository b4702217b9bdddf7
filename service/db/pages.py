"""Parts that the queries of lists share."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, Table, tuple_


def equal(rows: Table, **wanted: object) -> list[ColumnElement[bool]]:
    """The conditions that columns have these values; None = any value."""
    return [rows.c[name] == value for name, value in wanted.items() if value is not None]


def page(
    connection: Connection,
    query: Select[Any],
    key: Sequence[Column[Any]],
    past: object,
    limit: int,
    *,
    descending: bool = False,
) -> Sequence[Row[Any]]:
    """At most ``limit`` rows of a query, in the order of the columns ``key``.

    ``past`` is the key of the last row of the page before: a value, or a tuple for several columns; None for the first page.
    """
    if past is not None:
        place = key[0] if len(key) == 1 else tuple_(*key)
        query = query.where(place < past if descending else place > past)
    order = [column.desc() if descending else column for column in key]
    return connection.execute(query.order_by(*order).limit(limit)).all()
