"""A job as it was submitted, with what this caller may know of its environment."""

from typing import Literal

from pydantic import BaseModel, Field

from policies.model.job import JobSpec
from service.domain.access import Identity


class SpecDocument(BaseModel):
    """A job as it was submitted, but for its graph."""

    job_id: int
    name: str
    user: str | None
    project: str | None
    command: list[str]
    env: dict[str, str | None] = Field(
        description="Values are null where they are secret, or not for the caller: they are the job's user's, and admins'."
    )
    secret_env: list[str]
    working_dir: str | None
    gpus: int
    gpu_type: str | None
    model: str | None
    batch_size: int | None
    declared_iterations: int | None
    walltime_s: float | None
    priority: int = Field(description="As submitted; the job itself says what it is now.")
    checkpoint_period_s: float | None
    max_retries: int
    after: list[int] = Field(description="Jobs that had to succeed first.")
    launch: Literal["server", "gpu"]
    labels: dict[str, str]
    recurrence_key: str | None


def spec_document(job_id: int, spec: JobSpec, caller: Identity) -> SpecDocument:
    """What the caller may know of it."""
    return SpecDocument(
        job_id=job_id,
        name=spec.name,
        user=spec.user or None,
        project=spec.project or None,
        command=list(spec.command),
        env=shown_environment(spec, caller),
        secret_env=list(spec.secret_env),
        working_dir=spec.working_dir,
        gpus=spec.gpus,
        gpu_type=spec.gpu_type,
        model=spec.model,
        batch_size=spec.batch_size,
        declared_iterations=spec.declared_iterations,
        walltime_s=spec.walltime_s,
        priority=spec.priority,
        checkpoint_period_s=spec.checkpoint_period_s,
        max_retries=spec.max_retries,
        after=[int(job) for job in spec.after],
        launch=spec.launch.value,
        labels=dict(spec.labels),
        recurrence_key=spec.recurrence_key,
    )


def shown_environment(spec: JobSpec, caller: Identity) -> dict[str, str | None]:
    """The job's own environment: every name, and the values that the caller may read."""
    hidden = frozenset(spec.secret_env if caller.reads_environment(spec.user) else spec.env)
    return {name: None if name in hidden else value for name, value in spec.env.items()}
