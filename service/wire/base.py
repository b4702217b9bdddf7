"""What all bodies of requests have in common: their configuration, and texts with a limit."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

TEXT_MAX = 200

NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
NO_NUL = r"^[^\x00]*$"
OWNER = r"^(\.{0,2}[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.{3}[^/\x00-\x1f\x7f]*)$"
"""The name of a user or a project is a segment of paths: it has no slash, and is not ``.`` or ``..``."""
ABSOLUTE_PATH = r"^/[^\x00]*$"

Text = Annotated[str, Field(max_length=TEXT_MAX, pattern=NO_CONTROLS)]
Name = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=NO_CONTROLS)]

STAGES_MAX = 256
"""The deepest pipelines in public use have 64 stages; mapping replicas to servers takes the square of their number."""


class Body(BaseModel):
    """The configuration of every body."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
