"""How it looks ahead."""

from pydantic import BaseModel

from service.config.kinds import Seconds, between


class Forecasting(BaseModel):
    """Forecasts and snapshots."""

    forecast_samples: int = between(
        16, 5, 1000, "Simulated futures of a forecast; fewer for a long queue. Sixteen show a spread, more cost CPU."
    )
    forecast_jobs_max: int = between(
        2000, 1, 100_000, "Unfinished jobs above which no forecast is made: each future simulates all of them."
    )
    forecast_timeout_s: Seconds = between(
        10.0,
        0.1,
        600.0,
        "Time limit of a forecast. Afterwards the completed futures are used, or the forecast fails.",
    )
    forecast_period_s: Seconds = between(
        5.0,
        0.1,
        3600.0,
        "Time between two checks for jobs without a recent forecast record.",
    )
    forecast_cpu_ratio: float = between(
        0.1, 0.001, 1.0, "Share of one core for automatic forecasts. With a long queue, forecast records are rarer."
    )

    snapshots_kept: int = between(
        20,
        0,
        1000,
        "Newest cycles with actions that can be replayed. They share the copies of unchanged jobs, of about 1 kB each.",
    )
    snapshot_jobs_max: int = between(
        10_000, 0, 100_000, "Unfinished jobs above which cycles are not recorded for replay: a copy of each is kept."
    )
