"""Queries of the API, each in a bounded number of statements: pages by key through an index, never a query per row.

A list reads only the columns it shows (a spec can be large), and the newest predictions, held servers and forecasts of its
jobs in one statement each for the whole page.
"""

from collections import namedtuple
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
)

from policies.lifecycle import TERMINAL, AttemptState, Cause, JobState
from policies.model.ids import AttemptId, JobId
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement
from service.db.access import seen
from service.db.codec import decode
from service.db.dialects import by_dialect
from service.db.event_log import CYCLE_COLUMNS
from service.db.forecasts import newest_forecasts
from service.db.pages import equal, page
from service.db.rows import OPEN_ATTEMPTS, chunks
from service.db.specs import SpecReader
from service.db.tables import (
    ARRAY_SPECS,
    ATTEMPTS,
    CYCLES,
    EVENTS,
    FORECASTS,
    JOBS,
    MODELS,
    PREDICTIONS,
    PROGRESS,
    REQUESTS,
    SERVER_EVENTS,
    SERVERS,
    THROUGHPUT,
    TRAINING_RUNS,
    columns,
)
from service.domain.access import LOCAL, NO_PROJECT, Identity
from service.domain.forecast_scores import Milestone
from service.engine.events import RequestKind

_JOB_COLUMNS = columns(
    JOBS,
    "id name user project gpus state reason version priority held submitted_at_s first_started_at_s "
    "finished_at_s attempts preemptions iterations reports_iterations exit_code array_id array_index",
)

# Statements of every page are built once: to build one takes as long as to run it.
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)

_JOBS_BY_ID = by_dialect(JOBS.c.id, "ids", lambda is_wanted: select(*_JOB_COLUMNS).where(is_wanted).order_by(JOBS.c.id))

_PREDICTION_COLUMNS = columns(
    PREDICTIONS,
    "id job_id made_at_s unit p10 p50 p90 point source model_version seconds_per_unit actual scored_at_s log_error",
)


_NEWEST_PREDICTIONS, _FIRST_PREDICTIONS = (
    select(*_PREDICTION_COLUMNS).where(
        PREDICTIONS.c.id.in_(
            select(one(PREDICTIONS.c.id)).where(PREDICTIONS.c.job_id.in_(_IDS)).group_by(PREDICTIONS.c.job_id)
        )
    )
    for one in (func.max, func.min)
)

_HELD = select(ATTEMPTS.c.job_id, ATTEMPTS.c.placement).where(
    ATTEMPTS.c.job_id.in_(_IDS), ATTEMPTS.c.state.in_(OPEN_ATTEMPTS)
)

_FORECASTS_OF = {milestone: FORECASTS.alias(milestone.value) for milestone in Milestone}


