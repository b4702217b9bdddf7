"""What a class needs whose dataclass methods are written out, as they are in the compiled copy of a module."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

field: Any = dataclasses.field
"""As in :mod:`dataclasses`, without the fiction that it returns the default."""

_FIELD = cast(Any, dataclasses)._FIELD


def describe(kind: Any, fields: Mapping[str, tuple[str, Any]]) -> None:
    """Make the class known to :mod:`dataclasses`, by the source of each annotation and the field."""
    for name, (annotation, each) in fields.items():
        each.name = name
        each.type = annotation
        each._field_type = _FIELD
    kind.__dataclass_fields__ = {name: each for name, (_, each) in fields.items()}
    kind.__annotations__ = {name: annotation for name, (annotation, _) in fields.items()}


def remade(kind: Any, values: tuple[Any, ...]) -> Any:
    """The value of the class with these values of its fields: what a pickle or a copy is made from."""
    return kind(**dict(zip(kind.__dataclass_fields__, values, strict=True)))
