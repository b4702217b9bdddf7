"""Times in JSON: instants are ISO 8601 in UTC; keys of durations in seconds end in ``_s``."""

from typing import Annotated

from pydantic import Field

INSTANT = Field(json_schema_extra={"format": "date-time"})
Time = Annotated[str, INSTANT]
Day = Annotated[str, Field(json_schema_extra={"format": "date"})]
