"""The strict parser reads what Python's own parser reads, and finds every repeated key."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.problems import Problem
from service.api.strict_json import KEYS_MAX, loads

_TEXTS = st.text(st.sampled_from('a:"\\{}[],\u00e9\u2028')) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=5
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS
_DOCUMENTS = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4), max_leaves=12
)


@given(_DOCUMENTS, st.booleans())
def test_documents_are_read_as_python_reads_them(document: Any, escaped: bool) -> None:
    text = json.dumps(document, ensure_ascii=escaped)
    found = loads(text.encode())
    # As text: so that 1 and 1.0, and 0.0 and -0.0, are told apart.
    assert repr(found) == repr(json.loads(text))


@given(st.lists(_TEXTS, min_size=1, max_size=3, unique=True), _DOCUMENTS, _DOCUMENTS, st.booleans())
def test_a_repeated_key_is_found_whatever_stands_beside_it(
    keys: list[str], first: Any, second: Any, escaped: bool
) -> None:
    pairs = [(keys[0], first), *((key, ":") for key in keys[1:]), (keys[0], second)]
    inner = ", ".join(f"{json.dumps(key, ensure_ascii=escaped)}: {json.dumps(value)}" for key, value in pairs)
    for text in (f"{{{inner}}}", f'[1, {{"x": {{{inner}}}}}]', f'{{"y": "\\u003a\\u003a", "x": {{{inner}}}}}'):
        with pytest.raises(Problem) as refused:
            loads(text.encode())
        assert [fault.detail for fault in refused.value.faults] == ["occurs twice"]


def test_an_object_with_too_many_keys_is_refused() -> None:
    assert len(loads(json.dumps(dict.fromkeys(map(str, range(KEYS_MAX)))).encode())) == KEYS_MAX
    with pytest.raises(Problem, match="keys"):
        loads(json.dumps(dict.fromkeys(map(str, range(KEYS_MAX + 1)))).encode())


def test_long_integers_are_floats_and_constants_pass() -> None:
    assert loads(b"[" + b"9" * 41 + b"]") == [1e41]
    assert repr(loads(b"[NaN, Infinity, -Infinity, -0, 1e400]")) == "[nan, inf, -inf, 0, inf]"
