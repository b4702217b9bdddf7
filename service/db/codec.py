"""The vocabulary's frozen values as versioned JSON documents, and back.

The shape of a document follows from the dataclass: an object with the field names, enumerations as their words, a
:class:`ServerShare` as a row. Both directions are strict: a value that is not what the annotation says is refused when it is
*written*, because nobody could read it back later. What is absent takes the field's default, so that a field added to the
vocabulary does not orphan old rows; an unknown key or another version is refused, because it would be lost silently.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from operator import index
from types import UnionType
from typing import Any, NamedTuple, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from policies.model.cluster import Server
from policies.model.decision import Action, Change, Preempt, Reserve, Resize, Start
from policies.model.estimate import ShadowPrediction
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Reason

VERSION = 1

T = TypeVar("T")


class CodecError(ValueError):
    """A value that cannot be written, or a document that cannot be read; says where."""


@dataclass(frozen=True, slots=True)
class FactPayload:
    """What a fact carries besides its kind, its job and its time."""

    server: ServerIndex | None = None
    priority: int | None = None
    preempt: bool = False
    server_spec: Server | None = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    job: JobId
    reason: Reason


class _Shape(NamedTuple):
    """Both directions of one annotation; the second argument says where in the document we are, for the error."""

    encode: Callable[[Any, str], Any]
    decode: Callable[[Any, str], Any]


def encode(value: object) -> dict[str, Any]:
    """The document of a dataclass of the vocabulary. Raises :class:`CodecError`."""
    kind: Any = type(value)
    return {"v": VERSION, **_shape(kind).encode(value, kind.__name__)}


def decode(kind: type[T], document: object) -> T:
    """The value of that kind. Raises :class:`CodecError` for anything that :func:`encode` would not write."""
    hint: Any = kind
    value: T = _shape(hint).decode(_unversioned(document, kind.__name__), kind.__name__)
    return value


def encode_changes(changes: Sequence[Change]) -> dict[str, Any]:
    """A cycle's changes, in their order."""
    return _encode_rows(Change, changes)


def decode_changes(document: object) -> list[Change]:
    """The inverse of :func:`encode_changes`."""
    return _decode_rows(Change, document)


def encode_actions(actions: Sequence[Action]) -> dict[str, Any]:
    """A cycle's actions, in the order they take effect."""
    return _encode_rows(_ACTION, actions)


def decode_actions(document: object) -> list[Action]:
    """The inverse of :func:`encode_actions`."""
    return _decode_rows(_ACTION, document)


def encode_refusals(refusals: Sequence[tuple[JobId, Reason]]) -> dict[str, Any]:
    """Actions that were not applied, and why."""
    return _encode_rows(_Refusal, [_Refusal(job, reason) for job, reason in refusals])


def decode_refusals(document: object) -> list[tuple[JobId, Reason]]:
    """The inverse of :func:`encode_refusals`."""
    return [(row.job, row.reason) for row in _decode_rows(_Refusal, document)]


def encode_shadows(shadows: Sequence[ShadowPrediction]) -> dict[str, Any]:
    """What other models would have said."""
    return _encode_rows(ShadowPrediction, shadows)


def decode_shadows(document: object) -> list[ShadowPrediction]:
    """The inverse of :func:`encode_shadows`."""
    return _decode_rows(ShadowPrediction, document)


_ACTION: Any = Action
_ACTION_WORDS: Mapping[str, type] = {"start": Start, "preempt": Preempt, "resize": Resize, "reserve": Reserve}


def _encode_rows(hint: Any, values: Sequence[object]) -> dict[str, Any]:
    shape = _shape(hint)
    return {"v": VERSION, "items": [shape.encode(value, f"[{at}]") for at, value in enumerate(values)]}


def _decode_rows(hint: Any, document: object) -> list[Any]:
    body = _unversioned(document, "list")
    if set(body) != {"items"} or not isinstance(body["items"], list):
        raise CodecError("list: expected the key 'items' alone")
    shape = _shape(hint)
    return [shape.decode(item, f"[{at}]") for at, item in enumerate(body["items"])]


def _unversioned(document: object, where: str) -> dict[str, Any]:
    if not isinstance(document, dict) or document.get("v") != VERSION:
        version = document.get("v") if isinstance(document, dict) else None
        raise CodecError(f"{where}: document version {version!r} is not {VERSION}")
    return {key: value for key, value in document.items() if key != "v"}


