"""``sooner forecast --accuracy`` and ``--told``: recorded forecasts and their accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from service.cli.job_tables import duration, when
from service.cli.output import Answer, Column, Style, Table, show
from service.client import Client

if TYPE_CHECKING:
    from service.wire.jobs import ToldDocument
    from service.wire.predictions import AccuracyDocument


_DAY_S = 86_400.0


class _Line(NamedTuple):
    """One class of forecasts: ``start`` or ``finish``, which of them, and their scores."""

    milestone: str
    which: str
    tally: Mapping[str, Any]


def _signed(value: float) -> str:
    return f"-{duration(-value)}" if value <= -1.0 else duration(abs(value))


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"ahead < {_whole(high)}"
    return f"ahead {_whole(low)}-{_whole(high)}" if high is not None else f"ahead >= {_whole(low)}"


def _whole(value: float | None) -> str:
    assert value is not None
    for unit, name in ((_DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g} s"


def _gang(of: Mapping[str, Any]) -> str:
    low, high = of["gpus_min"], of["gpus_max"]
    return f"{low} GPU{'s' if low > 1 else ''}" if low == high else f"{low}-{high} GPUs"


def _lines(found: AccuracyDocument) -> Iterator[_Line]:
    for milestone in ("start", "finish"):
        of: Mapping[str, Any] = found["start"] if milestone == "start" else found["finish"]
        if of["all"] is not None:
            yield _Line(milestone, "all", of["all"])
        for each in of["by_horizon"]:
            yield _Line(milestone, _range(each["horizon_s_min"], each["horizon_s_max"]), each)
        for each in of["by_gpus"]:
            yield _Line(milestone, _gang(each), each)


def _relative(line: _Line) -> str:
    value = line.tally["median_relative_error"]
    return "-" if value is None else f"{value:.0%}"


_ACCURACY: Table[_Line] = Table(
    columns=(
        Column("OF", lambda line: line.milestone),
        Column("FORECASTS", lambda line: line.which),
        Column("COUNT", lambda line: str(line.tally["forecasts"]), right=True),
        Column("JOBS", lambda line: str(line.tally["jobs"]), right=True),
        Column("INSIDE 80%", lambda line: f"{line.tally['coverage_80']:.0%}", right=True),
        Column("BIAS", lambda line: _signed(line.tally["median_error_s"]), right=True),
        Column("ERROR", lambda line: duration(line.tally["median_absolute_error_s"]), right=True),
        Column("OF HORIZON", _relative, right=True),
    ),
    key=lambda line: f"{line.milestone} {line.which}",
    hidden=(Column("PINBALL", lambda line: duration(line.tally["mean_pinball_s"]), right=True),),
)


def show_accuracy(client: Client, days: int, how: Style) -> None:
    """Accuracy of the forecasts of the last ``days``."""

    def ask() -> Answer[_Line]:
        found = client.forecast_accuracy(days)
        note = "" if found["forecasts"] else f"No forecast of the last {days} days has been settled yet."
        return Answer(list(_lines(found)), {"schema": "sooner.forecasts.accuracy/1", "accuracy": found}, note)

    show(_ACCURACY, ask, how)


_TOLD: Table[ToldDocument] = Table(
    columns=(
        Column("JOB", lambda each: str(each["job_id"]), right=True),
        Column("OF", lambda each: each["milestone"]),
        Column("TOLD AT", lambda each: when(each["made_at"])),
        Column("P50", lambda each: when(each["p50"])),
        Column("P10", lambda each: when(each["p10"])),
        Column("P90", lambda each: when(each["p90"])),
        Column("ACTUAL", lambda each: when(each["actual_at"])),
        Column("ERROR", lambda each: "" if each["error_s"] is None else _signed(each["error_s"]), right=True),
        Column("INSIDE", lambda each: "" if each["inside"] is None else "yes" if each["inside"] else "no"),
        Column("SOURCE", lambda each: each["source"], long=True),
    ),
    key=lambda each: str(each["id"]),
    hidden=(
        Column("POLICY", lambda each: each["policy"]),
        Column("MODEL", lambda each: each["model_version"] or ""),
        Column("SAMPLES", lambda each: str(each["samples"]), right=True),
    ),
)


def show_told(client: Client, jobs: Sequence[int], how: Style) -> None:
    """Every forecast of these jobs on record."""

    def ask() -> Answer[ToldDocument]:
        found = [each for job in jobs for each in client.forecast_records(job)]
        note = (
            ""
            if found
            else "No forecast is recorded yet. A new job gets one within seconds if the queue can be forecast."
        )
        return Answer(found, {"schema": "sooner.forecasts.told/1", "forecasts": found}, note)

    show(_TOLD, ask, how)
