"""Why a job is where it is, and what the shadow policy thinks of that."""

from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import Row

from policies.lifecycle import JobState
from policies.model.reasons import Explanation, Reason
from service.shadow.live import JobOpinion, Want


class ShadowOpinionDocument(BaseModel):
    """What the shadow policy thinks of a job."""

    policy: str
    wants: Want | None = Field(
        description="start: it waits, and would start now. wait: it runs, and would not have been started. "
        "stop: it runs, and would be stopped now. null where it agrees."
    )
    sentence: str


class ExplanationDocument(BaseModel):
    """Why a job is where it is. The numbers are null for a job that the loop does not hold."""

    job_id: int
    state: JobState
    reason: Reason
    sentence: str
    gpus_needed: int
    gpus_free: int | None
    servers_with_free_gpus: int | None
    servers_wanted: int | None
    jobs_ahead: int | None
    rank: float | None
    waiting_for: list[int]
    numbers: dict[str, float]
    shadow: ShadowOpinionDocument | None = Field(description="null without a shadow policy that watches.")


def explanation_document(
    job: Row[Any], explanation: Explanation | None, opinion: JobOpinion | None
) -> ExplanationDocument:
    """The loop's explanation; without one, what the job's row says. ``opinion`` is the shadow policy's."""
    shadow = None
    if opinion is not None:
        shadow = ShadowOpinionDocument(policy=opinion.policy, wants=opinion.wants, sentence=opinion.sentence)
    if explanation is None:
        reason = Reason(job.reason)
        return ExplanationDocument(
            job_id=job.id,
            state=JobState(job.state),
            reason=reason,
            sentence=reason.sentence,
            gpus_needed=job.gpus,
            gpus_free=None,
            servers_with_free_gpus=None,
            servers_wanted=None,
            jobs_ahead=None,
            rank=None,
            waiting_for=[],
            numbers={},
            shadow=shadow,
        )
    return ExplanationDocument(
        job_id=job.id,
        state=JobState(job.state),
        reason=explanation.reason,
        sentence=explanation.sentence,
        gpus_needed=explanation.gpus_needed,
        gpus_free=explanation.gpus_free,
        servers_with_free_gpus=explanation.servers_with_free_gpus,
        servers_wanted=explanation.servers_wanted,
        jobs_ahead=explanation.jobs_ahead,
        rank=explanation.rank,
        waiting_for=[int(job_id) for job_id in explanation.waiting_for],
        numbers=explanation.numbers,
        shadow=shadow,
    )
