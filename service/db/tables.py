"""The schema: every table as a SQLModel class with its columns, constraints and indexes.

Instants are doubles in seconds since the Unix epoch (``*_at_s``). Enumerations are stored as their values. Values that no
query filters on are JSON documents written by :mod:`service.db.codec`. Statements use the tables at the end of this module
(``JOBS``, ``ATTEMPTS``, ...). A change here needs a new file under ``migrations/versions``; a test compares the two.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from policies.lifecycle import AttemptState, JobState
from service.domain.access import Role
from service.domain.simulations import SimulationState
from service.engine.limits import Scope

METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables. Every constraint has a name, so that a migration can change it on both databases."""

# SQLite numbers rows by itself only if the column type is exactly INTEGER.
_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_NUMBERED = {"sqlite_autoincrement": True}
"""Table option: an id is never given out twice, even after its row was deleted."""


def _one_of(column: str, values: Iterable[StrEnum]) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN ({', '.join(repr(value.value) for value in values)})", name=column)


def _partial_index(name: str, columns: str, condition: str) -> sa.Index:
    where = sa.text(condition)
    return sa.Index(name, *columns.split(), sqlite_where=where, postgresql_where=where)


def _document(*, nullable: bool = False) -> Any:
    """A JSON column; Python's None is SQL's NULL, never the JSON value ``null``."""
    return Field(default=None, sa_column=sa.Column(sa.JSON(none_as_null=True), nullable=nullable))


def _serial() -> Any:
    return Field(default=None, sa_column=sa.Column(_SERIAL, primary_key=True, autoincrement=True))


def _job(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=sa.Column(sa.Integer, sa.ForeignKey("jobs.id"), nullable=nullable))


def _seconds(**options: Any) -> Any:
    return Field(sa_type=sa.Double, **options)


def _seconds_or_null() -> Any:
    return _seconds(default=None, nullable=True)


class Base(SQLModel):
    """The base of all tables. Its ``metadata`` is separate from that of other users of SQLModel in the process."""

    metadata: ClassVar[sa.MetaData] = METADATA


class JobRow(Base, table=True):
    """One job: the spec as submitted (of an element of an array a reference to ``array_specs``), and every field of the
    engine's ``JobRecord``.

    ``name``, ``user``, ``project``, ``gpus`` and ``array_*`` repeat the spec so that filters can use an index. The engine alone
    updates a row, guarded by ``version``; the API only inserts.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        _one_of("state", JobState),
        sa.CheckConstraint("gpus >= 1", name="gpus"),
        sa.CheckConstraint("version >= 0", name="version"),
        # A page of a filtered list walks one of these indexes backwards, so it never sorts.
        sa.Index("ix_jobs_state_id", "state", "id"),
        # With the state, because users list their own failed jobs: the state is compared inside the index.
        sa.Index("ix_jobs_user_id_state", "user", "id", "state"),
        sa.Index("ix_jobs_project_id", "project", "id"),
        sa.Index("ix_jobs_name_id", "name", "id"),
        # The queue of a caller who sees some projects, without a look at the jobs that ended or that others have queued.
        _partial_index("ix_jobs_queued", "project user id", "state = 'queued'"),
        _partial_index("ix_jobs_array_id_id", "array_id id", "array_id IS NOT NULL"),
        # The ended jobs that pruning still has to visit: their logs and checkpoints may be on disk.
        _partial_index(
            "ix_jobs_with_files", "finished_at_s", "finished_at_s IS NOT NULL AND files_deleted_at_s IS NULL"
        ),
        _NUMBERED,
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
    not_before_s: float = _seconds(default=0.0)
    retries: int = 0
    yields: int = 0
    attempts: int = 0
    preemptions: int = 0
    reservation: Any = _document(nullable=True)
    estimate: Any = _document(nullable=True)
    iteration_times: Any = _document(nullable=True)
    iterations: float = _seconds(default=0.0)
    service_s: float = _seconds(default=0.0)
    anchor_s: float = _seconds(default=0.0)
    iterations_per_s: float = _seconds(default=0.0)
    progressing: bool = False
    checkpoint_iteration: float = _seconds(default=0.0)
    checkpoint_service_s: float = _seconds(default=0.0)
    reports_iterations: bool = False
    reports_checkpoints: bool = False
    measured_s_per_iteration: float | None = _seconds_or_null()
    seconds_by_span: Any = _document(nullable=True)
    reported_iterations: float | None = _seconds_or_null()
    loss_curve: Any = _document(nullable=True)
    held_gpu_s: float = _seconds(default=0.0)
    wasted_gpu_s: float = _seconds(default=0.0)
    first_started_at_s: float | None = _seconds_or_null()
    finished_at_s: float | None = _seconds_or_null()
    exit_code: int | None = None
    stop_cause: str | None = None
    files_deleted_at_s: float | None = _seconds_or_null()
    array_id: int | None = None
    array_index: int | None = None


class ArraySpecRow(Base, table=True):
    """The spec of a job array, as that of one of its elements: they differ by their index alone. ``id`` is the array's.

    The row outlives the array's first job: it is deleted with the last job or label that refers to it.
    """

    __tablename__ = "array_specs"

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    spec: Any = _document()


class AttemptRow(Base, table=True):
    """One attempt to run a job, from placement to stop; the id is ``<job>.<number>``."""

    __tablename__ = "attempts"
    __table_args__ = (
        sa.UniqueConstraint("job_id", "number"),
        _one_of("state", AttemptState),
        sa.Index("ix_attempts_state", "state"),
        # Those that overlap a period: opened in it, and opened before it but not ended by then.
        sa.Index("ix_attempts_opened_at_s_id", "opened_at_s", "id"),
        sa.Index("ix_attempts_ended_at_s_opened_at_s", "ended_at_s", "opened_at_s"),
    )

    id: str = Field(primary_key=True)
    job_id: int = _job()
    number: int
    state: str
    placement: Any = _document()
    gpu_ids: Any = _document()
    opened_at_s: float = _seconds()
    resume_iteration: float = _seconds(default=0.0)
    resume_service_s: float = _seconds(default=0.0)
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
    got_gpu_ids: Any = _document(nullable=True)


class JobEventRow(Base, table=True):
    """One change of a job's state; append-only, so ``id`` orders the events of a job."""

    __tablename__ = "job_events"
    __table_args__ = (sa.Index("ix_job_events_job_id_id", "job_id", "id"), _NUMBERED)

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


class RequestRow(Base, table=True):
    """One accepted request. The cycle that acts on it sets ``consumed_cycle`` in its own transaction.

    Cycles take requests in the order of (``turn``, ``id``), so the later parts of a large submission, which have higher turns,
    do not keep others waiting.
    """

    __tablename__ = "facts"
    __table_args__ = (
        _partial_index("ix_facts_unconsumed_turn_id", "turn id", "consumed_cycle IS NULL"),
        _partial_index("ix_facts_unconsumed_job_id", "job_id", "consumed_cycle IS NULL"),
        _NUMBERED,
    )

    id: int | None = _serial()
    kind: str
    job_id: int | None = _job(nullable=True)
    payload: Any = _document()
    created_at_s: float = _seconds()
    consumed_cycle: int | None = None
    turn: int = Field(default=0, sa_column_kwargs={"server_default": sa.text("0")})


class ServerRow(Base, table=True):
    """One server, present or past; ``position`` is its ``ServerIndex`` and is never reused.

    ``origin``: a server of the cluster file is marked down when the file no longer lists it; one added by request stays.
    """

    __tablename__ = "servers"
    __table_args__ = (sa.UniqueConstraint("name"), sa.CheckConstraint("origin IN ('file', 'request')", name="origin"))

    position: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    name: str
    spec: Any = _document()
    origin: str
    drained: bool = False
    down: bool = False
    engine_drained: bool = Field(default=False, sa_column_kwargs={"server_default": sa.false()})
    detail: str = Field(default="", sa_column_kwargs={"server_default": sa.text("''")})
    health_reason: str = Field(default="", sa_column_kwargs={"server_default": sa.text("''")})


class ServerEventRow(Base, table=True):
    """One change of a server, with its reason; append-only, so ``id`` orders the events. Deleted with cycles of its age."""

    __tablename__ = "server_events"
    __table_args__ = (
        sa.Index("ix_server_events_position_id", "position", "id"),
        sa.Index("ix_server_events_at_s", "at_s"),
        _NUMBERED,
    )

    id: int | None = _serial()
    position: int
    at_s: float = _seconds()
    kind: str
    cycle: int
    detail: str = ""


