"""A class whose methods are written out behaves as the dataclass that it was."""

import copy
import dataclasses
import inspect
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mypy_extensions import mypyc_attr

from compilation.modules import copied, modules
from compilation.write_out import CannotWriteOut, written_out
from policies.model.view import JobView

ROOT = Path(__file__).parents[3]

SOURCE = '''
"""A module."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from policies.model.value import value


@value
class Point:
    """Two numbers."""

    x: float
    label: str = "p"
    """Its name."""
    tags: Mapping[str, int] = field(default_factory=dict, repr=False)
    hidden: int = field(default=0, compare=False)

    @property
    def double(self) -> float:
        return 2 * self.x


@dataclass(frozen=True)
class Total:
    parts: tuple[int, ...]

    @cached_property
    def sum(self) -> int:
        """All of them."""
        calls.append(self)
        return sum(self.parts)


@dataclass(slots=True)
class Record:
    number: int
    log: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log.append(self.number)


@dataclass(slots=True, eq=False, kw_only=True)
class Thing:
    name: str
    size: int = 1


calls: list[Total] = []
'''


def executed(source: str, module: ModuleType) -> ModuleType:
    """The module after the source, with what the compiler alone has."""
    module.__dict__.update({"_mypyc_attr": mypyc_attr, "JobView": JobView})
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    return module


@pytest.fixture(params=["dataclass", "written out"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("made")
    monkeypatch.setitem(sys.modules, "made", module)  # a pickle looks for it there
    return executed(SOURCE if request.param == "dataclass" else written_out(SOURCE), module)


def test_values_compare_and_print_by_their_fields(made: Any) -> None:
    point = made.Point(1.5, tags={"a": 1}, hidden=3)
    assert point == made.Point(1.5, "p", {"a": 1}, 4)
    assert point != made.Point(1.5, "q", {"a": 1})
    assert point != (1.5, "p", {"a": 1}, 3)
    assert repr(point) == "Point(x=1.5, label='p', hidden=3)"
    assert point.double == 3.0
    assert made.Point(1.0).tags is not made.Point(1.0).tags


def test_values_hash_by_their_fields_and_records_not_at_all(made: Any) -> None:
    assert hash(made.Total((1, 2))) == hash(made.Total((1, 2)))
    assert {made.Total((1, 2)), made.Total((1, 2)), made.Total((2, 1))} == {made.Total((2, 1)), made.Total((1, 2))}
    with pytest.raises(TypeError, match="unhashable"):
        hash(made.Record(1))


def test_things_without_equality_are_themselves_alone(made: Any) -> None:
    thing = made.Thing(name="a")
    assert thing != made.Thing(name="a")
    assert len({thing, made.Thing(name="a")}) == 2
    with pytest.raises(TypeError):
        made.Thing("a")


def test_what_dataclasses_do_works(made: Any) -> None:
    point = made.Point(1.0, tags={"a": 1})
    assert dataclasses.replace(point, x=2.0) == made.Point(2.0, tags={"a": 1})
    assert dataclasses.asdict(point) == {"x": 1.0, "label": "p", "tags": {"a": 1}, "hidden": 0}
    assert [field.name for field in dataclasses.fields(made.Record)] == ["number", "log"]
    assert dataclasses.is_dataclass(made.Total)


def test_copies_and_pickles_are_equal(made: Any) -> None:
    point = made.Point(1.0, "q", {"a": 1}, 7)
    for twin in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert twin == point
        assert twin.hidden == 7


def test_what_follows_the_construction_runs(made: Any) -> None:
    assert made.Record(4).log == [4]


def test_a_kept_property_is_computed_once(made: Any) -> None:
    total = made.Total((1, 2, 3))
    assert (total.sum, total.sum) == (6, 6)
    assert made.calls == [total]


def test_a_module_without_classes_stays_as_it_is() -> None:
    assert written_out("x = 1\n") == "x = 1\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@dataclass\nclass A:\n    x: list[int] | None = field(default_factory=list)\n", "line 3: .* not admit None"),
        ("@dataclass(order=True)\nclass A:\n    x: int\n", "line 2: .* the option order"),
        ("@value\nclass B(A):\n    x: int\n", "line 2: .* not derive"),
        ("@dataclass(\n    slots=True,\n)\nclass A:\n    x: int\n", "line 1: .* on one line"),
    ],
)
def test_what_cannot_be_written_out_is_refused_with_its_line(source: str, message: str) -> None:
    with pytest.raises(CannotWriteOut, match=message):
        written_out(source)


def test_named_tuples_keep_their_annotations() -> None:
    source = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    one: int\n    two: tuple[int, ...] = ()\n"
    pair = executed(written_out(source), ModuleType("pairs")).__dict__["Pair"]
    assert pair.__annotations__ == {"one": "int", "two": "tuple[int, ...]"}


def test_a_compiled_build_holds_what_a_service_needs_and_nothing_that_is_made() -> None:
    names = {path.as_posix() for path in copied(ROOT)}
    assert {"service/web/templates/page.html", "migrations/env.py", "predictor/serving.py", *modules(ROOT)} <= names
    assert not [name for name in names if "__pycache__" in name or "/_site/" in name or "/node_modules/" in name]


@pytest.mark.parametrize("name", modules(ROOT))
def test_every_compiled_module_keeps_the_fields_and_parameters_of_its_classes(name: str) -> None:
    real = __import__(name.removesuffix(".py").replace("/", "."), fromlist=["x"])
    source = (ROOT / name).read_text()
    if written_out(source) == source:
        return
    # The module's own name, so that relative names and forward references mean the same.
    twin = executed(written_out(source), ModuleType(real.__name__))
    for each in vars(real).values():
        if not dataclasses.is_dataclass(each) or not isinstance(each, type) or each.__module__ != real.__name__:
            continue
        other = getattr(twin, each.__name__)
        assert [field.name for field in dataclasses.fields(other)] == [field.name for field in dataclasses.fields(each)]
        ours, theirs = (inspect.signature(kind).parameters for kind in (other, each))
        assert list(ours) == list(theirs)
        assert [parameter.kind for parameter in ours.values()] == [parameter.kind for parameter in theirs.values()]