@cache
def _shape(hint: Any) -> _Shape:
    """How an annotation is written and read, worked out once."""
    if isinstance(hint, NewType):
        return _shape(hint.__supertype__)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _union(get_args(hint))
    if origin is tuple:
        return _tuple(get_args(hint))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*get_args(hint))
    if not isinstance(hint, type):
        raise CodecError(f"no document form for {hint!r}")
    if hint in _SCALARS:
        return _SCALARS[hint]
    if issubclass(hint, StrEnum):
        return _enum(hint)
    if is_dataclass(hint):
        return _dataclass(hint)
    if issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _row(hint)
    raise CodecError(f"no document form for {hint!r}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise CodecError(f"{where}: {value!r} is not a string")
    return str(value)


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise CodecError(f"{where}: {value!r} is not a boolean")
    return value


def _whole(value: Any, where: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # also takes numpy's integers, which json does not
    except TypeError:
        raise CodecError(f"{where}: {value!r} is not a whole number") from None


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CodecError(f"{where}: {value!r} is not a finite number")
    return float(value)


_SCALARS: Mapping[type, _Shape] = {
    str: _Shape(_text, _text),
    bool: _Shape(_flag, _flag),
    int: _Shape(_whole, _whole),
    float: _Shape(_real, _real),
}


def _enum(kind: type[StrEnum]) -> _Shape:
    def encode_word(value: Any, where: str) -> str:
        if not isinstance(value, kind):
            raise CodecError(f"{where}: {value!r} is not a {kind.__name__}")
        return value.value

    def decode_word(value: Any, where: str) -> StrEnum:
        try:
            return kind(_text(value, where))
        except ValueError:
            raise CodecError(f"{where}: {value!r} is not a {kind.__name__}") from None

    return _Shape(encode_word, decode_word)


def _tuple(arguments: tuple[Any, ...]) -> _Shape:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _shape(arguments[0])

        def encode_all(value: Any, where: str) -> list[Any]:
            return [item.encode(entry, f"{where}[{at}]") for at, entry in enumerate(_sequence(value, tuple, where))]

        def decode_all(value: Any, where: str) -> tuple[Any, ...]:
            return tuple(item.decode(entry, f"{where}[{at}]") for at, entry in enumerate(_sequence(value, list, where)))

        return _Shape(encode_all, decode_all)
    return _fixed([_shape(argument) for argument in arguments], tuple)


def _row(kind: type[Any]) -> _Shape:
    """A named tuple: written as a row, because there are many of them and their order is their meaning."""
    hints = get_type_hints(kind)
    return _fixed([_shape(hints[name]) for name in kind._fields], kind._make)


def _fixed(shapes: list[_Shape], build: Callable[[list[Any]], Any]) -> _Shape:
    def encode_row(value: Any, where: str) -> list[Any]:
        entries = _sequence(value, tuple, where, len(shapes))
        return [shape.encode(entry, where) for shape, entry in zip(shapes, entries, strict=True)]

    def decode_row(value: Any, where: str) -> Any:
        entries = _sequence(value, list, where, len(shapes))
        return build([shape.decode(entry, where) for shape, entry in zip(shapes, entries, strict=True)])

    return _Shape(encode_row, decode_row)


def _sequence(value: Any, kind: type[Sequence[Any]], where: str, length: int | None = None) -> Sequence[Any]:
    if not isinstance(value, kind) or (length is not None and len(value) != length):
        raise CodecError(f"{where}: expected a list" + (f" of {length}" if length is not None else ""))
    return value


def _mapping(key_hint: Any, value_hint: Any) -> _Shape:
    keys, values = _shape(key_hint), _shape(value_hint)

    def convert(value: Any, where: str, side: int) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise CodecError(f"{where}: expected an object")
        return {keys[side](key, where): values[side](entry, f"{where}.{key}") for key, entry in value.items()}

    return _Shape(lambda value, where: convert(value, where, 0), lambda value, where: convert(value, where, 1))


def _union(members: tuple[Any, ...]) -> _Shape:
    """``X | None``, or the one union of dataclasses that there is: actions, told apart by a word."""
    kinds = [member for member in members if member is not type(None)]
    if len(kinds) == 1:
        shape = _shape(kinds[0])
        return _Shape(
            lambda value, where: None if value is None else shape.encode(value, where),
            lambda value, where: None if value is None else shape.decode(value, where),
        )
    words = {kind: word for word, kind in _ACTION_WORDS.items()}
    shapes = {words[kind]: _shape(kind) for kind in kinds}

    def encode_tagged(value: Any, where: str) -> dict[str, Any]:
        if type(value) not in words:
            raise CodecError(f"{where}: {value!r} is not an action")
        word = words[type(value)]
        return {"action": word, **shapes[word].encode(value, where)}

    def decode_tagged(value: Any, where: str) -> Any:
        if not isinstance(value, dict) or value.get("action") not in shapes:
            raise CodecError(f"{where}: expected an action")
        return shapes[value["action"]].decode({key: entry for key, entry in value.items() if key != "action"}, where)

    return _Shape(encode_tagged, decode_tagged)


def _dataclass(kind: type[Any]) -> _Shape:
    hints = get_type_hints(kind)
    parts = {field.name: (field, _shape(hints[field.name])) for field in fields(kind) if field.init}
    known = set(parts)

    def encode_object(value: Any, where: str) -> dict[str, Any]:
        if type(value) is not kind:
            raise CodecError(f"{where}: {value!r} is not a {kind.__name__}")
        return {
            name: shape.encode(entry, f"{where}.{name}")
            for name, (field, shape) in parts.items()
            if (entry := getattr(value, name)) is not None or field.default is not None
        }

    def decode_object(value: Any, where: str) -> Any:
        if not isinstance(value, dict) or not value.keys() <= known:
            unknown = sorted(value.keys() - known) if isinstance(value, dict) else value
            raise CodecError(f"{where}: unknown {unknown!r}, expected the fields of {kind.__name__}")
        for name, (field, _) in parts.items():
            if name not in value and not _has_default(field):
                raise CodecError(f"{where}: the field {name!r} is missing")
        return kind(**{name: parts[name][1].decode(entry, f"{where}.{name}") for name, entry in value.items()})

    return _Shape(encode_object, decode_object)


def _has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING
