"""The first schema.

Append-only: a released migration is never edited, and there is no way back (restore a backup instead).
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite counts rows by itself only in a column of exactly the type INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Every table, referenced ones first."""
    _cycles()
    _idempotency_keys()
    _jobs()
    _leases()
    _model_versions()
    _properties()
    _servers()
    _throughput()
    _training_runs()
    _attempts()
    _facts()
    _history()
    _job_events()
    _predictions()
    _progress()


def _cycles() -> None:
    op.create_table(
        "cycles",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("actions", sa.JSON(), nullable=False),
        sa.Column("refusals", sa.JSON(), nullable=False),
        sa.Column("wake_at_s", sa.Double(), nullable=True),
        sa.Column("dump", sa.JSON(), nullable=True),
        sa.Column("duration_s", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_cycles")),
    )
    op.create_index("ix_cycles_at_s", "cycles", ["at_s"], unique=False)
    op.create_index(
        "ix_cycles_dumped",
        "cycles",
        ["number"],
        unique=False,
        sqlite_where=sa.text("dump IS NOT NULL"),
        postgresql_where=sa.text("dump IS NOT NULL"),
    )


def _idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("body_sha256", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("response", sa.JSON(), nullable=True),
        sa.Column("location", sa.String(), nullable=True),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'done')", name=op.f("ck_idempotency_keys_state")),
        sa.PrimaryKeyConstraint("key", "route", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_expires_at_s", "idempotency_keys", ["expires_at_s"], unique=False)


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("submitted_at_s", sa.Double(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("unmet_dependencies", sa.Integer(), nullable=False),
        sa.Column("not_before_s", sa.Double(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("yields", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("reservation", sa.JSON(), nullable=True),
        sa.Column("estimate", sa.JSON(), nullable=True),
        sa.Column("iteration_times", sa.JSON(), nullable=True),
        sa.Column("iterations", sa.Double(), nullable=False),
        sa.Column("service_s", sa.Double(), nullable=False),
        sa.Column("anchor_s", sa.Double(), nullable=False),
        sa.Column("iterations_per_s", sa.Double(), nullable=False),
        sa.Column("progressing", sa.Boolean(), nullable=False),
        sa.Column("checkpoint_iteration", sa.Double(), nullable=False),
        sa.Column("checkpoint_service_s", sa.Double(), nullable=False),
        sa.Column("reports_iterations", sa.Boolean(), nullable=False),
        sa.Column("reports_checkpoints", sa.Boolean(), nullable=False),
        sa.Column("measured_s_per_iteration", sa.Double(), nullable=True),
        sa.Column("held_gpu_s", sa.Double(), nullable=False),
        sa.Column("wasted_gpu_s", sa.Double(), nullable=False),
        sa.Column("first_started_at_s", sa.Double(), nullable=True),
        sa.Column("finished_at_s", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("stop_cause", sa.String(), nullable=True),
        sa.Column("files_deleted_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'starting', 'running', 'preempting', 'cancelling', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint("gpus >= 1", name=op.f("ck_jobs_gpus")),
        sa.CheckConstraint("version >= 0", name=op.f("ck_jobs_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_name_id", "jobs", ["name", "id"], unique=False)
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"], unique=False)
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"], unique=False)
    op.create_index("ix_jobs_user_id", "jobs", ["user", "id"], unique=False)
    op.create_index(
        "ix_jobs_with_files",
        "jobs",
        ["finished_at_s"],
        unique=False,
        sqlite_where=sa.text("finished_at_s IS NOT NULL AND files_deleted_at_s IS NULL"),
        postgresql_where=sa.text("finished_at_s IS NOT NULL AND files_deleted_at_s IS NULL"),
    )


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )


def _properties() -> None:
    op.create_table(
        "properties",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_properties")),
    )


def _model_versions() -> None:
    op.create_table(
        "model_versions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("trained_until_s", sa.Double(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("feature_schema", sa.String(), nullable=False),
        sa.Column("libraries", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint("state IN ('candidate', 'champion', 'retired')", name=op.f("ck_model_versions_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_versions")),
    )


def _servers() -> None:
    op.create_table(
        "servers",
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("drained", sa.Boolean(), nullable=False),
        sa.Column("down", sa.Boolean(), nullable=False),
        sa.CheckConstraint("origin IN ('file', 'request')", name=op.f("ck_servers_origin")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_servers")),
        sa.UniqueConstraint("name", name=op.f("uq_servers_name")),
    )


def _throughput() -> None:
    op.create_table(
        "throughput",
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("gpus", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gpu_type", sa.String(), nullable=False),
        sa.Column("servers_spanned", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("median_s_per_iteration", sa.Double(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("updated_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "user", "project", "name", "gpus", "gpu_type", "servers_spanned", name=op.f("pk_throughput")
        ),
    )


def _training_runs() -> None:
    op.create_table(
        "training_runs",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_training_runs")),
        sqlite_autoincrement=True,
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("placement", sa.JSON(), nullable=False),
        sa.Column("gpu_ids", sa.JSON(), nullable=False),
        sa.Column("opened_at_s", sa.Double(), nullable=False),
        sa.Column("resume_iteration", sa.Double(), nullable=False),
        sa.Column("resume_service_s", sa.Double(), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=True),
        sa.Column("stop_requested_at_s", sa.Double(), nullable=True),
        sa.Column("ended_at_s", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("last_iteration", sa.Double(), nullable=True),
        sa.Column("first_progress_at_s", sa.Double(), nullable=True),
        sa.Column("first_progress_iteration", sa.Double(), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('launching', 'running', 'stopping', 'completed', 'failed', 'preempted', 'cancelled', 'lost')",
            name=op.f("ck_attempts_state"),
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_attempts_job_id_number")),
    )
    op.create_index("ix_attempts_state", "attempts", ["state"], unique=False)


def _facts() -> None:
    op.create_table(
        "facts",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("consumed_cycle", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_facts_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_facts")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_facts_unconsumed",
        "facts",
        ["id"],
        unique=False,
        sqlite_where=sa.text("consumed_cycle IS NULL"),
        postgresql_where=sa.text("consumed_cycle IS NULL"),
    )


def _history() -> None:
    op.create_table(
        "history",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("source_key", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=True),
        sa.Column("submitted_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double(), nullable=False),
        sa.Column("iterations", sa.Double(), nullable=True),
        sa.Column("service_s", sa.Double(), nullable=False),
        sa.Column("final_state", sa.String(), nullable=False),
        sa.Column("seconds_per_iteration", sa.Double(), nullable=True),
        sa.Column("gpu_type", sa.String(), nullable=True),
        sa.Column("servers_spanned", sa.Integer(), nullable=True),
        sa.CheckConstraint("(job_id IS NULL) <> (spec IS NULL)", name=op.f("ck_history_job_or_spec")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_history_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_history")),
        sa.UniqueConstraint("source", "source_key", name=op.f("uq_history_source_source_key")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_history_ended_at_s_id", "history", ["ended_at_s", "id"], unique=False)


def _job_events() -> None:
    op.create_table(
        "job_events",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("source", sa.String(), nullable=True),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=True),
        sa.Column("detail", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_events_job_id_id", "job_events", ["job_id", "id"], unique=False)


def _predictions() -> None:
    op.create_table(
        "predictions",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("made_at_s", sa.Double(), nullable=False),
        sa.Column("cycle", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("points", sa.JSON(), nullable=False),
        sa.Column("p10", sa.Double(), nullable=False),
        sa.Column("p50", sa.Double(), nullable=False),
        sa.Column("p90", sa.Double(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("model_version", sa.String(), nullable=False),
        sa.Column("seconds_per_unit", sa.Double(), nullable=True),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("feature_schema", sa.String(), nullable=False),
        sa.Column("features", sa.JSON(), nullable=False),
        sa.Column("shadows", sa.JSON(), nullable=False),
        sa.Column("actual", sa.Double(), nullable=True),
        sa.Column("scored_at_s", sa.Double(), nullable=True),
        sa.Column("log_error", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_predictions_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_predictions")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_predictions_job_id_id", "predictions", ["job_id", "id"], unique=False)


def _progress() -> None:
    op.create_table(
        "progress",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("iteration", sa.Double(), nullable=False),
        sa.Column("total_iterations", sa.Double(), nullable=True),
        sa.Column("checkpoint_iteration", sa.Double(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_progress_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_progress")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_progress_job_id_id", "progress", ["job_id", "id"], unique=False)
