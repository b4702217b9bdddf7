"""What the API answers: the shapes of its documents, and how rows become them.

Times are ISO 8601 in UTC and end in ``_at``; durations are seconds and end in ``_s``. Keys are only ever added.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import Row

from policies.lifecycle import AttemptState, Cause, JobState
from policies.model.estimate import Unit
from policies.model.placement import Placement
from policies.model.reasons import Reason
from service.db.reads import JobSummary
from service.domain.forecast_scores import Milestone

ETA_REASON = "No forecast is on record yet. Ask for one: 'sooner forecast', or GET /v1/jobs/{id}/forecast."

LATEST_S = 253_402_128_000.0
"""9999-12-30: whatever comes later is told as this. ISO 8601 has four digits for a year, and every time zone must fit."""


def instant(at_s: float) -> datetime:
    """Seconds since the Unix epoch as a time in UTC."""
    return datetime.fromtimestamp(at_s, UTC)


def instant_or_none(at_s: float | None) -> datetime | None:
    """The same, where it may not have happened."""
    return None if at_s is None else instant(at_s)


class PredictionDocument(BaseModel):
    """A prediction of a job's total: 10 %, 50 % and 90 % points, in ``unit``."""

    id: int
    job_id: int
    p10: float
    p50: float
    p90: float
    point: float = Field(description="The single best guess; it may come from another champion than the distribution.")
    unit: Unit
    source: str = Field(description="Where it comes from, in words.")
    model_version: str | None = Field(description="null for a rule without a model.")
    seconds_per_unit: float | None
    made_at: datetime
    actual: float | None = Field(description="The true total, once the job has ended.")
    scored_at: datetime | None
    log_error: float | None = Field(description="ln(p50 / actual): above 0 = predicted too long.")


class ToldDocument(BaseModel):
    """A forecast on record: when the job was expected to reach a milestone, and, once it is settled, how right that was."""

    id: int
    job_id: int
    milestone: Milestone
    made_at: datetime
    p10: datetime
    p50: datetime
    p90: datetime
    samples: int = Field(description="Sampled futures behind it.")
    source: str = Field(description="Where the job's possible totals came from, in words.")
    policy: str = Field(description="The policy that was run into the future.")
    model_version: str | None = Field(
        description="The model that had predicted the job; null for a rule without a model."
    )
    cycle: int = Field(description="The newest cycle that it knew.")
    actual_at: datetime | None = Field(
        description="When it came to pass; null before, and for a job that was cancelled."
    )
    scored_at: datetime | None
    error_s: float | None = Field(description="p50 less actual_at: above 0 = told too late.")
    inside: bool | None = Field(description="Whether p10 <= actual_at <= p90.")
    pinball_s: float | None = Field(description="Mean pinball loss of the three quantiles, seconds.")


class JobLinks(BaseModel):
    """Where the rest of a job is."""

    self: str
    explanation: str
    attempts: str
    events: str
    logs: str
    progress: str
    prediction: str
    forecasts: str


class JobDocument(BaseModel):
    """A job."""

    id: int
    name: str
    user: str | None
    project: str | None
    state: JobState
    reason: Reason
    reason_sentence: str
    gpus: int
    priority: int
    held: bool
    submitted_at: datetime
    started_at: datetime | None = Field(description="Of its first attempt.")
    finished_at: datetime | None
    attempts: int
    preemptions: int
    iterations_done: float | None = Field(description="null until the program has reported progress.")
    prediction: PredictionDocument | None
    forecasts: list[ToldDocument] = Field(description="The newest on record: of its next start and of its end.")
    eta: datetime | None = Field(
        description="p50 of its end in 'forecasts', as of their made_at; null once it has ended."
    )
    eta_reason: str | None = Field(description="Why there is no ETA.")
    servers: list[str] = Field(description="Where it holds GPUs now.")
    exit_code: int | None
    array_id: int | None = Field(description="The job array that it is an element of: the id of the array's first job.")
    array_index: int | None
    links: JobLinks


class JobsDocument(BaseModel):
    """The jobs of one submission, in its order."""

    jobs: list[JobDocument]


class ShareDocument(BaseModel):
    """What an attempt holds on one server."""

    server: str
    gpus: int
    gpu_ids: list[int]


class AttemptDocument(BaseModel):
    """One placement-to-stop life of a job."""

    id: str
    job_id: int
    number: int
    state: AttemptState
    reason: Reason | None
    reason_sentence: str | None
    placement: list[ShareDocument]
    opened_at: datetime
    started_at: datetime | None
    stop_requested_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    resume_iteration: float
    last_iteration: float | None


class EventDocument(BaseModel):
    """One line of a job's story."""

    id: int
    at: datetime
    source: JobState | None
    target: JobState
    cause: Cause
    reason: Reason
    reason_sentence: str
    cycle: int
    attempt_id: str | None
    detail: str


class ProgressDocument(BaseModel):
    """One progress report."""

    id: int
    at: datetime
    attempt_id: str
    iteration: float
    total_iterations: float | None
    checkpoint_iteration: float | None
    loss: float | None


class AcceptedDocument(BaseModel):
    """A request that the next cycle acts on."""

    accepted: str
    job_id: int | None = None
    server: str | None = None


class ArrayDocument(BaseModel):
    """A job array: how many of its elements are in which state."""

    array_id: int
    jobs: int
    states: dict[JobState, int] = Field(description="Elements by state; states without an element are left out.")


class ArrayAcceptedDocument(BaseModel):
    """A request about the elements of an array that had not ended, ``jobs`` of them; the next cycle acts on it."""

    accepted: str
    array_id: int
    jobs: int


