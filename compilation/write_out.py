"""Writes the methods of a module's dataclasses out, because the compiler makes native classes only of plain ones.

The decorators of :mod:`dataclasses` and :mod:`policies.model.value` make methods at run time, which stay interpreted. The copy of
a module that is compiled has them as source instead. Classes may get interpreted subclasses, and a job's view is taken for the
engine's record.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

_DECORATORS = {"dataclass", "value"}
_SPECIAL = {"NamedTuple", "StrEnum", "IntEnum", "Enum", "Protocol", "Exception", "ValueError"}
_RECORD = "if _TYPE_CHECKING: from service.engine.record import JobRecord as JobView"
"""A protocol's attributes are looked up by name; those of a native class are not. Nothing else implements the view."""
_DERIVABLE = "@_mypyc_attr(allow_interpreted_subclasses=True)"
"""Also lets others make an instance and set its attributes one by one, as ``copy``, ``pickle`` and pydantic do."""
_IMPORTS = (
    "import dataclasses as _dataclasses",
    "from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any, ClassVar as _ClassVar",
    "from policies.model.written_out import annotate as _annotate, describe as _describe, field as _field",
    "from policies.model.written_out import pickle_whole as _pickle_whole",
)
_OPEN = "if _TYPE_CHECKING: from mypy_extensions import mypyc_attr as _mypyc_attr"
"""The compiler reads the decorator and drops it."""


class CannotWriteOut(ValueError):
    """A class that uses what is not supported here; the message names the line."""


@dataclass(frozen=True)
class _Field:
    """A field of a class: source of its annotation and default, and what ``field()`` was told. ``node``: its statement."""

    name: str
    annotation: str
    default: str | None
    factory: str | None
    init: bool
    repr: bool
    compare: bool
    node: ast.AnnAssign


def written_out(source: str) -> str:
    """The source with every dataclass written out, and every class open to interpreted subclasses.

    Raises CannotWriteOut.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    special = _special(classes)
    touched = _make_views_concrete(tree, lines)
    for node in reversed(classes):
        options = _options(node)
        if _is_tuple(node):
            touched = True
            named = {name: ast.unparse(each.annotation) for name, each in _annotated(node)}
            lines.insert(node.end_lineno or node.lineno, f"_annotate({node.name}, {named})")
        elif options is None:
            if node.name not in special:
                touched = True
                lines.insert(node.end_lineno or node.lineno, f"_pickle_whole({node.name})")
                lines.insert(node.lineno - 1, _DERIVABLE)
        else:
            touched = True
            _write_out(node, options, [each for each in node.body if _is_cached(each)], lines)
    if not touched:
        return source
    first = next(each for each in tree.body if not _is_docstring(each) and not _is_future(each))
    lines[first.lineno - 1 : first.lineno - 1] = ["; ".join(_IMPORTS), _OPEN]
    return "\n".join(lines) + "\n"


def _make_views_concrete(tree: ast.Module, lines: list[str]) -> bool:
    """Let the module take a job's view for the record that it is; return whether it names it. Keeps the number of lines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "JobView":
            lines[node.lineno - 1] = f"{_RECORD}\nclass _JobView(Protocol):"
            lines[-1] += "\nimport sys as _sys; setattr(_sys.modules[__name__], 'JobView', _JobView)"
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "policies.model.view":
            names = [each.name for each in node.names if each.name != "JobView"]
            if len(names) < len(node.names):
                stop = node.end_lineno or node.lineno
                others = f"from {node.module} import {', '.join(names)}" if names else ""
                lines[node.lineno - 1 : stop] = [others] + [""] * (stop - node.lineno)
                lines[stop - 1] = f"{lines[stop - 1]}\n{_RECORD}"
                return True
    return False


def _options(node: ast.ClassDef) -> dict[str, bool] | None:
    """What the decorator was told; None for a class that is no dataclass."""
    for each in node.decorator_list:
        call = each.func if isinstance(each, ast.Call) else each
        if isinstance(call, ast.Name) and call.id in _DECORATORS:
            options = {"eq": True, "frozen": False, "kw_only": False, "slots": False, "unsafe_hash": call.id == "value"}
            for keyword in each.keywords if isinstance(each, ast.Call) else ():
                if keyword.arg not in options:
                    raise CannotWriteOut(f"line {node.lineno}: a dataclass must not have the option {keyword.arg}")
                options[keyword.arg] = bool(ast.literal_eval(keyword.value))
            if node.bases:
                raise CannotWriteOut(f"line {node.lineno}: a dataclass must not derive from another class")
            return options
    return None


