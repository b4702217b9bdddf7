"""A strict JSON parser: no duplicate keys, no lone surrogates, integers of limited length, limited nesting.

Python's parser accepts more than the standard, and readers that disagree about a document hide mistakes and attacks. ``NaN``
and ``Infinity`` pass as floats: the typed bodies refuse them with their JSON pointer.
"""

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json, to_json
from starlette.types import Message, Receive

from service.api.admission import ticket_of
from service.api.heavy import PARSING
from service.api.problems import FAULTS_MAX, Fault, Problem, ProblemType, json_pointer
from service.api.stepwise import validated
from service.wire.bodies import SubmissionBody

LARGE_BYTES = 16 * 1024
"""Bodies up to this size are parsed in the event loop: that takes less than the hand-over to a thread."""

KEYS_MAX = 2000
"""Keys of one object: more than any body has. Each unknown key is a fault."""

INTEGER_DIGITS_MAX = 40
"""Longer integers mean nothing in any field, and their conversion takes quadratic time."""

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * (INTEGER_DIGITS_MAX + 1)


class _Repeated(dict[str, Any]):
    """An object in which keys came more than once; found again after parsing, when its pointer is known."""

    repeated: tuple[str, ...] = ()


class _Reader:
    """The parser's hooks for one document."""

    def __init__(self) -> None:
        self.any_repeated = False

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object; one with repeated keys is marked."""
        if len(pairs) > KEYS_MAX:
            raise Problem(ProblemType.INVALID_BODY, f"An object has {len(pairs)} keys; at most {KEYS_MAX} are read.")
        document = dict(pairs)
        if len(document) == len(pairs):
            return document
        marked = _Repeated(document)
        marked.repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        self.any_repeated = True
        return marked


def _integer(text: str) -> int | float:
    # A float of that size is refused by every integer field, with the field's pointer.
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else float(text)


def _repeated_keys(document: Any) -> Iterator[Fault]:
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            if isinstance(value, _Repeated):
                yield from (Fault("occurs twice", json_pointer((*path, key))) for key in value.repeated)
            stack.extend(((*path, key), item) for key, item in value.items())
        elif isinstance(value, list):
            stack.extend(((*path, index), item) for index, item in enumerate(value))


def loads(raw: bytes) -> Any:
    """Parse one document. Raises :class:`Problem`: 400 where it is not JSON, 422 where it is ambiguous JSON."""
    any_long, colons = _LONG_INTEGER in raw.translate(_DIGITS), raw.count(b":")
    if not any_long and colons <= KEYS_MAX and b"\\" not in raw:
        # In about half of the time of the reader below, which finds and names the faults. A repeated key is missing in what is
        # written out again, and its colon with it: no other colon takes its place, because there are no escapes.
        with suppress(ValueError):
            found = from_json(raw)
            if to_json(found).count(b":") == colons:
                return found
    reader = _Reader()
    # A call for each number would take a third of the time, and hardly any body has a long one.
    integer = _integer if any_long else None
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=reader.pairs, parse_int=integer)
    except UnicodeDecodeError as error:
        raise Problem(ProblemType.MALFORMED_JSON, f"The body is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(ProblemType.MALFORMED_JSON, f"{error.msg} at {where}.") from None
    except RecursionError:
        raise Problem(ProblemType.MALFORMED_JSON, "The body is nested too deeply.") from None
    if reader.any_repeated:
        raise Problem(ProblemType.INVALID_BODY, faults=list(islice(_repeated_keys(document), FAULTS_MAX)))
    _refuse_lone_surrogates(raw, document)
    return document


def _refuse_lone_surrogates(raw: bytes, document: Any) -> None:
    # Only an escape can make one (the bytes are valid UTF-8), so the second look is rare. Such a text can neither be
    # stored nor sent back.
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise Problem(ProblemType.MALFORMED_JSON, "The body is nested too deeply.") from None
    except UnicodeEncodeError:
        raise Problem(ProblemType.MALFORMED_JSON, "A string contains an unpaired surrogate.") from None


class StrictRequest(Request):
    """A request whose body is read by :func:`loads`. ``body_type`` is that of the route, if it has one."""

    def __init__(self, request: Request, body_type: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._body_type = body_type

    def once_more(self) -> Receive:
        """A ``receive`` that begins with the body again, if that has been read."""
        read = [self._body] if hasattr(self, "_body") else []

        async def receive() -> Message:
            if read:
                return {"type": "http.request", "body": read.pop(), "more_body": False}
            return await self.receive()

        return receive

    async def json(self) -> Any:
        """The parsed body; a submission is also validated. A large body is read in a thread."""
        raw = await self.body()
        if len(raw) <= LARGE_BYTES:
            return self._parsed(raw)
        ticket = ticket_of(self.scope)
        if not ticket.is_heavy:
            # Until the answer: what follows computes as well. A plan waits for another process instead.
            await ticket.wait_for_large()
        return await PARSING.run(partial(self._parsed, raw))

    def _parsed(self, raw: bytes) -> Any:
        document = loads(raw)
        if self._body_type is not SubmissionBody:
            return document
        return validated(document, self.app.state.dependencies.settings, is_small=len(raw) <= LARGE_BYTES)


class StrictRoute(APIRoute):
    """A route that reads its body strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a strict request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request, self.body_type))

        return strict

    @property
    def body_type(self) -> Any:
        """The type of the body; None without one."""
        return None if self.body_field is None else self.body_field.field_info.annotation
