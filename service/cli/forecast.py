"""``sooner forecast`` and its record, the ETA column, expected starts, and the plan that ``job submit --dry-run`` shows.

A forecast is shown as a spread, ``p50 [p10-p90]``, or as the service's reason why there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.job_tables import JOBS, note_of_etas, total, when
from service.cli.output import Answer, Column, Style, Table, show, show_rows
from service.cli.selectors import select
from service.client import TERMINAL_STATES, ApiError, Client
from service.domain.duration import words_of

if TYPE_CHECKING:
    from service.wire.jobs import JobDocument, ToldDocument
    from service.wire.predictions import (
        AccuracyDocument,
        JobForecastDocument,
        PlacedDocument,
        PlanDocument,
        PlansDocument,
        SpreadDocument,
    )


_NO_FORECAST = frozenset({404, 409, 503})
"""Statuses of a service that has no forecast now, or none at all. The queue can be shown while no service leads."""

JOBS_NAMED_MAX = 200
"""Jobs that a request for forecasts names; of more, all forecasts are loaded. An address must stay below 8 kB."""

_SOON = timedelta(hours=1)


def spread(of: SpreadDocument | None, made_at: str) -> str:
    """``14:20 [13:55-15:40]`` in this machine's time zone: with seconds within the hour, with dates beyond the day."""
    if of is None:
        return ""
    seen = datetime.fromisoformat(made_at).astimezone()
    p10, p50, p90 = (datetime.fromisoformat(each).astimezone() for each in (of["p10"], of["p50"], of["p90"]))
    clock = "%H:%M:%S" if p90 - seen < _SOON else "%H:%M"

    def text(at: datetime) -> str:
        day = "" if at.date() == seen.date() else "%b %d " if at.year == seen.year else "%Y %b %d "
        return at.strftime(day + clock)

    return f"{text(p50)} [{text(p10)}-{text(p90)}]"


