"""Messages of pydantic in Sooner's words."""

from typing import Annotated, Any

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from service.domain.type_faults import in_our_words, with_value


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (Annotated[int, Field(ge=1)], 0, "must be at least 1, not 0"),
        (Annotated[int, Field(ge=10)], 0, "must be at least 10, not 0"),
        (Annotated[int, Field(ge=1)], "0", "must be at least 1, not 0"),
        (Annotated[float, Field(le=0.5)], 2.0, "must be at most 0.5, not 2.0"),
        (Annotated[float, Field(gt=0)], 0, "must be above 0, not 0"),
        (Annotated[int, Field(lt=3)], 3, "must be below 3, not 3"),
        (Annotated[str, Field(min_length=1)], "", "must have at least 1 character, not ''"),
        (Annotated[str, Field(pattern="^a$")], "b", "must match the pattern '^a$', not 'b'"),
        (int, "1.5", "must be a whole number, not 1.5"),
        (float, "x", "must be a number, not 'x'"),
        (bool, "perhaps", "must be true or false, not 'perhaps'"),
    ],
)
def test_a_fault_names_the_limit_and_the_value(kind: Any, value: object, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    fault = caught.value.errors()[0]
    assert with_value(in_our_words(fault["msg"]), fault["input"]) == told


def test_a_value_that_the_message_has_is_told_once() -> None:
    assert with_value(in_our_words("Value error, 'soon' is not a duration"), "soon") == "'soon' is not a duration"
