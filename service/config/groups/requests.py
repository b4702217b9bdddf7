"""Limits of requests and jobs."""

from pydantic import BaseModel, Field

from service.config.kinds import MIB, Seconds, between


class Requests(BaseModel):
    """What one request, and what all waiting jobs together may be."""

    body_bytes_max: int = between(
        8 * MIB, 1024, 1024 * MIB, "Largest request body. The default holds a thousand jobs with graphs of usual size."
    )
    jobs_per_request_max: int = between(
        1000, 1, 100_000, "Jobs in one submission. They are validated and stored in one transaction."
    )
    layers_max: int = between(
        2000,
        1,
        100_000,
        "Layers of a job's graph. The largest public models have some hundreds; cutting takes quadratic time.",
    )
    edges_max: int = between(
        20_000, 0, 1_000_000, "Edges of a job's graph. Ten per layer are more than any published model has."
    )
    jobs_queued_max: int = between(
        100_000, 1, 10_000_000, "Unfinished jobs. Further submissions are refused until some jobs have ended."
    )
    jobs_queued_per_user_max: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Unfinished jobs of one user without a quota. Default: no limit, which saves a count.",
    )
    jobs_queued_per_project_max: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Unfinished jobs of one project without a quota. No limit by default, as for users.",
    )
    min_run_s_max: Seconds = between(
        3600.0,
        0.0,
        7 * 86_400.0,
        "Largest min_run_s of a job. During that time better jobs cannot take its GPUs.",
    )
    event_streams_max: int = between(
        200, 0, 100_000, "Open event streams; further ones are refused. Each takes some memory but no thread."
    )
    caller_requests_max: int = between(
        128,
        1,
        100_000,
        "Requests of one caller at a time; further ones are refused. All keys of a user are one caller. At most 16 hold threads.",
    )
    heavy_requests_max: int = between(
        16,
        1,
        10_000,
        "Plans, forecasts and snapshots at a time; further ones are refused. Each takes seconds of computation.",
    )
    caller_heavy_requests_max: int = between(
        2,
        1,
        10_000,
        "Plans, forecasts and snapshots of one caller at a time: one is computed while the other one waits.",
    )
    caller_event_streams_max: int = between(
        20, 0, 100_000, "Open event streams of one caller: enough for a person's windows and scripts."
    )
    caller_body_bytes_max: int = between(
        32 * MIB,
        1024,
        65_536 * MIB,
        "Bytes of all request bodies of one caller at a time. A body that is alone is always taken.",
    )
    page_size_default: int = between(50, 1, 10_000, "Entries of a page if the request has no limit. Small is fast.")
    page_size_max: int = between(500, 1, 10_000, "Largest page. An answer then stays below a megabyte.")
