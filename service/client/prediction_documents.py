"""What the API says of a prediction and why, as a client sees it: see :mod:`service.client.documents`."""

from typing import TypedDict

from service.client.documents import Prediction


class Contribution(TypedDict):
    """A feature, its value in words, and how many times longer (above 1) or shorter (below 1) it made the prediction."""

    feature: str
    words: str
    factor: float


class Contributions(TypedDict):
    """How a model came to its median before calibration: ``total`` is the product of all the others."""

    model_version: str
    history_median: float
    usual_factor: float
    top: list[Contribution]
    others_factor: float
    total: float


class SimilarJob(TypedDict):
    """A past job to compare with; ``total`` is in the prediction's unit."""

    job_id: int
    name: str
    gpus: int
    state: str
    ended_at: str
    total: float | None
    link: str


class PredictionDetails(Prediction):
    """A prediction and why it is what it is. ``trust`` is ``model``, ``history`` or ``attained_service``."""

    trust: str
    past_runs: int | None
    bucket: str | None
    level: str | None
    contributions: Contributions | None
    contributions_reason: str | None
    similar: list[SimilarJob]


class Bucket(TypedDict):
    """Jobs that were seen so often before: their champions, and who may rank them (model, history, attained_service)."""

    past_runs: str
    distribution: str
    point: str
    jobs: int
    trust: str
    reason: str
    coverage_80: float | None
    concordance: float | None


class Head(TypedDict):
    """One of the two things that are predicted."""

    unit: str
    known_jobs: int
    drifting: bool
    recent_log_error: float
    buckets: list[Bucket]


class Predictor(TypedDict):
    """What predicts new jobs now; ``model_version`` is None where history alone does."""

    model_version: str | None
    switches: int
    heads: list[Head]
