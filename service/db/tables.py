"""The tables, as SQLModel classes: what is durable, and under which names, indices and constraints.

Every instant is a double of seconds since the Unix epoch (``*_at_s``), because time is float seconds inside and only the
borders speak of dates. Enumerations are stored as their words. Values that no query looks into are JSON documents made by
:mod:`service.db.codec`. A change here needs a new file under ``migrations/versions``; a test compares the two.
"""

from typing import Any, ClassVar

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from policies.lifecycle import AttemptState, JobState

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Every constraint has a name, so that a migration can change it on any database."""

# SQLite counts rows by itself only in a column of exactly the type INTEGER.
_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_WITH_FILES = sa.text("finished_at_s IS NOT NULL AND files_deleted_at_s IS NULL")
_UNCONSUMED = sa.text("consumed_cycle IS NULL")
_DUMPED = sa.text("dump IS NOT NULL")
_IN_ARRAY = sa.text("array_id IS NOT NULL")


def _words(column: str, values: "type[JobState | AttemptState]") -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


def _document(*, nullable: bool = False) -> Any:
    """A JSON column; Python's None is SQL's NULL, never the JSON word ``null``."""
    return Field(default=None, sa_column=sa.Column(sa.JSON(none_as_null=True), nullable=nullable))


def _serial() -> Any:
    return Field(default=None, sa_column=sa.Column(_SERIAL, primary_key=True, autoincrement=True))


def _job(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=sa.Column(sa.Integer, sa.ForeignKey("jobs.id"), nullable=nullable))


def _seconds() -> Any:
    return Field(sa_type=sa.Double)


def _seconds_or_null() -> Any:
    return Field(default=None, sa_type=sa.Double, nullable=True)


class Base(SQLModel):
    """Carries the one ``metadata`` of this program, apart from other users of SQLModel in the process."""

    metadata: ClassVar[sa.MetaData] = sa.MetaData(naming_convention=NAMING)


class JobRow(Base, table=True):
    """One job: what was asked, frozen, and every field of the engine's ``JobRecord``.

    ``name``, ``user``, ``project``, ``gpus`` and ``array_*`` repeat the spec so that a filter has an index to use. The
    engine alone changes a row, guarded by ``version``; the HTTP side only inserts.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        sa.CheckConstraint(_words("state", JobState), name="state"),
        sa.CheckConstraint("gpus >= 1", name="gpus"),
        sa.CheckConstraint("version >= 0", name="version"),
        # A page of a filtered list walks one of these backwards: no sort, whatever the number of jobs.
        sa.Index("ix_jobs_state_id", "state", "id"),
        # With the state, because people ask for their own failed jobs: it is compared without a look at the rows.
        sa.Index("ix_jobs_user_id_state", "user", "id", "state"),
        sa.Index("ix_jobs_project_id", "project", "id"),
        sa.Index("ix_jobs_name_id", "name", "id"),
        sa.Index("ix_jobs_array_id_id", "array_id", "id", sqlite_where=_IN_ARRAY, postgresql_where=_IN_ARRAY),
        # What pruning has still to look at: ended jobs whose logs and checkpoints may be on the disk.
        sa.Index("ix_jobs_with_files", "finished_at_s", sqlite_where=_WITH_FILES, postgresql_where=_WITH_FILES),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    name: str
    user: str
    project: str
    gpus: int
    spec: Any = _document()
    submitted_at_s: float = _seconds()
    state: str
    reason: str
    version: int = 0
    priority: int = 0
    held: bool = False
    unmet_dependencies: int = 0
    not_before_s: float = Field(default=0.0, sa_type=sa.Double)
    retries: int = 0
    yields: int = 0
    attempts: int = 0
    preemptions: int = 0
    reservation: Any = _document(nullable=True)
    estimate: Any = _document(nullable=True)
    iteration_times: Any = _document(nullable=True)
    iterations: float = Field(default=0.0, sa_type=sa.Double)
    service_s: float = Field(default=0.0, sa_type=sa.Double)
    anchor_s: float = Field(default=0.0, sa_type=sa.Double)
    iterations_per_s: float = Field(default=0.0, sa_type=sa.Double)
    progressing: bool = False
    checkpoint_iteration: float = Field(default=0.0, sa_type=sa.Double)
    checkpoint_service_s: float = Field(default=0.0, sa_type=sa.Double)
    reports_iterations: bool = False
    reports_checkpoints: bool = False
    measured_s_per_iteration: float | None = _seconds_or_null()
    reported_iterations: float | None = _seconds_or_null()
    held_gpu_s: float = Field(default=0.0, sa_type=sa.Double)
    wasted_gpu_s: float = Field(default=0.0, sa_type=sa.Double)
    first_started_at_s: float | None = _seconds_or_null()
    finished_at_s: float | None = _seconds_or_null()
    exit_code: int | None = None
    stop_cause: str | None = None
    files_deleted_at_s: float | None = _seconds_or_null()
    array_id: int | None = None
    array_index: int | None = None