def _one_job() -> tuple[Select[Any], dict[str, slice]]:
    """All that the page of a job shows, as one row, and where the parts of the row are.

    While other threads compute, each call of the database costs a wait for the interpreter, which takes longer than the call.
    """
    job_id = bindparam("id", type_=Integer)
    newest = select(func.max(PREDICTIONS.c.id)).where(PREDICTIONS.c.job_id == job_id).scalar_subquery()
    rows = JOBS.outerjoin(ARRAY_SPECS, ARRAY_SPECS.c.id == JOBS.c.array_id)
    rows = rows.outerjoin(PREDICTIONS, PREDICTIONS.c.id == newest)
    rows = rows.outerjoin(ATTEMPTS, (ATTEMPTS.c.job_id == JOBS.c.id) & ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
    parts: dict[str, Sequence[ColumnElement[Any]]] = {"job": _JOB_COLUMNS, "prediction": _PREDICTION_COLUMNS}
    for milestone, forecasts in _FORECASTS_OF.items():
        of_job = (FORECASTS.c.job_id == job_id) & (FORECASTS.c.milestone == milestone.value)
        rows = rows.outerjoin(
            forecasts, forecasts.c.id == select(func.max(FORECASTS.c.id)).where(of_job).scalar_subquery()
        )
        parts[milestone.value] = list(forecasts.c)
    parts["placement"] = [ATTEMPTS.c.placement]
    has_plan = cast(func.coalesce(ARRAY_SPECS.c.spec, JOBS.c.spec), Text).like('%"plan":{%')
    parts["planned"] = [case((has_plan, cast(JOBS.c.spec, Text)))]
    at, found, selected = 0, dict[str, slice](), list[ColumnElement[Any]]()
    for name, part in parts.items():
        found[name] = slice(at, at + len(part))
        at += len(part)
        selected += part if name == "job" else [column.label(f"{name}_{i}") for i, column in enumerate(part)]
    return select(*selected).select_from(rows).where(JOBS.c.id == job_id), found


_ONE_JOB, _PARTS = _one_job()
# As the rows of lists, whose attributes are their columns. (mypy takes only literal names.)
_named: Any = namedtuple
_PREDICTION_ROW = _named("PredictionRow", [column.name for column in _PREDICTION_COLUMNS])
_FORECAST_ROW = _named("ForecastRow", [column.name for column in FORECASTS.c])

_SERVER_NAMES = select(SERVERS.c.position, SERVERS.c.name).where(SERVERS.c.position.in_(_IDS))


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job as lists and its own page show it: columns of ``jobs``, its newest prediction and forecasts, the servers it holds.

    Lists may be asked for the first predictions instead.
    ``planned``: the document of its spec if that may have a training plan; None in lists. Other specs may be large and are not
    read.
    """

    job: Row[Any]
    prediction: Row[Any] | None
    servers: tuple[str, ...]
    forecasts: Mapping[Milestone, Row[Any]]
    planned: str | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list has, and their order; empty = everything. ``seen_by``: only what this caller sees."""

    states: tuple[JobState, ...] = ()
    user: str | None = None
    project: str | None = None
    name: str | None = None
    array: int | None = None
    seen_by: Identity = LOCAL
    oldest_first: bool = False


def job(connection: Connection, job_id: int) -> JobSummary | None:
    """One job, or None. One statement, and another one for the names of its servers if it holds any."""
    row = connection.execute(_ONE_JOB, {"id": job_id}).one_or_none()
    if row is None:
        return None
    prediction = row[_PARTS["prediction"]]
    forecasts = {milestone: row[_PARTS[milestone.value]] for milestone in Milestone}
    [placement], [planned] = row[_PARTS["placement"]], row[_PARTS["planned"]]
    servers: tuple[str, ...] = ()
    if placement is not None:
        held = decode(Placement, placement)
        names = server_names(connection, [held])
        servers = tuple(names[server] for server in held.servers)
    return JobSummary(
        row,
        None if prediction[0] is None else _PREDICTION_ROW(*prediction),
        servers,
        {milestone: _FORECAST_ROW(*told) for milestone, told in forecasts.items() if told[0] is not None},
        planned,
    )


def jobs_by_id(connection: Connection, job_ids: Sequence[int]) -> list[JobSummary]:
    """These jobs in ascending id; unknown ids are left out."""
    return [summary for rows in _job_rows(connection, job_ids) for summary in _summaries(connection, rows)]


def new_jobs(connection: Connection, job_ids: Sequence[int]) -> list[JobSummary]:
    """Jobs that this transaction has inserted, in ascending id: they have no predictions, servers or forecasts yet."""
    return [JobSummary(row, None, (), {}) for rows in _job_rows(connection, job_ids) for row in rows]


def _job_rows(connection: Connection, job_ids: Sequence[int]) -> Iterator[Sequence[Row[Any]]]:
    for part in chunks(sorted(job_ids)):
        yield connection.execute(_JOBS_BY_ID[connection.dialect.name], {"ids": part}).all()


def jobs(
    connection: Connection, wanted: JobFilter, past_id: int | None, limit: int, *, first_predictions: bool = False
) -> list[JobSummary]:
    """At most ``limit`` jobs that follow ``past_id`` in the filter's order. A handful of statements at any depth.

    ``first_predictions``: with the first prediction of each job instead of the newest.
    """
    ids = _page_ids(connection, wanted, past_id, limit)
    rows = connection.execute(_JOBS_BY_ID[connection.dialect.name], {"ids": ids}).all()
    predictions = _FIRST_PREDICTIONS if first_predictions else _NEWEST_PREDICTIONS
    return _summaries(connection, rows if wanted.oldest_first else rows[::-1], predictions)


def _by_id(wanted: JobFilter) -> ColumnElement[Any]:
    return JOBS.c.id.asc() if wanted.oldest_first else JOBS.c.id.desc()


def _page_ids(connection: Connection, wanted: JobFilter, past_id: int | None, limit: int) -> list[int]:
    """The page's ids: one index walk a state, merged. One statement with ``state IN (...)`` would sort every match."""
    found: list[int] = []
    states: Sequence[JobState | None] = sorted(wanted.states) or [None]
    for state in states:
        for part in _parts(wanted, state):
            statement = _ids_in_state(part, state, first=past_id is None)
            found.extend(connection.execute(statement, {"past": past_id, "most": limit}).scalars())
    return sorted(found, reverse=not wanted.oldest_first)[:limit]


def _parts(wanted: JobFilter, state: JobState | None) -> list[JobFilter]:
    """Split a filter by the caller's projects unless another column selects few rows.

    A walk through the ended jobs of all users would read every one of them to find the few of a small project.
    """
    caller = wanted.seen_by
    leads = (wanted.array, wanted.name, wanted.user, wanted.project)
    if caller.projects is None or _few(wanted, state) or any(value is not None for value in leads):
        return [wanted]
    parts = [replace(wanted, project=project) for project in sorted(caller.projects - {NO_PROJECT})]
    if NO_PROJECT in caller.projects:
        parts.append(replace(wanted, project=NO_PROJECT, user=caller.user))
    return parts


def _few(wanted: JobFilter, state: JobState | None) -> bool:
    """Whether the state is the most selective column: unfinished jobs are few, and so are an array's elements."""
    return state is not None and state not in TERMINAL and wanted.array is None


@lru_cache(maxsize=1 << 10)
def _ids_in_state(wanted: JobFilter, state: JobState | None, *, first: bool) -> Select[Any]:
    """The first ``most`` ids, after ``past`` unless it is the first page."""
    statement = select(JOBS.c.id).order_by(_by_id(wanted)).limit(bindparam("most", type_=Integer))
    if not first:
        past = bindparam("past", type_=Integer)
        statement = statement.where(JOBS.c.id > past if wanted.oldest_first else JOBS.c.id < past)
    equal = {
        "array_id": wanted.array,
        "name": wanted.name,
        "user": wanted.user,
        "project": wanted.project,
        "state": state,
    }
    given = {column: value for column, value in equal.items() if value is not None}
    # Only the most selective column may choose the index: the state, or else a name. A database without statistics guesses,
    # and a wrong guess is slow for a user with a million ended jobs.
    leading = "state" if _few(wanted, state) else next(iter(given), None)
    for column, value in given.items():
        plain = JOBS.c[column]
        statement = statement.where((plain if column == leading else func.coalesce(plain, plain)) == value)
    project, user = (func.coalesce(JOBS.c[name], JOBS.c[name]) for name in ("project", "user"))
    return statement.where(seen(wanted.seen_by, project, user))


def _summaries(
    connection: Connection, rows: Sequence[Row[Any]], wanted: Select[Any] = _NEWEST_PREDICTIONS
) -> list[JobSummary]:
    ids = [row.id for row in rows]
    predictions = _predictions_of(connection, ids, wanted)
    servers = _held(connection, ids)
    forecasts = newest_forecasts(connection, ids)
    return [
        JobSummary(row, predictions.get(row.id), servers.get(row.id, ()), forecasts.get(row.id, {})) for row in rows
    ]


def _predictions_of(connection: Connection, job_ids: Sequence[int], wanted: Select[Any]) -> Mapping[int, Row[Any]]:
    """The wanted prediction of each of these jobs that has one."""
    if not job_ids:
        return {}
    return {row.job_id: row for row in connection.execute(wanted, {"ids": job_ids})}


def _held(connection: Connection, job_ids: Collection[int]) -> Mapping[int, tuple[str, ...]]:
    """The names of the servers on which these jobs hold GPUs, for those that do."""
    if not job_ids:
        return {}
    rows = connection.execute(_HELD, {"ids": list(job_ids)})
    placements = {row.job_id: decode(Placement, row.placement) for row in rows}
    names = server_names(connection, placements.values())
    return {number: tuple(names[server] for server in held.servers) for number, held in placements.items()}


def server_names(connection: Connection, placements: Iterable[Placement]) -> Mapping[int, str]:
    """The names of the servers of these placements, by position."""
    positions = sorted({int(server) for placement in placements for server in placement.servers})
    names: dict[int, str] = {}
    for part in chunks(positions):
        names.update((position, name) for position, name in connection.execute(_SERVER_NAMES, {"ids": part}))
    return names


def job_exists(connection: Connection, job_id: int) -> bool:
    """Whether there is such a job."""
    return connection.execute(select(JOBS.c.id).where(JOBS.c.id == job_id)).first() is not None


def unfinished_elements(connection: Connection, array_id: int) -> list[int] | None:
    """The elements of an array that have not ended, in ascending id; None where there is no such array."""
    found = connection.execute(select(JOBS.c.id, JOBS.c.state).where(JOBS.c.array_id == array_id)).all()
    return sorted(row.id for row in found if JobState(row.state) not in TERMINAL) if found else None


def element_states(connection: Connection, array_id: int) -> Mapping[JobState, int]:
    """How many elements of an array are in each state, of those that occur; empty where there is no such array."""
    counted = select(JOBS.c.state, func.count()).where(JOBS.c.array_id == array_id).group_by(JOBS.c.state)
    return {JobState(state): number for state, number in connection.execute(counted)}


def spec(connection: Connection, job_id: int) -> JobSpec | None:
    """The spec of a job as submitted, or None if there is no such job."""
    text = connection.execute(select(cast(JOBS.c.spec, Text)).where(JOBS.c.id == job_id)).scalar_one_or_none()
    return None if text is None else SpecReader(connection).read(text)


def planned_spec(connection: Connection, summary: JobSummary) -> JobSpec | None:
    """The spec of a job that has a training plan; None for any other job."""
    read = None if summary.planned is None else SpecReader(connection).read(summary.planned)
    return read if read is not None and read.plan is not None else None


def staged_specs(connection: Connection, job_ids: Collection[int]) -> Mapping[int, JobSpec]:
    """The specs of those of these jobs that have pipeline stages or a training plan. Other specs are not read."""
    text = cast(func.coalesce(ARRAY_SPECS.c.spec, JOBS.c.spec), Text)
    statement = (
        select(JOBS.c.id, text)
        .select_from(JOBS.outerjoin(ARRAY_SPECS, ARRAY_SPECS.c.id == JOBS.c.array_id))
        .where(or_(text.like('%"parallelism":{%'), text.like('%"plan":{%')))
    )
    reader, known, found = SpecReader(connection), dict[str, JobSpec](), dict[int, JobSpec]()
    for part in chunks(sorted(job_ids)):
        for number, document in connection.execute(statement.where(JOBS.c.id.in_(part))):
            if document not in known:
                known[document] = reader.read(document)
            found[number] = known[document]
    return found


def all_admitted(connection: Connection, job_ids: Collection[int]) -> bool:
    """Whether a cycle has admitted every one of these jobs, and so predicted it if it could."""
    waiting = (
        select(REQUESTS.c.id)
        .where(REQUESTS.c.consumed_cycle.is_(None), REQUESTS.c.kind == RequestKind.SUBMITTED.value)
        .limit(1)
    )
    return not any(
        connection.execute(waiting.where(REQUESTS.c.job_id.in_(part))).first() for part in chunks(sorted(job_ids))
    )


def unfinished_jobs(connection: Connection) -> int:
    """How many jobs have not ended: a count over the index of states."""
    unfinished = [state.value for state in JobState if state not in TERMINAL]
    statement = select(func.count()).select_from(JOBS).where(JOBS.c.state.in_(unfinished))
    return int(connection.execute(statement).scalar_one())


def attempts(connection: Connection, job_id: int, after_number: int, limit: int) -> list[tuple[Row[Any], Placement]]:
    """A job's attempts in their order, each with its placement."""
    of_job = select(ATTEMPTS).where(ATTEMPTS.c.job_id == job_id)
    rows = page(connection, of_job, [ATTEMPTS.c.number], after_number, limit)
    return [(row, decode(Placement, row.placement)) for row in rows]


def newest_attempt(connection: Connection, job_id: int) -> tuple[Row[Any], Placement] | None:
    """A job's newest attempt, which is the open one if any is, with its placement; None before the first."""
    newest = select(ATTEMPTS).where(ATTEMPTS.c.job_id == job_id).order_by(ATTEMPTS.c.number.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return None if row is None else (row, decode(Placement, row.placement))


def iteration_times(connection: Connection, job_id: int) -> IterationTimes | None:
    """The constants of a job on this cluster, which correct its model; None where none are known."""
    found = connection.execute(select(JOBS.c.iteration_times).where(JOBS.c.id == job_id)).scalar_one_or_none()
    return None if found is None else decode(IterationTimes, found)


def open_attempts(connection: Connection, host: str | None = None) -> Mapping[AttemptId, tuple[JobId, AttemptState]]:
    """Attempts that may have processes, with their jobs and states; of one service where ``host`` is given."""
    statement = select(ATTEMPTS.c.id, ATTEMPTS.c.job_id, ATTEMPTS.c.state).where(ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
    if host is not None:
        statement = statement.where(ATTEMPTS.c.host == host)
    return {AttemptId(row.id): (JobId(row.job_id), AttemptState(row.state)) for row in connection.execute(statement)}


def attempt_servers(connection: Connection, job_id: int, number: int | None) -> tuple[int, int] | None:
    """An attempt of the job (None: the newest): its number, and how many servers it has; None if there is no such attempt."""
    statement = select(ATTEMPTS.c.number, ATTEMPTS.c.gpu_ids).where(ATTEMPTS.c.job_id == job_id)
    if number is not None:
        statement = statement.where(ATTEMPTS.c.number == number)
    found = connection.execute(statement.order_by(ATTEMPTS.c.number.desc()).limit(1)).first()
    return (found.number, len(found.gpu_ids)) if found is not None else None


def events(connection: Connection, job_id: int, after_id: int, limit: int) -> Sequence[Row[Any]]:
    """A job's changes of state, oldest first.

    A job that no cycle has admitted yet has no event. Its submission is shown from its row, as event 0 of cycle 0.
    """
    rows = page(connection, select(EVENTS).where(EVENTS.c.job_id == job_id), [EVENTS.c.id], after_id, limit)
    if rows or after_id:
        return rows
    submission = {"id": 0, "source": None, "cause": Cause.SUBMITTED.value, "cycle": 0, "attempt_id": None, "detail": ""}
    statement = select(
        JOBS.c.submitted_at_s.label("at_s"),
        JOBS.c.state.label("target"),
        JOBS.c.reason,
        *(literal(value).label(name) for name, value in submission.items()),
    )
    return connection.execute(statement.where(JOBS.c.id == job_id)).all()


def detail_of_last_stop(connection: Connection, job_id: int) -> str:
    """The detail of the event with which the job's last stopped attempt ended; empty without one."""
    statement = select(EVENTS.c.detail).where(EVENTS.c.job_id == job_id, EVENTS.c.cause == Cause.STOPPED.value)
    return connection.execute(statement.order_by(EVENTS.c.id.desc()).limit(1)).scalar() or ""


def detail_of_failure(connection: Connection, job_id: int) -> str:
    """Why the job's last attempt failed, if nothing has happened to the job since; else empty."""
    newest = (
        select(EVENTS.c.cause, EVENTS.c.detail).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.id.desc()).limit(1)
    )
    event = connection.execute(newest).first()
    failed = event is not None and event.cause in (Cause.RETRYABLE_FAILURE.value, Cause.FATAL_FAILURE.value)
    return event.detail if event is not None and failed else ""


def progress(connection: Connection, job_id: int, after_id: int, limit: int) -> Sequence[Row[Any]]:
    """A job's progress lines, oldest first."""
    return page(connection, select(PROGRESS).where(PROGRESS.c.job_id == job_id), [PROGRESS.c.id], after_id, limit)


def _one(connection: Connection, key: Column[Any], value: object) -> Row[Any] | None:
    return connection.execute(select(key.table).where(key == value)).one_or_none()


def predictions(
    connection: Connection, job_id: int | None, before_id: int | None, limit: int, seen_by: Identity = LOCAL
) -> Sequence[Row[Any]]:
    """Predictions of jobs that ``seen_by`` sees, newest first; of one job where ``job_id`` is given."""
    statement = select(*_PREDICTION_COLUMNS).where(*equal(PREDICTIONS, job_id=job_id))
    if seen_by.projects is not None:
        statement = statement.join(JOBS, JOBS.c.id == PREDICTIONS.c.job_id)
        statement = statement.where(seen(seen_by, JOBS.c.project, JOBS.c.user))
    return page(connection, statement, [PREDICTIONS.c.id], before_id, limit, descending=True)


def models(connection: Connection, before: tuple[float, str] | None, limit: int) -> Sequence[Row[Any]]:
    """Trained models, newest first. There are few, so sorting them is cheap."""
    return page(connection, select(MODELS), columns(MODELS, "created_at_s id"), before, limit, descending=True)


def model(connection: Connection, model_id: str) -> Row[Any] | None:
    """One trained model, or None."""
    return _one(connection, MODELS.c.id, model_id)


def training_run(connection: Connection, run: int) -> Row[Any] | None:
    """One training run, or None."""
    return _one(connection, TRAINING_RUNS.c.id, run)


ThroughputKey = tuple[str, str, str, int, str, int]


def throughput(
    connection: Connection, after: ThroughputKey | None, limit: int, seen_by: Identity = LOCAL
) -> Sequence[Row[Any]]:
    """The measured speeds of jobs that ``seen_by`` may see, ordered by user, project, name, GPUs, GPU type, servers spanned."""
    theirs = select(THROUGHPUT).where(seen(seen_by, THROUGHPUT.c.project, THROUGHPUT.c.user))
    return page(connection, theirs, list(THROUGHPUT.primary_key), after, limit)


def cycles(connection: Connection, before_number: int | None, limit: int) -> Sequence[Row[Any]]:
    """Cycles in which something happened, newest first, without their dumps."""
    return page(connection, select(*CYCLE_COLUMNS), [CYCLES.c.number], before_number, limit, descending=True)


def cycle(connection: Connection, number: int) -> Row[Any] | None:
    """One cycle with its dump, or None."""
    return _one(connection, CYCLES.c.number, number)


def servers(connection: Connection) -> Sequence[Row[Any]]:
    """Every server, present or past, by position: name and state."""
    state = columns(SERVERS, "position name drained down engine_drained detail health_reason")
    return connection.execute(select(*state).order_by(SERVERS.c.position)).all()


def server_events(connection: Connection, before_id: int | None, limit: int) -> Sequence[Row[Any]]:
    """Changes of servers, newest first, each with the name of its server."""
    named = select(SERVER_EVENTS, SERVERS.c.name).join(SERVERS, SERVERS.c.position == SERVER_EVENTS.c.position)
    return page(connection, named, [SERVER_EVENTS.c.id], before_id, limit, descending=True)


def server_position(connection: Connection, name: str) -> int | None:
    """The position of the server of that name, or None."""
    return connection.execute(select(SERVERS.c.position).where(SERVERS.c.name == name)).scalar_one_or_none()