def prediction_document(row: Row[Any]) -> PredictionDocument:
    """A row of ``predictions``."""
    return PredictionDocument(
        id=row.id,
        job_id=row.job_id,
        p10=row.p10,
        p50=row.p50,
        p90=row.p90,
        point=row.p50 if row.point is None else row.point,
        unit=Unit(row.unit),
        source=row.source,
        model_version=row.model_version or None,
        seconds_per_unit=row.seconds_per_unit,
        made_at=instant(row.made_at_s),
        actual=row.actual,
        scored_at=instant_or_none(row.scored_at_s),
        log_error=row.log_error,
    )


def told_document(row: Row[Any]) -> ToldDocument:
    """A row of ``forecasts``."""
    p10, p50, p90 = (instant(min(at_s, LATEST_S)) for at_s in (row.p10_s, row.p50_s, row.p90_s))
    return ToldDocument(
        id=row.id,
        job_id=row.job_id,
        milestone=Milestone(row.milestone),
        made_at=instant(row.made_at_s),
        p10=p10,
        p50=p50,
        p90=p90,
        samples=row.samples,
        source=row.source,
        policy=row.policy,
        model_version=row.model_version or None,
        cycle=row.cycle,
        actual_at=instant_or_none(row.actual_at_s),
        scored_at=instant_or_none(row.scored_at_s),
        error_s=row.error_s,
        inside=row.inside,
        pinball_s=row.pinball_s,
    )


def job_document(summary: JobSummary) -> JobDocument:
    """A row of ``jobs`` with its prediction and servers. Says nothing that depends on the time of asking."""
    row = summary.job
    here = f"/v1/jobs/{row.id}"
    reason = Reason(row.reason)
    ended = row.finished_at_s is not None
    finish = None if ended else summary.forecasts.get(Milestone.FINISH)
    return JobDocument(
        id=row.id,
        name=row.name,
        user=row.user or None,
        project=row.project or None,
        state=JobState(row.state),
        reason=reason,
        reason_sentence=reason.sentence,
        gpus=row.gpus,
        priority=row.priority,
        held=row.held,
        submitted_at=instant(row.submitted_at_s),
        started_at=instant_or_none(row.first_started_at_s),
        finished_at=instant_or_none(row.finished_at_s),
        attempts=row.attempts,
        preemptions=row.preemptions,
        iterations_done=row.iterations if row.reports_iterations else None,
        prediction=prediction_document(summary.prediction) if summary.prediction is not None else None,
        forecasts=[told_document(summary.forecasts[each]) for each in Milestone if each in summary.forecasts],
        eta=None if finish is None else instant(min(finish.p50_s, LATEST_S)),
        eta_reason=None if ended or finish is not None else ETA_REASON,
        servers=list(summary.servers),
        exit_code=row.exit_code,
        array_id=row.array_id,
        array_index=row.array_index,
        links=JobLinks(
            self=here,
            explanation=f"{here}/explanation",
            attempts=f"{here}/attempts",
            events=f"{here}/events",
            logs=f"{here}/logs",
            progress=f"{here}/progress",
            prediction=f"{here}/prediction",
            forecasts=f"{here}/forecasts",
        ),
    )


def attempt_document(row: Row[Any], placement: Placement, server_names: Mapping[int, str]) -> AttemptDocument:
    """A row of ``attempts``, with the names of its servers by position."""
    reason = Reason(row.reason) if row.reason is not None else None
    return AttemptDocument(
        id=row.id,
        job_id=row.job_id,
        number=row.number,
        state=AttemptState(row.state),
        reason=reason,
        reason_sentence=reason.sentence if reason is not None else None,
        placement=[
            ShareDocument(server=server_names[share.server], gpus=share.gpus, gpu_ids=ids)
            for share, ids in zip(placement.shares, row.gpu_ids, strict=True)
        ],
        opened_at=instant(row.opened_at_s),
        started_at=instant_or_none(row.started_at_s),
        stop_requested_at=instant_or_none(row.stop_requested_at_s),
        ended_at=instant_or_none(row.ended_at_s),
        exit_code=row.exit_code,
        resume_iteration=row.resume_iteration,
        last_iteration=row.last_iteration,
    )


def event_document(row: Row[Any]) -> EventDocument:
    """A row of ``job_events``."""
    reason = Reason(row.reason)
    return EventDocument(
        id=row.id,
        at=instant(row.at_s),
        source=JobState(row.source) if row.source is not None else None,
        target=JobState(row.target),
        cause=Cause(row.cause),
        reason=reason,
        reason_sentence=reason.sentence,
        cycle=row.cycle,
        attempt_id=row.attempt_id,
        detail=row.detail,
    )


def progress_document(row: Row[Any]) -> ProgressDocument:
    """A row of ``progress``."""
    return ProgressDocument(
        id=row.id,
        at=instant(row.at_s),
        attempt_id=row.attempt_id,
        iteration=row.iteration,
        total_iterations=row.total_iterations,
        checkpoint_iteration=row.checkpoint_iteration,
        loss=row.loss,
    )


def etag(document: BaseModel) -> str:
    """A strong validator: equal documents have equal tags, and no other ones (up to SHA-256)."""
    return f'"{hashlib.sha256(document.model_dump_json().encode()).hexdigest()[:32]}"'


def etag_matches(header: str, tag: str) -> bool:
    """Whether a list of tags (``If-Match``, ``If-None-Match``) names this one; ``*`` names all."""
    given = [entry.strip().removeprefix("W/") for entry in header.split(",")]
    return tag in given or "*" in given
