"""What it keeps, and for how long."""

from pydantic import BaseModel

from service.config.kinds import DAY_S, Seconds, between


class Keeping(BaseModel):
    """Ages after which something is forgotten."""

    cycles_kept_s: Seconds = between(
        30 * DAY_S, 3600.0, 3650 * DAY_S, "Age at which cycles are deleted. A month covers most questions."
    )
    forecasts_kept_s: Seconds = between(
        90 * DAY_S, 3600.0, 3650 * DAY_S, "Age at which scored forecasts are deleted. A season shows any drift."
    )
    jobs_kept_s: Seconds = between(
        0.0,
        0.0,
        3650 * DAY_S,
        "Age at which ended jobs are deleted with their events and predictions; 0 keeps them for ever: a "
        "million take a few gigabytes. The predictor keeps what it learned from as many as a training uses.",
    )
    logs_kept_s: Seconds = between(
        7 * DAY_S,
        0.0,
        3650 * DAY_S,
        "Age at which logs and checkpoints of ended jobs are deleted. Jobs and predictions stay, and 64 progress points a job.",
    )
    idempotency_kept_s: Seconds = between(
        DAY_S, 60.0, 30 * DAY_S, "Age at which idempotency keys are deleted. It is longer than clients retry."
    )
    prune_period_s: Seconds = between(
        3600.0, 1.0, DAY_S, "Time between two deletions of old rows and folders. A deletion is short and never urgent."
    )
    prune_rows_max: int = between(
        1000, 1, 100_000, "Rows deleted in one transaction, so that the write lock is never held for long."
    )
