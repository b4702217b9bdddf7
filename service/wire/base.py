"""What all bodies of requests have in common: their configuration, and texts with a limit."""

import re
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

TEXT_MAX = 200

NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
_UNSEEN = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters, breaks of lines, and marks of the direction of text: with them a name is shown as another one."""
SEEN = rf"^[^{_UNSEEN}]*[^\s{_UNSEEN}][^{_UNSEEN}]*$"
NO_NUL = r"^[^\x00]*$"
_SEGMENT = r"(\.{0,2}[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.{3}[^/\x00-\x1f\x7f]*)"
"""A segment of a path that is not ``.`` or ``..``."""
USER = rf"^{_SEGMENT}$"
PROJECT = rf"^{_SEGMENT}(/{_SEGMENT})*$"
"""Projects may be named like folders, as in ``team/nlp``. Without slashes in users, a path ends in a user unambiguously."""
ABSOLUTE_PATH = r"^/[^\x00]*$"
PRINTABLE_ASCII = r"^[\x21-\x7e]+$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
LABEL_KEY = r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"
SERVER_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
IMAGE = r"^[A-Za-z0-9/][^\x00-\x20\x7f]*$"
"""Names and paths of images: no option of a command line, no spaces."""

Text = Annotated[str, Field(max_length=TEXT_MAX, pattern=NO_CONTROLS)]
Name = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=NO_CONTROLS)]
JobName = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=SEEN)]
AbsolutePath = Annotated[str, Field(max_length=4096, pattern=ABSOLUTE_PATH)]
EnvName = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=ENV_NAME)]
LabelKey = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_KEY)]
ServerName = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=SERVER_NAME)]
UserName = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=USER)]
ProjectName = Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=PROJECT)]
"""Of users and projects that keys and members are for. A job may name others, and quotas and pauses may be for them."""

_DIGITS = re.compile(r"-?[0-9]+")


def _written_plainly(value: object) -> object:
    """Paths and queries have numbers as texts, and pydantic also takes ``1.0``, ``+1``, ``1_0`` and spaces around a number."""
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise PydanticKnownError("int_parsing")
    return value


DIGITS_ALONE: Final = BeforeValidator(_written_plainly)
"""After the bounds of a whole number: in a path or a query it is digits alone, after a minus sign where it may be negative."""

STAGES_MAX = 256
"""The deepest pipelines in public use have 64 stages; mapping replicas to servers takes the square of their number."""


class Body(BaseModel):
    """The configuration of every body."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
