"""The whole schema: every module that declares tables is imported here, so that none is missing where the schema is asked for."""

from service.db import (
    access_tables,
    fleet_tables,
    forecast_tables,
    limit_tables,
    reservation_tables,
    tables,
    usage_tables,
    webhook_tables,
)

METADATA = tables.Base.metadata
"""All tables of this program."""

__all__ = [
    "METADATA",
    "access_tables",
    "fleet_tables",
    "forecast_tables",
    "limit_tables",
    "reservation_tables",
    "tables",
    "usage_tables",
    "webhook_tables",
]
