"""The vocabulary's frozen values as versioned JSON documents, and back.

The shape of a document follows from the dataclass: an object with the field names, enumerations as their words, a
:class:`ServerShare` as a row. Both directions are strict: a value that is not what the annotation says is refused when it is
*written*, because it could not be read back later. What is absent takes the field's default, so that a field added to the
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
from policies.model.decision import Action, Change, Preempt, Reserve, Start
from policies.model.estimate import ShadowPrediction
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from policies.model.shape import CountedShape, TransformerShape
from service.engine.limits import LimitOwner

VERSION = 1

T = TypeVar("T")


class CodecError(ValueError):
    """A value that cannot be written, or a document that cannot be read; says where."""

    def __init__(self, problem: str, place: tuple[str, ...] = ()) -> None:
        self.problem = problem
        self.place = place
        super().__init__(f"{'.'.join(place)}: {problem}" if place else problem)

    def within(self, name: str) -> "CodecError":
        """The same fault, seen from one level further out. Built on the way up, so that the good case costs nothing."""
        return CodecError(self.problem, (name, *self.place))


@dataclass(frozen=True, slots=True)
class RequestPayload:
    """What a request carries besides its kind, its job and its time; fields as in ``EngineRequest``."""

    server: ServerIndex | None = None
    priority: int | None = None
    preempt: bool = False
    server_spec: Server | None = None
    owner: LimitOwner | None = None
    gpus_running_max: int | None = None
    note: str = ""
    window: ServerReservation | None = None
    reservation: int | None = None
    drain: bool = False


PAYLOAD_FIELDS = tuple(field.name for field in fields(RequestPayload))


@dataclass(frozen=True, slots=True)
class _Refusal:
    job: JobId
    reason: Reason


class _Shape(NamedTuple):
    """Both directions of one annotation. Each raises :class:`CodecError`."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def encode(value: object) -> dict[str, Any]:
    """The document of a dataclass of the vocabulary. Raises :class:`CodecError`."""
    kind: Any = type(value)
    try:
        return {"v": VERSION, **_shape(kind).encode(value)}
    except CodecError as error:
        raise error.within(kind.__name__) from None


def decode(kind: type[T], document: object) -> T:
    """The value of that kind. Raises :class:`CodecError` for anything that :func:`encode` would not write."""
    hint: Any = kind
    try:
        value: T = _shape(hint).decode(_unversioned(document))
    except CodecError as error:
        raise error.within(kind.__name__) from None
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
    """The predictions of other models."""
    return _encode_rows(ShadowPrediction, shadows)


def decode_shadows(document: object) -> list[ShadowPrediction]:
    """The inverse of :func:`encode_shadows`."""
    return _decode_rows(ShadowPrediction, document)


_ACTION: Any = Action
_TAGS: Mapping[type, tuple[str, str]] = {
    Start: ("action", "start"),
    Preempt: ("action", "preempt"),
    Reserve: ("action", "reserve"),
    TransformerShape: ("form", "transformer"),
    CountedShape: ("form", "counted"),
}
"""The key and the word by which the dataclasses of a union are told apart."""


def _encode_rows(hint: Any, values: Sequence[object]) -> dict[str, Any]:
    return {"v": VERSION, "items": [*map(_shape(hint).encode, values)]}


def _decode_rows(hint: Any, document: object) -> list[Any]:
    body = _unversioned(document)
    if set(body) != {"items"} or not isinstance(body["items"], list):
        raise CodecError("expected the key 'items' alone, with a list")
    return [*map(_shape(hint).decode, body["items"])]


def _unversioned(document: object) -> dict[str, Any]:
    body = dict(document) if isinstance(document, dict) else {}
    if (version := body.pop("v", None)) != VERSION:
        raise CodecError(f"document version {version!r} is not {VERSION}")
    return body


@cache
def _shape(hint: Any) -> _Shape:
    """How an annotation is written and read, worked out once."""
    if isinstance(hint, NewType):
        return _shape(hint.__supertype__)
    origin = get_origin(hint)
    if _is_union(hint):
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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CodecError(f"{value!r} is not a string")
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CodecError(f"{value!r} is not a boolean")
    return value


