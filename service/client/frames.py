"""Answers as data frames of pandas or polars (extra ``frames``), which are imported when the first frame is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast, overload

if TYPE_CHECKING:
    import pandas
    import polars

    from service.wire.timeline import TimelineDocument

_TIMES = ("at", "eta", "since", "until")
_QUANTILES = ("p10", "p50", "p90")
"""Times as text in records of forecasts, numbers in predictions."""

Columns = dict[str, list[Any]]


@overload
def frame(
    documents: Sequence[Mapping[str, Any]] | TimelineDocument, library: Literal["pandas"] = "pandas"
) -> pandas.DataFrame: ...
@overload
def frame(
    documents: Sequence[Mapping[str, Any]] | TimelineDocument, library: Literal["polars"]
) -> polars.DataFrame: ...
def frame(documents: Sequence[Mapping[str, Any]] | TimelineDocument, library: str = "pandas") -> Any:
    """A list of documents as a frame, a row each; of a timeline, a row for each bar with its attempt and its server.

    Times are datetimes in UTC, days are dates, durations (``_s``) stay seconds. The keys of a document within a document become
    columns after its own key (``prediction_p50``); lists stay lists, and links are left out. A key that no document has is no
    column: an empty list has none. Raises ValueError for another library, ModuleNotFoundError if it is not installed.
    """
    if library not in ("pandas", "polars"):
        raise ValueError(f"library must be 'pandas' or 'polars', not {library!r}")
    columns = _bars(documents) if isinstance(documents, Mapping) else _columns(documents)
    made = {name: _typed(name, values) for name, values in columns.items()}
    try:
        module = import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise ModuleNotFoundError(f"frame() needs {library}: pip install 'sooner[frames]'", name=library) from error
    return _in_pandas(module, made) if library == "pandas" else _in_polars(module, made)


def is_time(name: str) -> bool:
    """Whether values of a key are times if they are text; ``p10`` and the like are either."""
    last = name.rpartition("_")[2]
    return last in _TIMES or last in _QUANTILES


def _columns(documents: Sequence[Mapping[str, Any]]) -> Columns:
    """The columns of all keys. A key with null in one document and a document in another is no column: its keys are."""
    rows = [dict(_flat(document)) for document in documents]
    nested = {name for row in rows for name, value in row.items() if value is _NESTED}
    names = dict.fromkeys(name for row in rows for name in row if name not in nested)
    return {name: [row.get(name) for row in rows] for name in names}


_NESTED = object()


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each key with its value; of a document within a document also its keys."""
    for key, value in document.items():
        if not isinstance(value, Mapping):
            yield prefix + key, value
        else:
            yield prefix + key, _NESTED
            if key != "links":
                yield from _flat(value, f"{prefix}{key}_")


def _bars(timeline: TimelineDocument) -> Columns:
    """The columns of a timeline, joined: a row for each bar."""
    attempts = cast("Mapping[str, list[Any]]", timeline["attempts"])
    bars, servers = timeline["bars"], timeline["servers"]
    columns: Columns = {}
    for name, values in attempts.items():
        new = "attempt" if name == "id" else f"{name[:-2]}_at" if name.endswith("_s") else name
        if new != name and name.endswith("_s"):
            values = [None if each is None else datetime.fromtimestamp(each, UTC) for each in values]
        columns[new] = [values[index] for index in bars["attempt"]]
    columns["server"] = [servers[index]["name"] for index in bars["server"]]
    columns["rack"] = [servers[index]["rack"] for index in bars["server"]]
    return columns | {"first_gpu": bars["first_gpu"], "gpus": bars["gpus"]}


def _typed(name: str, values: list[Any]) -> list[Any]:
    if is_time(name):
        return [datetime.fromisoformat(each) if isinstance(each, str) else each for each in values]
    if name == "day":
        return [None if each is None else date.fromisoformat(each) for each in values]
    return values


def _are_times(name: str, values: list[Any]) -> bool:
    """Of a column without values, what its name says."""
    given = [each for each in values if each is not None]
    last = name.rpartition("_")[2]
    return all(isinstance(each, datetime) for each in given) and (bool(given) or last in _TIMES)


def _in_pandas(pandas: Any, columns: Columns) -> Any:
    series = {}
    for name, values in columns.items():
        if _are_times(name, values):
            series[name] = pandas.Series(pandas.to_datetime(values, utc=True))
        elif any(each is None for each in values) and _are_whole(values):
            # Without this type, pandas turns whole numbers beside None into floating point.
            series[name] = pandas.Series(values, dtype="Int64")
        else:
            series[name] = pandas.Series(values)
    return pandas.DataFrame(series)


def _in_polars(polars: Any, columns: Columns) -> Any:
    return polars.DataFrame(
        [
            polars.Series(name, values, dtype=polars.Datetime("us", "UTC"))
            if _are_times(name, values)
            else polars.Series(name, values, strict=False)
            for name, values in columns.items()
        ]
    )


def _are_whole(values: list[Any]) -> bool:
    given = [each for each in values if each is not None]
    return bool(given) and all(isinstance(each, int) and not isinstance(each, bool) for each in given)