class CycleRow(Base, table=True):
    """One scheduling cycle in which something happened. ``dump`` is the policy's state, stored now and then."""

    __tablename__ = "cycles"
    __table_args__ = (
        sa.Index("ix_cycles_at_s", "at_s"),
        # A starting service looks for the newest dump; this index holds the few cycles that have one.
        _partial_index("ix_cycles_dumped", "number", "dump IS NOT NULL"),
    )

    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    at_s: float = _seconds()
    changes: Any = _document()
    actions: Any = _document()
    refusals: Any = _document()
    wake_at_s: float | None = _seconds_or_null()
    dump: Any = _document(nullable=True)
    duration_s: Any = _document()


class SharedPredictionRow(Base, table=True):
    """The numbers of a prediction that several elements of an array have in common."""

    __tablename__ = "shared_predictions"
    __table_args__ = (_NUMBERED,)

    id: int | None = _serial()
    points: Any = _document()
    features: Any = _document()
    shadows: Any = _document()


class PredictionRow(Base, table=True):
    """One prediction for a job, the features it was made from and, once the job has ended, its error.

    With ``shared_id`` the points, features and shadows are in ``shared_predictions``, and empty here: read them by
    :func:`service.db.prediction_rows.prediction_columns`.

    ``log_error`` = ln(p50 / actual): above 0 the prediction was too long. It is NULL until the prediction is scored, and for jobs
    that did no work. ``point`` is the single number that users see; NULL means p50.
    """

    __tablename__ = "predictions"
    __table_args__ = (
        sa.Index("ix_predictions_job_id_id", "job_id", "id"),
        _partial_index("ix_predictions_shared_id", "shared_id", "shared_id IS NOT NULL"),
        _NUMBERED,
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
    slowdown: Any = _document(nullable=True)
    shared_id: int | None = Field(default=None, sa_type=sa.BigInteger, nullable=True)


class HistoryRow(Base, table=True):
    """The training label of an ended job: one that ran here (``job_id``) or one that was imported (``spec``).

    A label takes over the spec of a job that is deleted; that of an element refers to ``array_specs`` (``array_id``).
    ``source_key`` names the job in its source, so importing the same history twice changes nothing.
    """

    __tablename__ = "history"
    __table_args__ = (
        sa.UniqueConstraint("source", "source_key"),
        sa.CheckConstraint("(job_id IS NULL) <> (spec IS NULL)", name="job_or_spec"),
        sa.Index("ix_history_ended_at_s_id", "ended_at_s", "id"),
        _partial_index("ix_history_array_id", "array_id", "array_id IS NOT NULL"),
        _NUMBERED,
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
    seconds_by_span: Any = _document(nullable=True)
    loss_curve: Any = _document(nullable=True)
    array_id: int | None = None


class ThroughputRow(Base, table=True):
    """The measured speed of a recurring gang on a GPU type and a number of servers. ``samples`` are its newest values."""

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
    __table_args__ = (sa.Index("ix_progress_job_id_id", "job_id", "id"), _NUMBERED)

    id: int | None = _serial()
    job_id: int = _job()
    attempt_id: str
    at_s: float = _seconds()
    iteration: float = _seconds()
    total_iterations: float | None = _seconds_or_null()
    checkpoint_iteration: float | None = _seconds_or_null()
    loss: float | None = _seconds_or_null()
    input_s: float | None = _seconds_or_null()


class IdempotencyKeyRow(Base, table=True):
    """The response that belongs to a client's key; ``state`` is ``running`` until ``status`` and ``response`` are known."""

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
    """One trained model and the path of its artifact. Promotion keeps at most one champion of a kind."""

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
    """One training run: ``outcome`` is NULL while process ``pid`` trains."""

    __tablename__ = "training_runs"
    __table_args__ = (_NUMBERED,)

    id: int | None = _serial()
    started_at_s: float = _seconds()
    ended_at_s: float | None = _seconds_or_null()
    outcome: str | None = None
    detail: str = ""
    pid: int | None = None


class SimulationRow(Base, table=True):
    """One what-if run of the service: what was asked (``request``), how far it is, and its ``report``.

    ``starts`` counts how often it was begun. ``done`` and ``total`` are NULL until its work is counted.
    """

    __tablename__ = "simulations"
    __table_args__ = (
        _one_of("state", SimulationState),
        _partial_index("ix_simulations_open", "id", "state IN ('queued', 'running')"),
        _NUMBERED,
    )

    id: int | None = _serial()
    state: str
    request: Any = _document()
    user: str | None = None
    created_at_s: float = _seconds()
    started_at_s: float | None = _seconds_or_null()
    ended_at_s: float | None = _seconds_or_null()
    starts: int
    done: int | None = Field(default=None, sa_type=sa.BigInteger, nullable=True)
    total: int | None = Field(default=None, sa_type=sa.BigInteger, nullable=True)
    eta_s: float | None = _seconds_or_null()
    error: str | None = None
    report: Any = _document(nullable=True)


class LeaseRow(Base, table=True):
    """The leader lease. ``token`` grows with every new holder and fences off the transactions of earlier holders."""

    __tablename__ = "leases"

    name: str = Field(primary_key=True)
    holder: str
    token: int = Field(sa_type=sa.BigInteger)
    expires_at_s: float = _seconds()


class PropertyRow(Base, table=True):
    """Properties of the database itself: its id, the peer secret, the webhook cursor."""

    __tablename__ = "properties"

    name: str = Field(primary_key=True)
    value: str


class UserRow(Base, table=True):
    """One user with API keys. A disabled user's jobs stay; the keys are refused."""

    __tablename__ = "users"

    name: str = Field(primary_key=True)
    created_at_s: float = _seconds()
    disabled_at_s: float | None = _seconds_or_null()


class MembershipRow(Base, table=True):
    """One member of a project: the user sees the jobs of the project."""

    __tablename__ = "memberships"
    __table_args__ = (sa.Index("ix_memberships_project_user", "project", "user"),)

    user: str = Field(sa_column=sa.Column(sa.String, sa.ForeignKey("users.name"), primary_key=True))
    project: str = Field(primary_key=True)
    added_at_s: float = _seconds()


class ApiKeyRow(Base, table=True):
    """One API key: its public id and the SHA-256 of its secret.

    ``projects`` restricts the key to some of its user's projects; NULL = all of them, and the user's jobs without a project.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        _one_of("role", Role),
        sa.Index("ix_api_keys_user", "user"),
        # Newest first.
        sa.Index("ix_api_keys_created_at_s_id", "created_at_s", "id"),
    )

    id: str = Field(primary_key=True)
    secret_sha256: str
    user: str = Field(sa_column=sa.Column(sa.String, sa.ForeignKey("users.name"), nullable=False))
    role: str
    projects: Any = _document(nullable=True)
    note: str = ""
    created_at_s: float = _seconds()
    expires_at_s: float | None = _seconds_or_null()
    revoked_at_s: float | None = _seconds_or_null()
    last_used_at_s: float | None = _seconds_or_null()


class WebSessionRow(Base, table=True):
    """One session of a browser, or a code that opens one, by the SHA-256 of its token. ``key_id`` is NULL for the local token."""

    __tablename__ = "web_sessions"
    __table_args__ = (
        sa.CheckConstraint("kind IN ('session', 'code')", name="kind"),
        sa.Index("ix_web_sessions_expires_at_s", "expires_at_s"),
    )

    token_sha256: str = Field(primary_key=True)
    kind: str
    key_id: str | None = Field(
        default=None, sa_column=sa.Column(sa.String, sa.ForeignKey("api_keys.id"), nullable=True)
    )
    created_at_s: float = _seconds()
    expires_at_s: float = _seconds()


class AuditRow(Base, table=True):
    """One audited change: who made it, when, from which address, what it changed and with which outcome.

    Append-only: a trigger refuses updates, and only retention by age deletes rows. ``user`` is NULL for the local token and for
    commands that work on the database itself; ``address`` is NULL for the latter.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        sa.Index("ix_audit_log_at_s", "at_s"),
        sa.Index("ix_audit_log_user_id", "user", "id"),
        sa.Index("ix_audit_log_target_id", "target", "id"),
        _NUMBERED,
    )

    id: int | None = _serial()
    at_s: float = _seconds()
    user: str | None = None
    role: str
    key_id: str | None = None
    address: str | None = None
    request_id: str
    action: str
    target: str
    outcome: str
    status: int
    detail: Any = _document()


class ServiceRow(Base, table=True):
    """One ``sooner serve``, by the id of its data folder. ``seen_at_s`` is its last heartbeat on the database's clock.

    ``lease_s``: seconds after the last heartbeat at which its supervisors stop their attempts. ``condemned_at_s`` is set when the
    leader has relied on that: the service counts as alive again only after it has verified that none of its attempts run.
    """

    __tablename__ = "services"

    id: str = Field(primary_key=True)
    name: str
    url: str
    version: str
    lease_s: float = _seconds()
    started_at_s: float = _seconds()
    seen_at_s: float = _seconds()
    condemned_at_s: float | None = _seconds_or_null()


class AttemptReportRow(Base, table=True):
    """A report of a service that does not lead about one of its attempts: one row per kind, for progress the newest.

    The row stays until the leader has committed the report; ``report`` is a :class:`service.engine.events.Report`.
    """

    __tablename__ = "attempt_reports"
    __table_args__ = (sa.Index("ix_attempt_reports_host", "host"),)

    attempt_id: str = Field(primary_key=True)
    kind: str = Field(primary_key=True)
    host: str
    at_s: float = _seconds()
    report: Any = _document()


class ForecastRow(Base, table=True):
    """One forecast of when a job reaches a milestone (``start``: it holds GPUs next; ``finish``: it ends), made at ``made_at_s``.

    ``scored_at_s`` is NULL until the outcome is known. ``error_s`` = p50 - actual: above 0 the forecast was too late. It stays
    NULL in a scored row where there is no outcome to compare with (the job was cancelled). ``pinball_s`` is the mean pinball loss
    of the three quantiles in seconds. ``drawn_*`` are the quantiles of the futures before calibration; NULL: as shown.
    """

    __tablename__ = "forecasts"
    __table_args__ = (
        sa.CheckConstraint("milestone IN ('start', 'finish')", name="milestone"),
        sa.Index("ix_forecasts_job_id_id", "job_id", "id"),
        sa.Index("ix_forecasts_made_at_s", "made_at_s"),
        # The forecasts that are still to be scored.
        _partial_index("ix_forecasts_unscored", "job_id", "scored_at_s IS NULL"),
        _NUMBERED,
    )

    id: int | None = _serial()
    job_id: int = _job()
    milestone: str
    made_at_s: float = _seconds()
    cycle: int
    policy: str
    model_version: str
    source: str
    samples: int
    gpus: int
    p10_s: float = _seconds()
    p50_s: float = _seconds()
    p90_s: float = _seconds()
    drawn_p10_s: float | None = _seconds_or_null()
    drawn_p50_s: float | None = _seconds_or_null()
    drawn_p90_s: float | None = _seconds_or_null()
    actual_at_s: float | None = _seconds_or_null()
    scored_at_s: float | None = _seconds_or_null()
    error_s: float | None = _seconds_or_null()
    inside: bool | None = Field(default=None)
    pinball_s: float | None = _seconds_or_null()


class LimitRow(Base, table=True):
    """The limits of one owner. The API writes them together with the request to the engine; an empty limit has no row.

    ``name`` is empty exactly for the whole queue. ``gpus_running_max``: GPUs held at a time; ``jobs_queued_max``: unfinished
    jobs; NULL = unlimited. ``paused``: nothing starts, with ``pause_reason`` shown to users.
    """

    __tablename__ = "queue_limits"
    __table_args__ = (
        _one_of("scope", (Scope.QUEUE, Scope.USER, Scope.PROJECT)),
        sa.CheckConstraint("(scope = 'queue') = (name = '')", name="name"),
        sa.CheckConstraint("gpus_running_max >= 0", name="gpus_running_max"),
        sa.CheckConstraint("jobs_queued_max >= 0", name="jobs_queued_max"),
    )

    scope: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    gpus_running_max: int | None = None
    jobs_queued_max: int | None = None
    paused: bool = False
    pause_reason: str = ""
    changed_at_s: float = _seconds()


class ReservationRow(Base, table=True):
    """One reservation of servers, written together with the request to the engine; ``id`` is the request's number.

    ``window`` is the engine's document of it; the two times repeat it so that past reservations need not be decoded.
    """

    __tablename__ = "reservations"
    __table_args__ = (
        sa.CheckConstraint("ends_at_s >= starts_at_s", name="times"),
        sa.Index("ix_reservations_ends_at_s", "ends_at_s"),
    )

    id: int = Field(sa_column=sa.Column(_SERIAL, primary_key=True, autoincrement=False))
    window: Any = _document()
    starts_at_s: float = _seconds()
    ends_at_s: float = _seconds()
    reason: str = ""
    created_at_s: float = _seconds()
    cancelled_at_s: float | None = _seconds_or_null()


class UsageRow(Base, table=True):
    """The usage of one user in one project on one UTC day (days since 1970-01-01), summed over ended attempts and jobs.

    It is written in the transaction that ends them, so it agrees with the attempts, and reading it costs the same however many
    jobs there were.
    """

    __tablename__ = "usage"

    day: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    user: str = Field(primary_key=True)
    project: str = Field(primary_key=True)
    held_gpu_s: float = _seconds()
    useful_gpu_s: float = _seconds()
    attempts: int = Field(sa_type=sa.BigInteger)
    preemptions: int = Field(sa_type=sa.BigInteger)
    jobs: int = Field(sa_type=sa.BigInteger)


class WebhookRow(Base, table=True):
    """One webhook. ``owner`` added it (empty: the local token). ``user`` and ``project`` restrict whose jobs it reports; NULL =
    any. Only rows of ``job_events`` after ``after_event`` are delivered. The secret signs deliveries, so it is stored as it is.
    """

    __tablename__ = "webhooks"
    __table_args__ = (_NUMBERED,)

    id: int | None = _serial()
    url: str
    events: Any = _document()
    owner: str
    user: str | None = None
    project: str | None = None
    secret: str
    after_event: int = Field(sa_type=sa.BigInteger)
    created_at_s: float = _seconds()


class DeliveryRow(Base, table=True):
    """One delivery to one webhook: the outbox. ``event_id`` is the row of ``job_events``; NULL for a test delivery.

    ``status`` and ``error`` belong to the newest attempt: the HTTP status of the response, or why there was none.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        sa.UniqueConstraint("webhook_id", "event_id"),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name="state"),
        sa.Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
        _partial_index("ix_webhook_deliveries_pending", "webhook_id next_at_s", "state = 'pending'"),
        sa.Index("ix_webhook_deliveries_ended_at_s", "ended_at_s"),
        _NUMBERED,
    )

    id: int | None = _serial()
    webhook_id: int = Field(sa_column=sa.Column(sa.BigInteger, sa.ForeignKey("webhooks.id"), nullable=False))
    event_id: int | None = Field(default=None, sa_type=sa.BigInteger, nullable=True)
    event: str
    body: Any = _document()
    state: str
    attempts: int
    next_at_s: float = _seconds()
    created_at_s: float = _seconds()
    ended_at_s: float | None = _seconds_or_null()
    status: int | None = None
    error: str


def table(row: type[Base]) -> sa.Table:
    """The Core table of a row class."""
    return METADATA.tables[str(row.__tablename__)]


JOBS = table(JobRow)
ARRAY_SPECS = table(ArraySpecRow)
ATTEMPTS = table(AttemptRow)
EVENTS = table(JobEventRow)
REQUESTS = table(RequestRow)
SERVERS = table(ServerRow)
SERVER_EVENTS = table(ServerEventRow)
CYCLES = table(CycleRow)
PREDICTIONS = table(PredictionRow)
SHARED_PREDICTIONS = table(SharedPredictionRow)
HISTORY = table(HistoryRow)
THROUGHPUT = table(ThroughputRow)
PROGRESS = table(ProgressRow)
IDEMPOTENCY_KEYS = table(IdempotencyKeyRow)
MODELS = table(ModelVersionRow)
TRAINING_RUNS = table(TrainingRunRow)
SIMULATIONS = table(SimulationRow)
LEASES = table(LeaseRow)
PROPERTIES = table(PropertyRow)
USERS = table(UserRow)
MEMBERSHIPS = table(MembershipRow)
API_KEYS = table(ApiKeyRow)
WEB_SESSIONS = table(WebSessionRow)
AUDIT_LOG = table(AuditRow)
SERVICES = table(ServiceRow)
REPORTS = table(AttemptReportRow)
FORECASTS = table(ForecastRow)
LIMITS = table(LimitRow)
RESERVATIONS = table(ReservationRow)
USAGE = table(UsageRow)
WEBHOOKS = table(WebhookRow)
DELIVERIES = table(DeliveryRow)

APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log"
        " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''the audit log is append-only''; END'",
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log FOR EACH ROW EXECUTE FUNCTION refuse_change()",
    ),
}
"""The statements, by dialect, that make the database refuse updates of the audit log."""

for _dialect, _statements in APPEND_ONLY.items():
    for _statement in _statements:
        sa.event.listen(AUDIT_LOG, "after_create", sa.DDL(_statement).execute_if(dialect=_dialect))  # type: ignore[no-untyped-call]


def columns(of: sa.Table, names: str) -> tuple[sa.Column[Any], ...]:
    """The columns of these names, with spaces between them. Raises KeyError for one that the table does not have."""
    return tuple(of.c[name] for name in names.split())
