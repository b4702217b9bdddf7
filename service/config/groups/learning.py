"""How it learns."""

from pydantic import BaseModel

from service.config.kinds import DAY_S, MIB, Seconds, between


class Learning(BaseModel):
    """Retraining."""

    retrain_period_s: Seconds = between(
        DAY_S, 60.0, 30 * DAY_S, "Time between two trainings. Users change their habits within days, not hours."
    )
    retrain_jobs_min: int = between(
        200,
        20,
        1_000_000,
        "Ended jobs before the first training. With fewer, the recurrence and cold-start rules are better.",
    )
    retrain_rows_max: int = between(
        40_000, 200, 10_000_000, "Newest ended jobs used in a training. It limits the time; older jobs matter less."
    )
    retrain_timeout_s: Seconds = between(
        900.0,
        1.0,
        DAY_S,
        "Time limit of a training. Beyond it, the old model stays. 40,000 jobs take two minutes of a core.",
    )
    retrain_memory_bytes_max: int = between(
        2048 * MIB,
        512 * MIB,
        1024 * 1024 * MIB,
        "Address space of a training. One that needs more fails and the old model stays; 40,000 jobs take far less.",
    )
    retrain_replay_jobs_max: int = between(
        2000,
        0,
        5000,
        "Newest test jobs simulated under old and new models before a promotion; 0 leaves it to the gate.",
    )
