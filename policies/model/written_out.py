"""What a class needs whose dataclass methods are written out, as they are in the compiled copy of a module."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

field: Any = dataclasses.field
"""As in :mod:`dataclasses`, without the fiction that it returns the default."""

_FIELD = cast(Any, dataclasses)._FIELD


def describe(kind: Any, fields: Mapping[str, tuple[str, Any]]) -> None:
    """Make the class known to :mod:`dataclasses`, by the source of each annotation and the field.

    Because it has slots, pydantic sets the fields of an instance one by one. (Named here, they would forbid compiled subclasses.)
    """
    for name, (annotation, each) in fields.items():
        each.name = name
        each.type = annotation
        each._field_type = _FIELD
    kind.__slots__ = ()
    kind.__dataclass_fields__ = {name: each for name, (_, each) in fields.items()}
    annotate(kind, {name: annotation for name, (annotation, _) in fields.items()})


def annotate(kind: Any, annotations: dict[str, str]) -> None:
    """Make the annotations what they are in the source: the compiler keeps none, or no more of them than the class of each."""
    kind.__annotations__ = annotations


def pickle_whole(kind: Any) -> None:
    """Let a pickle of an interpreted subclass hold what that adds: by itself a compiled class knows its own attributes alone."""
    kind.__getstate__ = _state
    kind.__setstate__ = _restore


def _state(each: Any) -> dict[str, Any]:
    own = {name: getattr(each, name) for name in getattr(each, "__mypyc_attrs__", ()) if hasattr(each, name)}
    return {**own, **getattr(each, "__dict__", {})}


def _restore(each: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(each, name, value)