def _whole(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # also takes numpy's integers, which json does not
    except TypeError:
        raise CodecError(f"{value!r} is not a whole number") from None


def _real(value: Any) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer above all floats
        raise CodecError("a whole number of so many digits is too large") from None
    raise CodecError(f"{value!r} is not a finite number")


_SCALARS: Mapping[type, _Shape] = {
    str: _Shape(_text, _text),
    bool: _Shape(_flag, _flag),
    int: _Shape(_whole, _whole),
    float: _Shape(_real, _real),
}


def _enum(kind: type[StrEnum]) -> _Shape:
    def encode_word(value: Any) -> str:
        if not isinstance(value, kind):
            raise CodecError(f"{value!r} is not a {kind.__name__}")
        return value.value

    def decode_word(value: Any) -> StrEnum:
        try:
            return kind(_text(value))
        except ValueError:
            raise CodecError(f"{value!r} is not a {kind.__name__}") from None

    return _Shape(encode_word, decode_word)


def _tuple(arguments: tuple[Any, ...]) -> _Shape:
    if arguments == (float, Ellipsis):
        return _Shape(lambda value: [*_reals(value, tuple)], lambda value: tuple(_reals(value, list)))
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _shape(arguments[0])
        return _Shape(
            lambda value: [*map(item.encode, _sequence(value, tuple))],
            lambda value: tuple(map(item.decode, _sequence(value, list))),
        )
    return _fixed([_shape(argument) for argument in arguments], tuple)


def _reals(value: Any, kind: type[Sequence[Any]]) -> Sequence[float]:
    """Sample points, of which there are many: looked at one by one only if something is not plainly a finite float."""
    entries = _sequence(value, kind)
    if {*map(type, entries)} <= {float} and math.isfinite(sum(entries)):
        return entries
    return [*map(_real, entries)]


def _row(kind: type[Any]) -> _Shape:
    """A named tuple: written as a row, because there are many of them and their order is their meaning."""
    hints = get_type_hints(kind)
    return _fixed([_shape(hints[name]) for name in kind._fields], kind._make)


def _fixed(shapes: list[_Shape], build: Callable[[list[Any]], Any]) -> _Shape:
    def encode_row(value: Any) -> list[Any]:
        entries = _sequence(value, tuple, len(shapes))
        return [shape.encode(entry) for shape, entry in zip(shapes, entries, strict=True)]

    def decode_row(value: Any) -> Any:
        entries = _sequence(value, list, len(shapes))
        return build([shape.decode(entry) for shape, entry in zip(shapes, entries, strict=True)])

    return _Shape(encode_row, decode_row)


def _sequence(value: Any, kind: type[Sequence[Any]], length: int | None = None) -> Sequence[Any]:
    if not isinstance(value, kind) or (length is not None and len(value) != length):
        raise CodecError("expected a list" + (f" of {length}" if length is not None else ""))
    return value


def _mapping(key_hint: Any, value_hint: Any) -> _Shape:
    keys, values = _shape(key_hint), _shape(value_hint)

    def convert(value: Any, key: Callable[[Any], Any], entry: Callable[[Any], Any]) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise CodecError("expected an object")
        converted: dict[Any, Any] = {}
        name: Any = ""
        try:
            for name, part in value.items():
                converted[key(name)] = entry(part)
        except CodecError as error:
            raise error.within(str(name)) from None
        return converted

    return _Shape(
        lambda value: convert(value, keys.encode, values.encode),
        lambda value: convert(value, keys.decode, values.decode),
    )


def _union(members: tuple[Any, ...]) -> _Shape:
    """``X``, ``X | None``, or one of several dataclasses, distinguished by a word."""
    kinds = [member for member in members if member is not type(None)]
    shape = _shape(kinds[0]) if len(kinds) == 1 else _tagged(kinds)
    if len(kinds) == len(members):
        return shape
    return _Shape(
        lambda value: None if value is None else shape.encode(value),
        lambda value: None if value is None else shape.decode(value),
    )


def _tagged(kinds: Sequence[type]) -> _Shape:
    [tag] = {_TAGS[kind][0] for kind in kinds}
    words = {kind: _TAGS[kind][1] for kind in kinds}
    shapes = {words[kind]: _shape(kind) for kind in kinds}
    expected = f"expected {' or '.join(kind.__name__ for kind in kinds)}"

    def encode_tagged(value: Any) -> dict[str, Any]:
        if type(value) not in words:
            raise CodecError(f"{value!r} is none: {expected}")
        word = words[type(value)]
        return {tag: word, **shapes[word].encode(value)}

    def decode_tagged(value: Any) -> Any:
        if not isinstance(value, dict) or value.get(tag) not in shapes:
            raise CodecError(f"{expected}, named by the key {tag!r}")
        return shapes[value[tag]].decode({key: entry for key, entry in value.items() if key != tag})

    return _Shape(encode_tagged, decode_tagged)


def _dataclass(kind: type[Any]) -> _Shape:
    hints = get_type_hints(kind)
    written = [field for field in fields(kind) if field.init]
    shapes = {field.name: _shape(hints[field.name]) for field in written}
    # None is left out where it is the default: most fields of most changes are absent.
    optional = {field.name for field in written if field.default is None}
    needed = {field.name for field in written if not _has_default(field)}

    # One try around each loop, not one per field: a restart decodes a hundred thousand of these.
    encoders = [(name, shape.encode) for name, shape in shapes.items()]
    decoders = {name: shape.decode for name, shape in shapes.items()}
    # What is exactly of its field's type is taken as it is. JSON knows floats that are not finite.
    plain = {name: kind for name, kind in ((name, _plain_type(hints[name])) for name in shapes) if kind is not None}

    def encode_object(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise CodecError(f"{value!r} is not a {kind.__name__}")
        document: dict[str, Any] = {}
        name = ""
        try:
            for name, write in encoders:
                entry = getattr(value, name)
                if entry is not None or name not in optional:
                    document[name] = write(entry)
        except CodecError as error:
            raise error.within(name) from None
        return document

    def decode_object(value: Any) -> Any:
        if not isinstance(value, dict) or not value.keys() <= shapes.keys():
            unknown = sorted(value.keys() - shapes.keys()) if isinstance(value, dict) else value
            raise CodecError(f"unknown {unknown!r}, expected the fields of {kind.__name__}")
        if not needed <= value.keys():
            raise CodecError(f"the field {min(needed - value.keys())!r} is missing")
        found: dict[str, Any] = {}
        name = ""
        try:
            for name, entry in value.items():
                found[name] = entry if type(entry) is plain.get(name) else decoders[name](entry)
        except CodecError as error:
            raise error.within(name) from None
        try:
            return kind(**found)
        except ValueError as error:  # values that contradict each other
            raise CodecError(str(error)) from None

    return _Shape(encode_object, decode_object)


def _plain_type(hint: Any) -> type | None:
    """The type whose values are in a document what they are in memory; None if the annotation admits no such type, or several."""
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    members = [member for member in get_args(hint) if member is not type(None)] if _is_union(hint) else [hint]
    return members[0] if len(members) == 1 and members[0] in (str, bool, int) else None


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING
