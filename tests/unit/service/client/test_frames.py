"""Answers as frames of pandas and polars: the same rows and types from both."""

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pandas
import polars
import pytest
from typing_extensions import is_typeddict

import service.wire
from service.client import Client, frame
from service.client.frames import is_time
from service.wire.times import INSTANT
from tests.api.conftest import app_of, make_world
from tests.api.helpers import admit, plain_job
from tests.unit.service.client.both import client_of

LIBRARIES = ("pandas", "polars")
AT = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
TEXT = "2026-01-01T12:30:00Z"


def cells(made: Any, name: str) -> list[Any]:
    """A column as values of Python; None where nothing is."""
    if isinstance(made, polars.DataFrame):
        return made[name].to_list()
    return [None if value is None or value is pandas.NaT or value is pandas.NA else value for value in made[name]]


def names(made: Any) -> list[str]:
    return list(made.columns)


@pytest.mark.parametrize("library", LIBRARIES)
def test_times_have_a_zone_and_the_rest_keeps_its_type(library: Any) -> None:
    rows = [
        {
            "id": 1,
            "name": TEXT,
            "started_at": TEXT,
            "waiting_s": 1.5,
            "exit_code": None,
            "servers": ["a", "b"],
            "ok": True,
        },
        {"id": 2, "name": "b", "started_at": None, "waiting_s": None, "exit_code": 3, "servers": [], "ok": None},
    ]
    made = frame(rows, library)
    assert names(made) == list(rows[0])
    assert cells(made, "id") == [1, 2]
    assert cells(made, "name") == [TEXT, "b"], "a text is no time, whatever it looks like"
    assert cells(made, "started_at") == [AT, None]
    assert cells(made, "exit_code") == [None, 3]
    assert cells(made, "waiting_s")[0] == 1.5
    assert [list(each) for each in cells(made, "servers")] == [["a", "b"], []]
    assert cells(made, "ok") == [True, None]
    if library == "pandas":
        assert str(made["started_at"].dtype).endswith("UTC]")
        assert str(made["exit_code"].dtype) == "Int64"
    else:
        assert made.schema["started_at"] == polars.Datetime("us", "UTC")
        assert made.schema["exit_code"] == polars.Int64


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_document_within_a_document_becomes_columns(library: Any) -> None:
    rows = [
        {"gpus": 4, "prediction": None, "links": {"self": "/v1/jobs/1"}, "gpus_max": 8},
        {"gpus": 2, "prediction": {"p50": 7.0, "made_at": TEXT}, "links": {"self": "/v1/jobs/2"}, "gpus_max": None},
    ]
    made = frame(rows, library)
    assert names(made) == ["gpus", "gpus_max", "prediction_p50", "prediction_made_at"]
    assert cells(made, "gpus") == [4, 2]
    assert cells(made, "prediction_p50")[1] == 7.0
    assert cells(made, "prediction_made_at") == [None, AT]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_without_values_has_the_type_of_its_name(library: Any) -> None:
    made = frame(
        [{"ended_at": None, "eta": None, "day": "2026-01-31", "p50": 3.0}, {"day": None, "p50": None}], library
    )
    dtypes = [str(made[name].dtype) for name in ("ended_at", "eta")]
    assert all("UTC" in each for each in dtypes), dtypes
    assert cells(made, "day") == [date(2026, 1, 31), None]
    assert cells(made, "p50")[0] == 3.0


@pytest.mark.parametrize("library", LIBRARIES)
def test_quantiles_of_forecasts_are_times_and_of_predictions_numbers(library: Any) -> None:
    assert cells(frame([{"p10": TEXT, "start": {"p50": TEXT}}], library), "p10") == [AT]
    assert cells(frame([{"p10": TEXT, "start": {"p50": TEXT}}], library), "start_p50") == [AT]
    assert cells(frame([{"p10": 2.5}], library), "p10") == [2.5]


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_empty_list_is_an_empty_frame(library: Any) -> None:
    assert len(frame([], library)) == 0


