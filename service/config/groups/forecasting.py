"""How it looks ahead."""

from pydantic import BaseModel

from service.config.kinds import between


class Forecasting(BaseModel):
    """Forecasts and snapshots."""

    forecast_samples: int = between(
        16, 5, 1000, "Sampled futures behind a forecast; a long queue gets fewer. Sixteen show a spread, more cost CPU."
    )
    forecast_jobs_max: int = between(
        2000, 1, 100_000, "Unfinished jobs up to which there are forecasts: each future runs all of them to their end."
    )
    forecast_timeout_s: float = between(
        10.0,
        0.1,
        600.0,
        "A forecast that takes longer tells the futures it has, or is given up: whoever asked is waiting for it.",
    )
    forecast_period_s: float = between(
        5.0,
        0.1,
        3600.0,
        "How often it is looked whether a job has no recent forecast on record, so that new jobs get one.",
    )
    forecast_cpu_ratio: float = between(
        0.1, 0.001, 1.0, "Share of one core that these unasked forecasts may take: a long queue is told of less often."
    )

    snapshots_kept: int = between(
        20,
        0,
        1000,
        "Newest cycles with actions that can be replayed; about 2 kB of memory for each unfinished job of each.",
    )
    snapshot_jobs_max: int = between(
        500, 0, 100_000, "Unfinished jobs up to which cycles are recorded for replay: every pass copies all of them."
    )
