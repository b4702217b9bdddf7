"""Loading a workload table of ended jobs into the history of the database."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from policies.model.estimate import EndedJob
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.faults import message_of
from service.db.audit import record_command
from service.db.history import ImportedJob, import_history
from service.db.migrate import SchemaError, SchemaState, state, upgrade
from service.db.session import open_database
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import read_workload
from service.wire.base import Name

_SOURCE: Final[TypeAdapter[str]] = TypeAdapter(Name)


class HistoryError(ValueError):
    """A history that cannot be loaded; one line that says why."""


class LoadedHistory(NamedTuple):
    """What a load did: rows of the table, and how many of them the database did not have."""

    source: str
    jobs: int
    new: int


def load_history(file: Path, database_url: str, source: str, *, start_s: float | None, now_s: float) -> LoadedHistory:
    """Read the table and add its jobs. Times are seconds since the Unix epoch.

    Without ``start_s`` (when second 0 of the table was) the last job ends at ``now_s``. An empty database gets its schema.
    Raises :class:`HistoryError`, also if a job would end after ``now_s``, and DatabaseUrlError for a URL that names nothing.
    """
    try:
        _SOURCE.validate_python(source)
    except ValidationError as error:
        raise HistoryError(f"--source: {message_of(error.errors()[0])}") from None
    try:
        workload = read_workload(file)
    except WorkloadError as error:
        raise HistoryError(str(error)) from error
    return add_history(workload, database_url, source, start_s=start_s, now_s=now_s)


def add_history(
    workload: Workload, database_url: str, source: str, *, start_s: float | None, now_s: float
) -> LoadedHistory:
    """The same for a workload that is in memory."""
    last_end_s = max((_end_s(row) for row in workload.jobs), default=0.0)
    if start_s is None:
        start_s = now_s - last_end_s
    elif start_s + last_end_s > now_s:
        late_s = start_s + last_end_s - now_s
        raise HistoryError(
            f"--start: the last job of the table would end {late_s:,.0f} s from now; all jobs of a history have ended"
        )
    where = state(database_url)
    if where not in (SchemaState.EMPTY, SchemaState.CURRENT):
        raise HistoryError(where.sentence)
    try:
        upgrade(database_url)
    except SchemaError as error:
        raise HistoryError(str(error)) from error
    try:
        with closing(open_database(database_url)) as database, database.writing() as session:
            new = import_history(session, source, _past(workload, start_s))
            detail = {"jobs": len(workload.jobs), "new": new}
            record_command(session.connection(), "sooner history import", f"history {source}", detail, now_s)
    except ValueError as error:
        raise HistoryError(str(error)) from error
    return LoadedHistory(source, len(workload.jobs), new)


def _past(workload: Workload, start_s: float) -> Iterator[ImportedJob]:
    for row in workload.jobs:
        yield ImportedJob(row.job_id, label_of(row, start_s))


def label_of(row: WorkloadJob, start_s: float) -> EndedJob:
    """A row of a table whose second 0 was ``start_s``, as a label to learn from (``job`` is no job's number)."""
    iterations = float(row.iterations) if row.iterations is not None else None
    return EndedJob(
        job=JobId(0),
        spec=JobSpec(
            name=row.name,
            user=row.user,
            gpus=row.gpus,
            project=row.project,
            model=row.model or None,
            gpu_type=row.gpu_type or None,
            declared_iterations=row.declared_iterations,
            walltime_s=row.walltime_s,
        ),
        submitted_at_s=start_s + row.submit_time_s,
        ended_at_s=start_s + _end_s(row),
        iterations=iterations,
        service_s=row.duration_s,
        final_state=row.final_state or "succeeded",
        seconds_per_iteration=row.duration_s / iterations if iterations else None,
        gpu_type=row.gpu_type or None,
        servers_spanned=None,
    )


def _end_s(row: WorkloadJob) -> float:
    """When the job ended, seconds from the table's start; without a log, as if it had never waited."""
    return row.end_time_s if row.end_time_s is not None else row.submit_time_s + row.duration_s