class AttemptRow(Base, table=True):
    """One placement-to-stop life of a job; the id is ``<job>.<number>``."""

    __tablename__ = "attempts"
    __table_args__ = (
        sa.UniqueConstraint("job_id", "number"),
        sa.CheckConstraint(_words("state", AttemptState), name="state"),
        sa.Index("ix_attempts_state", "state"),
    )

    id: str = Field(primary_key=True)
    job_id: int = _job()
    number: int
    state: str
    placement: Any = _document()
    gpu_ids: Any = _document()
    opened_at_s: float = _seconds()
    resume_iteration: float = Field(default=0.0, sa_type=sa.Double)
    resume_service_s: float = Field(default=0.0, sa_type=sa.Double)
    started_at_s: float | None = _seconds_or_null()
    stop_requested_at_s: float | None = _seconds_or_null()
    ended_at_s: float | None = _seconds_or_null()
    exit_code: int | None = None
    reason: str | None = None
    last_iteration: float | None = _seconds_or_null()
    first_progress_at_s: float | None = _seconds_or_null()
    first_progress_iteration: float | None = _seconds_or_null()
    fencing_token: int = Field(default=0, sa_type=sa.BigInteger)
    host: str = Field(default="", sa_column_kwargs={"server_default": sa.text("''")})


class JobEventRow(Base, table=True):
    """One change of a job's state; append-only, so ``id`` orders a job's story."""

    __tablename__ = "job_events"
    __table_args__ = (sa.Index("ix_job_events_job_id_id", "job_id", "id"), {"sqlite_autoincrement": True})

    id: int | None = _serial()
    job_id: int = _job()
    at_s: float = _seconds()
    source: str | None = None
    target: str
    cause: str
    reason: str
    cycle: int
    attempt_id: str | None = None
    detail: str = ""


class FactRow(Base, table=True):
    """One accepted request. ``consumed_cycle`` is the mark that the cycle which acted on it sets in its own transaction."""

    __tablename__ = "facts"
    __table_args__ = (
        sa.Index("ix_facts_unconsumed", "id", sqlite_where=_UNCONSUMED, postgresql_where=_UNCONSUMED),
        {"sqlite_autoincrement": True},
    )

    id: int | None = _serial()
    kind: str
    job_id: int | None = _job(nullable=True)
    payload: Any = _document()
    created_at_s: float = _seconds()
    consumed_cycle: int | None = None


class ServerRow(Base, table=True):
    """One server that ever was; ``position`` is its ``ServerIndex``, never reused.

    ``origin`` tells a server of the cluster file (gone with it) from one that was added by request (stays).
    """

    __tablename__ = "servers"
    __table_args__ = (sa.UniqueConstraint("name"), sa.CheckConstraint("origin IN ('file', 'request')", name="origin"))

    position: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    name: str
    spec: Any = _document()
    origin: str
    drained: bool = False
    down: bool = False


class CycleRow(Base, table=True):
    """One pass of the loop in which something happened. ``dump`` is the policy's residue, given now and then."""

    __tablename__ = "cycles"
    __table_args__ = (
        sa.Index("ix_cycles_at_s", "at_s"),
        # The start looks for the newest dump; this index holds the few cycles that have one.
        sa.Index("ix_cycles_dumped", "number", sqlite_where=_DUMPED, postgresql_where=_DUMPED),
    )

    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    at_s: float = _seconds()
    changes: Any = _document()
    actions: Any = _document()
    refusals: Any = _document()
    wake_at_s: float | None = _seconds_or_null()
    dump: Any = _document(nullable=True)
    duration_s: Any = _document()