def test_another_library_is_refused() -> None:
    with pytest.raises(ValueError, match="library must be 'pandas' or 'polars', not 'excel'"):
        frame([], "excel")  # type: ignore[call-overload]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_named_with_the_extra(library: str) -> None:
    code = (
        f"import sys\nsys.modules[{library!r}] = None\nfrom service.client import frame\n"
        f"try:\n    frame([], {library!r})\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"frame() needs {library}: pip install 'sooner[frames]'\n"


def _documents() -> Iterator[type]:
    for found in pkgutil.iter_modules(service.wire.__path__):
        module = importlib.import_module(f"service.wire.{found.name}")
        for value in vars(module).values():
            if is_typeddict(value) and value.__module__ == module.__name__:
                yield value


def _is_instant(hint: Any) -> bool:
    """Whether a type is ``Time``, or that or nothing."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return INSTANT in notes or _is_instant(inner)
    if get_origin(hint) in (Union, UnionType):
        return any(_is_instant(each) for each in get_args(hint))
    return False


def _is_document(hint: Any) -> bool:
    return is_typeddict(hint) or any(_is_document(each) for each in get_args(hint))


def test_the_names_of_times_are_those_of_the_api() -> None:
    """A document with a time under another name would come as text, and a text under such a name would fail."""
    seen = 0
    for document in _documents():
        for name, hint in get_type_hints(document, include_extras=True).items():
            if _is_instant(hint):
                seen += 1
                assert is_time(name), f"{document.__name__}.{name}"
            elif name.endswith("_at"):
                assert _is_document(hint), f"{document.__name__}.{name}"
    assert seen > 40


@pytest.mark.parametrize("library", LIBRARIES)
def test_lists_of_a_service_are_frames(library: Any, tmp_path: Path) -> None:
    made = make_world(tmp_path)
    with client_of(Client, app_of(made), made.token) as client:
        client.jobs.submit_many({"jobs": [plain_job(name="one"), plain_job(name="two")]})
        admit(made)
        jobs = frame(client.jobs.list(), library)
        events = frame(client.jobs.events(1), library)
        assert len(frame(client.predictions.list(), library)) == 0
        assert len(frame(client.usage.show()["rows"], library)) == 0
        assert len(frame(client.cluster.timeline(), library)) == 0
        servers = frame(client.cluster.show()["servers"], library)
    assert cells(jobs, "name") == ["two", "one"]
    assert cells(jobs, "submitted_at")[0] == datetime.fromtimestamp(made.now_s, UTC)
    assert cells(events, "target") == ["queued"]
    assert cells(servers, "name") == ["a", "b", "c"]
    made.database.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_timeline_has_a_row_for_each_bar(library: Any) -> None:
    seconds = AT.timestamp()
    timeline: Any = {
        "servers": [{"name": "a", "rack": "r1"}, {"name": "b", "rack": "r2"}],
        "attempts": {
            "id": ["1.1", "2.1"],
            "job": [1, None],
            "name": ["x", None],
            "user": ["ada", None],
            "project": ["", None],
            "state": ["running", None],
            "reason": [None, None],
            "starts_s": [seconds, 0.0],
            "ends_s": [None, 60.0],
            "stop_requested_s": [None, None],
            "p10_s": [None, None],
            "p50_s": [seconds, None],
            "p90_s": [None, None],
        },
        "bars": {"attempt": [0, 0, 1], "server": [0, 1, 1], "first_gpu": [0, 0, 2], "gpus": [4, 2, 1]},
    }
    made = frame(timeline, library)
    assert cells(made, "attempt") == ["1.1", "1.1", "2.1"]
    assert cells(made, "job") == [1, 1, None]
    assert cells(made, "server") == ["a", "b", "b"]
    assert cells(made, "rack") == ["r1", "r2", "r2"]
    assert cells(made, "starts_at") == [AT, AT, datetime.fromtimestamp(0.0, UTC)]
    assert cells(made, "ends_at") == [None, None, datetime.fromtimestamp(60.0, UTC)]
    assert cells(made, "p50_at") == [AT, AT, None]
    assert cells(made, "gpus") == [4, 2, 1]
    assert "UTC" in str(made["stop_requested_at"].dtype)
