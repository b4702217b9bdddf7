"""Limits of requests and jobs."""

from pydantic import BaseModel, Field

from service.config.kinds import MIB, between


class Requests(BaseModel):
    """What one request, and what all waiting jobs together may be."""

    body_bytes_max: int = between(
        8 * MIB, 1024, 1024 * MIB, "Largest request body; room for a thousand jobs with a graph of usual size."
    )
    jobs_per_request_max: int = between(
        1000, 1, 100_000, "Jobs in one submission: they are checked and stored in one transaction."
    )
    layers_max: int = between(
        2000,
        1,
        100_000,
        "Layers of a job's graph; the largest public models have some hundreds. Cutting takes their square.",
    )
    edges_max: int = between(
        20_000, 0, 1_000_000, "Edges of a job's graph: ten for each layer are more than any published model has."
    )
    jobs_queued_max: int = between(
        100_000, 1, 10_000_000, "Unfinished jobs; a further submission is refused until some have ended."
    )
    jobs_queued_per_user_max: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Unfinished jobs of one user, unless a quota of that user says otherwise. None by default: it takes a count.",
    )
    jobs_queued_per_project_max: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Unfinished jobs of one project, unless a quota of that project says otherwise.",
    )
    min_run_s_max: float = between(
        3600.0,
        0.0,
        7 * 86_400.0,
        "Longest undisturbed run that a job may ask for with min_run_s: so long it keeps GPUs from better jobs.",
    )
    event_streams_max: int = between(
        200, 0, 100_000, "Open event streams; further ones are refused. Each costs some memory and no thread."
    )
    page_size_default: int = between(50, 1, 10_000, "Entries of a page if the client names no limit.")
    page_size_max: int = between(500, 1, 10_000, "Most entries of a page: an answer stays well under a megabyte.")