class PredictionRow(Base, table=True):
    """What was predicted for a job, from what, and, once the job ended, how wrong it was.

    ``log_error`` = ln(p50 / actual): above 0 it was predicted too long. NULL while unscored, and for jobs that did no work.
    ``point`` is the single number that people are told; NULL where it is p50.
    """

    __tablename__ = "predictions"
    __table_args__ = (
        sa.Index("ix_predictions_job_id_id", "job_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = _serial()
    job_id: int = _job()
    made_at_s: float = _seconds()
    cycle: int
    unit: str
    points: Any = _document()
    p10: float = _seconds()
    p50: float = _seconds()
    p90: float = _seconds()
    source: str
    model_version: str
    seconds_per_unit: float | None = _seconds_or_null()
    trusted: bool = True
    feature_schema: str = ""
    features: Any = _document()
    shadows: Any = _document()
    actual: float | None = _seconds_or_null()
    scored_at_s: float | None = _seconds_or_null()
    log_error: float | None = _seconds_or_null()
    point: float | None = _seconds_or_null()


class HistoryRow(Base, table=True):
    """The label of an ended job: one of ours (``job_id``, its spec is in ``jobs``) or an imported one (``spec``).

    ``source_key`` names the job in its source, so loading the same past twice changes nothing.
    """

    __tablename__ = "history"
    __table_args__ = (
        sa.UniqueConstraint("source", "source_key"),
        sa.CheckConstraint("(job_id IS NULL) <> (spec IS NULL)", name="job_or_spec"),
        sa.Index("ix_history_ended_at_s_id", "ended_at_s", "id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = _serial()
    source: str
    source_key: str
    job_id: int | None = _job(nullable=True)
    spec: Any = _document(nullable=True)
    submitted_at_s: float = _seconds()
    ended_at_s: float = _seconds()
    iterations: float | None = _seconds_or_null()
    service_s: float = _seconds()
    final_state: str
    seconds_per_iteration: float | None = _seconds_or_null()
    gpu_type: str | None = None
    servers_spanned: int | None = None
    reported_iterations: float | None = _seconds_or_null()


class ThroughputRow(Base, table=True):
    """The learnt speed of a recurring gang on a GPU type over so many servers. ``samples`` are its newest values."""

    __tablename__ = "throughput"

    user: str = Field(primary_key=True)
    project: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    gpus: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    gpu_type: str = Field(primary_key=True)
    servers_spanned: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    samples: Any = _document()
    median_s_per_iteration: float = _seconds()
    count: int
    updated_at_s: float = _seconds()


class ProgressRow(Base, table=True):
    """One progress line of a training program, thinned out with age."""

    __tablename__ = "progress"
    __table_args__ = (sa.Index("ix_progress_job_id_id", "job_id", "id"), {"sqlite_autoincrement": True})

    id: int | None = _serial()
    job_id: int = _job()
    attempt_id: str
    at_s: float = _seconds()
    iteration: float = _seconds()
    total_iterations: float | None = _seconds_or_null()
    checkpoint_iteration: float | None = _seconds_or_null()
    loss: float | None = _seconds_or_null()


class IdempotencyKeyRow(Base, table=True):
    """The answer that belongs to a client's key; ``state`` is ``running`` until ``status`` and ``response`` are known."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (
        sa.CheckConstraint("state IN ('running', 'done')", name="state"),
        sa.Index("ix_idempotency_keys_expires_at_s", "expires_at_s"),
    )

    key: str = Field(primary_key=True)
    route: str = Field(primary_key=True)
    body_sha256: str
    state: str
    status: int | None = None
    response: Any = _document(nullable=True)
    location: str | None = None
    created_at_s: float = _seconds()
    expires_at_s: float = _seconds()


class ModelVersionRow(Base, table=True):
    """One trained model and where its artifact is; at most one champion of a kind, kept by whoever promotes."""

    __tablename__ = "model_versions"
    __table_args__ = (sa.CheckConstraint("state IN ('candidate', 'champion', 'retired')", name="state"),)

    id: str = Field(primary_key=True)
    kind: str
    state: str
    trained_until_s: float = _seconds()
    rows: int
    feature_schema: str
    libraries: Any = _document()
    metrics: Any = _document()
    sha256: str
    path: str
    created_at_s: float = _seconds()


class TrainingRunRow(Base, table=True):
    """One retraining: ``outcome`` is NULL while process ``pid`` is at work."""

    __tablename__ = "training_runs"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: int | None = _serial()
    started_at_s: float = _seconds()
    ended_at_s: float | None = _seconds_or_null()
    outcome: str | None = None
    detail: str = ""
    pid: int | None = None


class LeaseRow(Base, table=True):
    """Who leads. ``token`` grows with every new holder and fences off the transactions of earlier ones."""

    __tablename__ = "leases"

    name: str = Field(primary_key=True)
    holder: str
    token: int = Field(sa_type=sa.BigInteger)
    expires_at_s: float = _seconds()


class PropertyRow(Base, table=True):
    """A fact about the database itself: its identity."""

    __tablename__ = "properties"

    name: str = Field(primary_key=True)
    value: str


def table(row: type[Base]) -> sa.Table:
    """The table of a row class, for statements that touch many rows at once."""
    return Base.metadata.tables[str(row.__tablename__)]


def columns(of: sa.Table, names: str) -> tuple[sa.Column[Any], ...]:
    """The columns of these names, with spaces between them. Raises KeyError for one that the table does not have."""
    return tuple(of.c[name] for name in names.split())
