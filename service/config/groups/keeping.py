"""What it keeps, and for how long."""

from pydantic import BaseModel

from service.config.kinds import DAY_S, between


class Keeping(BaseModel):
    """Ages after which something is forgotten."""

    cycles_kept_s: float = between(
        30 * DAY_S, 3600.0, 3650 * DAY_S, "Cycles older than this are forgotten: a month covers any question of why."
    )
    forecasts_kept_s: float = between(
        90 * DAY_S, 3600.0, 3650 * DAY_S, "Scored forecasts older than this are forgotten: a season shows any drift."
    )
    jobs_kept_s: float = between(
        0.0,
        0.0,
        3650 * DAY_S,
        "Ended jobs older than this are forgotten with all that is told of them; 0 keeps them for ever: a million take a few "
        "gigabytes. What was learnt from them stays, for as many as a training looks at.",
    )
    logs_kept_s: float = between(
        7 * DAY_S,
        0.0,
        3650 * DAY_S,
        "Logs and checkpoints of finished jobs are deleted after this. Jobs and predictions stay.",
    )
    idempotency_kept_s: float = between(
        DAY_S, 60.0, 30 * DAY_S, "How long an Idempotency-Key is remembered: longer than any client keeps retrying."
    )
    prune_period_s: float = between(
        3600.0, 1.0, DAY_S, "How often old rows and folders are looked for; a pass is short, and nothing is urgent."
    )
    prune_rows_max: int = between(
        1000, 1, 100_000, "Rows deleted in one transaction, so that pruning never holds the write lock for long."
    )