class Outlook:
    """The newest forecasts of the whole queue, from one question to the service."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: dict[int, JobForecastDocument] = {}
        self._missing = ""

    def look(self, jobs: Sequence[JobDocument], how: Style) -> None:
        """Ask, if the ETA is shown and a job is unfinished."""
        seen = not how.as_json and not how.quiet and (not how.columns or "ETA" in how.columns)
        if seen and any(job["state"] not in TERMINAL_STATES for job in jobs):
            self.ask([job["id"] for job in jobs])

    def ask(self, jobs: Sequence[int]) -> None:
        """Ask now, about these jobs alone where they are few."""
        self._found, self._missing = {}, ""
        few = jobs if len(jobs) <= JOBS_NAMED_MAX else None
        try:
            self._found = {each["job_id"]: each for each in self._client.forecasts.show(few)["forecasts"]}
        except ApiError as error:
            if error.status not in _NO_FORECAST:
                raise
            self._missing = error.detail or error.title

    def eta(self, job: JobDocument) -> str:
        """When the job will end; empty where :meth:`note` says why."""
        found = self._found.get(job["id"])
        return spread(found["finish_at"], found["made_at"]) if found is not None else ""

    def expected_start(self, job_id: int) -> str:
        """A sentence on when the job will start; empty for one that holds GPUs or has no forecast."""
        found = self._found.get(job_id)
        if found is None or found["start_at"] is None:
            return ""
        return f" Expected start {spread(found['start_at'], found['made_at'])}."

    def note(self, jobs: Sequence[JobDocument]) -> str:
        """Why ETAs are missing."""
        if self._missing:
            return f"ETA: {self._missing}"
        return note_of_etas([(job["id"], self._reason(job)) for job in jobs if job["state"] not in TERMINAL_STATES])

    def _reason(self, job: JobDocument) -> str | None:
        found = self._found.get(job["id"])
        if found is None:
            return "A new job has a forecast after the next cycle."
        return found["reason"] if found["finish_at"] is None else None

    def table(self) -> Table[JobDocument]:
        """The columns of jobs with their ETA."""
        columns = [Column("ETA", self.eta) if column.header == "ETA" else column for column in JOBS.columns]
        return replace(JOBS, columns=columns)


FORECASTS: Table[JobForecastDocument] = Table(
    columns=(
        Column("JOB", lambda each: str(each["job_id"]), right=True),
        Column("START", lambda each: spread(each["start_at"], each["made_at"])),
        Column("FINISH", lambda each: spread(each["finish_at"], each["made_at"])),
        Column("SAMPLES", lambda each: str(each["samples"]), right=True),
        Column("SOURCE", lambda each: each["source"], long=True),
        Column("WHY NOT", lambda each: each["reason"] or "", long=True),
    ),
    key=lambda each: str(each["job_id"]),
    name="forecasts",
)


def forecast_command(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="JOBS", help="Job numbers: 7, 1,3,5-8, last or all. Default: all.")
    ] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="Show the accuracy of recorded forecasts by horizon and gang size.")
    ] = False,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Show every recorded forecast of JOBS with its outcome.")
    ] = False,
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, help="With --accuracy: forecasts of the last N days.")
    ] = 30,
    *,
    how: Style,
) -> None:
    """Forecast when jobs start and end, as p50 [p10-p90] over sampled futures, or show the accuracy of past forecasts."""
    if accuracy and (recorded or jobs):
        fail("--accuracy covers all jobs and cannot be combined with JOBS or --recorded")
    if recorded and not jobs:
        fail("--recorded needs JOBS")
    with connect() as client:
        if accuracy:
            _show_accuracy(client, days, how)
            return
        if recorded and jobs:
            _show_recorded(client, select(client, jobs), how)
            return
        ids = select(client, jobs, unfinished=True) if jobs else None
        show_rows(FORECASTS, lambda: _forecasts(client, ids), how)


def _forecasts(client: Client, ids: Sequence[int] | None) -> Sequence[JobForecastDocument]:
    return client.forecasts.show()["forecasts"] if ids is None else [client.jobs.forecast(job_id) for job_id in ids]


def show_plans(plans: PlansDocument, how: Style) -> None:
    """What would become of a submission."""
    made_at = plans["made_at"]
    table: Table[PlanDocument] = Table(
        columns=(
            Column("NAME", lambda plan: plan["name"], long=True),
            Column("GPUS", lambda plan: str(plan["gpus"]), right=True),
            Column("PREDICTED", _predicted, right=True),
            Column("SOURCE", lambda plan: (plan["prediction"] or {"source": ""})["source"], long=True),
            Column("BEST PLACEMENT", lambda plan: _placement(plan["placement"]) or "none", long=True),
            Column("FREE NOW", _free_now, long=True),
            Column("START", lambda plan: spread(plan["start_at"], made_at)),
            Column("FINISH", lambda plan: spread(plan["finish_at"], made_at)),
            Column("WHY NOT", lambda plan: plan["reason"] or "", long=True),
        ),
        key=lambda plan: plan["name"],
    )
    document = {"schema": "sooner.plans/1", "made_at": made_at, "plans": plans["plans"]}
    show(table, lambda: Answer(plans["plans"], document, "Nothing was submitted."), how)


def _predicted(plan: PlanDocument) -> str:
    """``1,200 [900-2,000] iterations``."""
    found = plan["prediction"]
    if found is None:
        return "-"
    p10, p50, p90 = (total(found[point], found["unit"]) for point in ("p10", "p50", "p90"))
    return f"{p50} [{p10}-{p90}] iterations" if found["unit"] == "iterations" else f"{p50} [{p10[1:]}-{p90[1:]}]"


def _placement(shares: Iterable[PlacedDocument]) -> str:
    """``s0001:4 s0002:4``."""
    return " ".join(f"{share['server']}:{share['gpus']}" for share in shares)


def _free_now(plan: PlanDocument) -> str:
    """The placement on the GPUs that are free, or ``no``."""
    # An older service does not say where.
    return (_placement(plan.get("placement_now", ())) or "yes") if plan["fits_now"] else "no"


class _Line(NamedTuple):
    """One class of forecasts: ``start`` or ``finish``, which of them, and their scores."""

    milestone: str
    which: str
    tally: Mapping[str, Any]


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        assert high is not None
        return f"ahead < {words_of(high)}"
    return f"ahead {words_of(low)}-{words_of(high)}" if high is not None else f"ahead >= {words_of(low)}"


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
        Column("BIAS", lambda line: words_of(line.tally["median_error_s"]), right=True),
        Column("ERROR", lambda line: words_of(line.tally["median_absolute_error_s"]), right=True),
        Column("OF HORIZON", _relative, right=True),
        Column("WIDTH", lambda line: words_of(line.tally["mean_width_s"]), right=True),
    ),
    key=lambda line: f"{line.milestone} {line.which}",
    hidden=(Column("PINBALL", lambda line: words_of(line.tally["mean_pinball_s"]), right=True),),
)


def _show_accuracy(client: Client, days: int, how: Style) -> None:
    """Accuracy of the forecasts of the last ``days``."""

    def ask() -> Answer[_Line]:
        found = client.forecasts.accuracy(days)
        note = (
            ""
            if found["forecasts"]
            else f"No forecast of the last {'day' if days == 1 else f'{days} days'} has been scored yet."
        )
        return Answer(list(_lines(found)), {"schema": "sooner.forecasts.accuracy/1", "accuracy": found}, note)

    show(_ACCURACY, ask, how)


_RECORDED: Table[ToldDocument] = Table(
    columns=(
        Column("JOB", lambda each: str(each["job_id"]), right=True),
        Column("OF", lambda each: each["milestone"]),
        Column("TOLD AT", lambda each: when(each["made_at"])),
        Column("P50", lambda each: when(each["p50"])),
        Column("P10", lambda each: when(each["p10"])),
        Column("P90", lambda each: when(each["p90"])),
        Column("ACTUAL", lambda each: when(each["actual_at"])),
        Column("ERROR", lambda each: "" if each["error_s"] is None else words_of(each["error_s"]), right=True),
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


def _show_recorded(client: Client, jobs: Sequence[int], how: Style) -> None:
    """Show every recorded forecast of these jobs."""

    def ask() -> Answer[ToldDocument]:
        found = [each for job in jobs for each in client.jobs.forecast_records(job)]
        note = (
            ""
            if found
            else "No forecast is recorded yet. A new job gets one within seconds if the queue can be forecast."
        )
        return Answer(found, {"schema": "sooner.forecasts.told/1", "forecasts": found}, note)

    show(_RECORDED, ask, how)
