"""What predicts now, and how far it is trusted."""

from pydantic import BaseModel, Field

from policies.model.estimate import Unit
from predictor.explain import Trust
from predictor.serving import PredictorStatus
from predictor.trust import TrustRung

_WORDS = {
    TrustRung.MODEL: Trust.MODEL,
    TrustRung.GROUP: Trust.HISTORY,
    TrustRung.ATTAINED_SERVICE: Trust.ATTAINED_SERVICE,
}


class BucketDocument(BaseModel):
    """Jobs that were seen so often before: their champions, and who may rank them."""

    past_runs: str
    distribution: str = Field(description="Champion of the distribution, by which jobs are ranked.")
    point: str = Field(description="Champion of the single best guess, which people are told.")
    jobs: int = Field(
        description="Scored jobs behind that choice, at most 2,000; those of the model's own test count too."
    )
    trust: Trust = Field(
        description="The rung: model = the champions; history = the group's past runs; attained_service = no prediction."
    )
    reason: str = Field(description='Why not a better rung; "" on the first.')
    coverage_80: float | None = Field(
        description="Share of the champions' newest 80% intervals that held; null under 50."
    )
    concordance: float | None = Field(
        description="Share of pairs of the newest jobs that the champions put in the right order; null under 500 pairs."
    )


class HeadDocument(BaseModel):
    """One of the two things that are predicted."""

    unit: Unit
    known_jobs: int
    drifting: bool = Field(description="Errors have grown; a training is due.")
    recent_log_error: float = Field(description="Mean |ln(actual / predicted)| of the newest jobs.")
    buckets: list[BucketDocument]


class PredictorDocument(BaseModel):
    """What predicts new jobs now. A rung is left, and taken again, by itself."""

    model_version: str | None = Field(description="null where history alone predicts.")
    switches: int = Field(description="How often a rung of trust was left or taken again, as far as is known.")
    heads: list[HeadDocument]


def predictor_document(status: PredictorStatus) -> PredictorDocument:
    """The document of a status."""
    return PredictorDocument(
        model_version=status.model_version or None,
        switches=status.switches,
        heads=[_head(status, unit) for unit in status.buckets],
    )


def _head(status: PredictorStatus, unit: Unit) -> HeadDocument:
    buckets = [
        BucketDocument(
            past_runs=each.bucket,
            distribution=each.distribution,
            point=each.point,
            jobs=each.jobs,
            trust=_WORDS[each.rung],
            reason=each.reason,
            coverage_80=each.coverage,
            concordance=each.concordance,
        )
        for each in status.buckets[unit]
    ]
    return HeadDocument(
        unit=unit,
        known_jobs=status.known_jobs[unit],
        drifting=status.drifting[unit],
        recent_log_error=status.recent_log_error[unit],
        buckets=buckets,
    )
