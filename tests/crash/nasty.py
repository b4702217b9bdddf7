"""Hostile input for hypothesis: documents that are almost right, and bytes that are almost a file."""

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        (
            *("", " ", "\x00", "a" * 5000, "null", "NaN", "\r\nSet-Cookie: a=b", "\ud800", "\u202e", "\U0001f600" * 50),
            *("../../etc/passwd", "/etc/passwd", "..\\..", "%2e%2e%2f", "$(id)", "`id`", "; rm -rf /", "<script>"),
            *("' OR 1=1 --", "{{7*7}}"),
        )
    ),
)
NUMBERS = st.one_of(
    st.sampled_from(
        [0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -1e308, 5e-324, 0.5, -0.0]
    ),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    st.integers(),
    st.floats(allow_nan=True),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
BYTES = st.one_of(st.binary(max_size=200), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))


@st.composite
def almost(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three of its nodes replaced, removed, doubled or wrapped."""
    changed = deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(changed))
        if not places:
            return draw(VALUES)
        holder, key = draw(st.sampled_from(places))
        what = draw(st.sampled_from(["replace", "replace", "remove", "wrap", "add", "deepen"]))
        if what == "remove":
            del holder[key]
        elif what == "wrap":
            holder[key] = draw(st.sampled_from([[holder[key]], {"x": holder[key]}, str(holder[key])]))
        elif what == "deepen":
            holder[key] = _deep(holder[key], draw(st.sampled_from([3, 50, 400])))
        elif what == "add" and isinstance(holder, dict):
            holder[draw(TEXTS)] = draw(VALUES)
        else:
            holder[key] = draw(VALUES)
    return changed


def _deep(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def _places(document: Any) -> Any:
    """Every (container, key) of the tree."""
    stack = [document]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            yield node, key
            stack.append(node[key])


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes cut off, with a hole, with something in between, or with some bits turned."""
    at = draw(st.integers(0, len(data)))
    what = draw(st.sampled_from(["cut", "hole", "insert", "flip", "other"]))
    if what == "cut":
        return data[:at]
    if what == "hole":
        return data[:at] + data[at + draw(st.integers(1, 50)) :]
    if what == "insert":
        return data[:at] + draw(BYTES) + data[at:]
    if what == "flip" and at < len(data):
        return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
    return draw(BYTES)