def _annotated(node: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The annotated names of a class."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, each


def _is_tuple(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)


def _special(classes: list[ast.ClassDef]) -> set[str]:
    """The classes that are no plain ones, by their names: the compiler has its own way with those."""
    found: set[str] = set()
    for node in classes:
        if {base.id for base in node.bases if isinstance(base, ast.Name)} & (_SPECIAL | found):
            found.add(node.name)
    return found


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_cached(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(each, ast.Name) and each.id == "cached_property" for each in node.decorator_list
    )


def _field(name: str, node: ast.AnnAssign) -> _Field:
    default: str | None = None
    told: dict[str, ast.expr] = {}
    if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "field":
        told = {str(each.arg): each.value for each in node.value.keywords}
        default = ast.unparse(told["default"]) if "default" in told else None
    elif node.value is not None:
        default = ast.unparse(node.value)

    def flag(option: str) -> bool:
        return bool(ast.literal_eval(told[option])) if option in told else True

    factory = ast.unparse(told["default_factory"]) if "default_factory" in told else None
    annotation = ast.unparse(node.annotation)
    if factory is not None and _admits_none(node.annotation):
        raise CannotWriteOut(f"line {node.lineno}: a field with a factory must not admit None")
    return _Field(name, annotation, default, factory, flag("init"), flag("repr"), flag("compare"), node)


def _admits_none(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.BinOp):
        return _admits_none(annotation.left) or _admits_none(annotation.right)
    return isinstance(annotation, ast.Constant) and annotation.value is None


def _write_out(node: ast.ClassDef, options: dict[str, bool], cached: list[ast.FunctionDef], lines: list[str]) -> None:
    """Replace the class in the lines."""
    fields = [_field(name, each) for name, each in _annotated(node)]
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    new = [*_init(fields, options["kw_only"], "__post_init__" in methods, [each.name for each in cached])]
    if options["eq"] and "__eq__" not in methods:
        new += _eq([each.name for each in fields if each.compare])
    if options["eq"] and (options["frozen"] or options["unsafe_hash"]) and "__hash__" not in methods:
        new += _hash([each.name for each in fields if each.compare])
    if "__repr__" not in methods:
        new += _repr([each.name for each in fields if each.repr])
    for method in cached:
        new.append(f"_kept_{method.name}: {_returned(method)} | None")
    new.append("__dataclass_fields__: _ClassVar[dict[str, _dataclasses.Field[_Any]]] = {}")
    described = ", ".join(f"{each.name!r}: ({each.annotation!r}, {_field_call(each)})" for each in fields)
    assert node.end_lineno is not None
    after = f"_describe({node.name}, {{{described}}})"
    lines[node.end_lineno : node.end_lineno] = [*("    " + each for each in new), after]
    for method in reversed(cached):
        _keep(method, lines)
    for each in fields:
        stop = each.node.end_lineno
        assert stop is not None
        lines[each.node.lineno - 1 : stop] = [f"    {each.name}: {each.annotation}"] + [""] * (stop - each.node.lineno)
    for decorator in node.decorator_list:
        assert decorator.end_lineno is not None
        if decorator.lineno != decorator.end_lineno:
            raise CannotWriteOut(f"line {decorator.lineno}: the decorator must be on one line")
        lines[decorator.lineno - 1] = _DERIVABLE


def _keep(method: ast.FunctionDef, lines: list[str]) -> None:
    """Make a cached property one that keeps its value in an attribute."""
    for decorator in method.decorator_list:
        lines[decorator.lineno - 1] = lines[decorator.lineno - 1].replace("cached_property", "property")
    first = method.body[0] if not _is_docstring(method.body[0]) else method.body[1]
    name, indent = method.name, " " * (method.col_offset + 4)
    compute = f"_compute_{name}"
    head = [
        f"{indent}if self._kept_{name} is None: self._kept_{name} = self.{compute}()",
        f"{indent}return self._kept_{name}",
        "",
        f"{indent[4:]}def {compute}(self) -> {_returned(method)}:",
    ]
    lines[first.lineno - 1 : first.lineno - 1] = head


def _returned(method: ast.FunctionDef) -> str:
    assert method.returns is not None
    return ast.unparse(method.returns)


def _init(fields: list[_Field], kw_only: bool, post: bool, cached: list[str]) -> list[str]:
    parameters = ["self"] + (["*"] if kw_only else [])
    body = []
    for each in fields:
        if not each.init:
            body.append(f"self.{each.name} = {each.default if each.factory is None else each.factory + '()'}")
            continue
        if each.factory is not None:
            parameters.append(f"{each.name}: {each.annotation} | None = None")
            body.append(f"self.{each.name} = {each.factory}() if {each.name} is None else {each.name}")
            continue
        default = "" if each.default is None else f" = {each.default}"
        parameters.append(f"{each.name}: {each.annotation}{default}")
        body.append(f"self.{each.name} = {each.name}")
    body += [f"self._kept_{name} = None" for name in cached] + (["self.__post_init__()"] if post else [])
    return [f"def __init__({', '.join(parameters)}) -> None: {'; '.join(body) or 'pass'}"]


def _eq(names: list[str]) -> list[str]:
    same = " and ".join(f"self.{name} == other.{name}" for name in names) or "True"
    return [
        "def __eq__(self, other: object) -> bool:",
        "    if self is other: return True",
        "    if type(other) is not type(self): return NotImplemented",
        f"    return {same}",
    ]


def _hash(names: list[str]) -> list[str]:
    return [f"def __hash__(self) -> int: return hash(({''.join(f'self.{name}, ' for name in names)}))"]


def _repr(names: list[str]) -> list[str]:
    parts = ", ".join(f"{name}={{self.{name}!r}}" for name in names)
    return [f'def __repr__(self) -> str: return f"{{type(self).__qualname__}}({parts})"']


def _field_call(each: _Field) -> str:
    told = []
    if each.default is not None:
        told.append(f"default={each.default}")
    if each.factory is not None:
        told.append(f"default_factory={each.factory}")
    told += [f"{name}=False" for name in ("init", "repr", "compare") if not getattr(each, name)]
    return f"_field({', '.join(told)})"
