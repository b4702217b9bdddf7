"""The feature builder: one versioned function for training and serving, so that both see the same features.

Every feature is causal: it depends on the job's own submission, the history of jobs that had ended, and the jobs that were open.
Names of users and programs never become numbers; they only select a history. A GPU type is the published speed of the type that
the job asks for: unknown where it names none, or one that is not in the table. The vector is stored with each prediction.
"""

import math
from typing import Final, NamedTuple

from policies.training.gpu_speed import published_speed
from predictor.declarations import DeclarationWeight
from predictor.history import Group, HistoryStore, OpenJobs
from predictor.recurrence import BACKOFF, Level, keys_of
from predictor.rows import Submission
from predictor.survival import LEVELS as SURVIVAL_LEVELS
from predictor.survival import OPEN_JOBS_MAX, quantiles

MISSING: Final = -20.0
"""The value of an unknown feature: far below the log of any real amount, so that one split of a tree isolates it."""

_GROUP_FEATURES: Final = (
    "log_count", "median", "last", "previous", "ewma", "low", "high", "spread", "failed_ratio", "log_age_s",
)  # fmt: skip
_LATELY_FEATURES: Final = (
    "since_submission_log_s",
    "open",
    "open_log_age_s",
    "open_newest_log_age_s",
    "last_submitted",
    "last_submitted_log_age_s",
)
_LATELY_LEVELS: Final = {"request": Level.MODEL, "cluster": Level.CLUSTER}
"""The groups that every job has, by the first word of their features. Groups of named jobs gain nothing from these."""
_GROUP_LEVELS: Final = tuple(level for level in Level if level is not Level.CLUSTER)
_REQUEST_FEATURES: Final = (
    "base",
    "cluster_median",
    "log_cluster_count",
    "cluster_first_median",
    "user_first_median",
    "cold_level",
    "log_gpus",
    "log_walltime_s",
    "log_declared",
    "declared_weight",
    "log_stages",
    "log_parameter_bytes",
    "log_batch_size",
    "log_gpu_speed",
    "hour",
    "weekday",
    "open_recurrence",
    "open_recurrence_log_age_s",
    "open_user",
    "open_user_log_age_s",
    "open_recurrence_low",
    "open_recurrence_median",
    "open_recurrence_high",
    "open_user_low",
    "open_user_median",
    "open_user_high",
)
LATELY: Final = tuple(f"{group}_{name}" for group in _LATELY_LEVELS for name in _LATELY_FEATURES)
"""What tells a sweep without names."""
NAMES: Final = (
    *(f"{level}.{name}" for level in _GROUP_LEVELS for name in _GROUP_FEATURES),
    *_REQUEST_FEATURES,
    *LATELY,
)
"""Name of each position. Labels are log units; those of a group are relative to ``base``, except medians."""


class Vector(NamedTuple):
    """Features in the order of :data:`NAMES`, and how many runs of the recurrence (same GPUs) were known."""

    values: tuple[float, ...]
    runs: int


def _log(value: float | None) -> float:
    return MISSING if value is None or value <= 0.0 else math.log(value)


_NO_GROUP: Final = (0.0,) + (MISSING,) * (len(_GROUP_FEATURES) - 1)


def _group_values(group: Group | None, base: float, now_s: float) -> tuple[float, ...]:
    if group is None:
        return _NO_GROUP
    return (
        group.log_count,
        group.median,
        group.last - base,
        group.previous - base,
        group.ewma - base,
        group.low - base,
        group.high - base,
        group.spread,
        group.failed_ratio,
        math.log1p(max(0.0, now_s - group.ended_at_s)),
    )


def _lately(
    group: Group | None, open_jobs: OpenJobs, key: tuple[Level, object], submission: Submission, base: float
) -> tuple[float, ...]:
    """Jobs of one sweep are submitted one after the other, whether they have names or not: when the one before was submitted,
    which of the group are open, and the label of the one that was submitted last of those that have ended.
    """
    now_s = submission.submitted_at_s
    count, oldest_s, newest_s = open_jobs.before(key, now_s, submission.job)
    last_submitted_s = math.inf if group is None else max(0.0, now_s - group.last_submitted_at_s)
    since_s = min(newest_s, last_submitted_s) if count else last_submitted_s
    return (
        MISSING if since_s == math.inf else math.log1p(since_s),
        float(count),
        math.log1p(oldest_s) if count else MISSING,
        math.log1p(newest_s) if count else MISSING,
        MISSING if group is None else group.last_submitted - base,
        MISSING if group is None else math.log1p(last_submitted_s),
    )


def _with_open(
    group: Group | None, open_jobs: OpenJobs, key: tuple[Level, object], submission: Submission, base_s: float
) -> tuple[float, ...]:
    """The quartiles of a group including its running jobs, relative to ``base_s`` (log).

    ``group`` holds seconds of service for either unit, because the age of a running job is a time.
    """
    ages_s = open_jobs.ages_s(key, submission.submitted_at_s, submission.job, OPEN_JOBS_MAX)
    if (group is None and not ages_s) or math.isnan(base_s):
        return (MISSING,) * len(SURVIVAL_LEVELS)
    return tuple(quantile - base_s for quantile in quantiles(group.labels if group is not None else (), ages_s))


def build(
    submission: Submission,
    history: HistoryStore,
    service_s: HistoryStore,
    open_jobs: OpenJobs,
    declarations: DeclarationWeight,
    base: float,
    base_s: float,
) -> Vector:
    """The features of a job at its submission. ``base`` is the log point from which the models learn (NaN: no job has ended).

    ``history`` is that of the unit to predict, ``service_s`` that of seconds of service (the same object if this is the unit),
    with its recurrence median ``base_s``. Pure: reads the history and changes nothing. About 40 microseconds.
    """
    if math.isnan(base):
        base = MISSING
    keys = keys_of(submission)
    groups: dict[Level, Group | None] = {level: history.group(level, keys[level]) for level in _GROUP_LEVELS}
    values: list[float] = []
    for group in groups.values():
        values += _group_values(group, base, submission.submitted_at_s)
    cold = next((depth for depth, level in enumerate(BACKOFF[:-1]) if groups[level] is not None), len(BACKOFF) - 1)
    recurrence, user = keys[Level.RECURRENCE], keys[Level.USER]
    open_recurrence = open_jobs.before((Level.RECURRENCE, recurrence), submission.submitted_at_s, submission.job)
    open_user = open_jobs.before((Level.USER, user), submission.submitted_at_s, submission.job)
    known, first = len(history.cluster), history.first_runs_of(user)
    # The models do not see a declaration that weighs nothing, or they would follow a user who understates.
    declared = submission.declared_iterations if declarations.weight > 0.0 else None
    values += (
        base,
        history.cluster.median if known else MISSING,
        math.log1p(known),
        history.first_runs.median if len(history.first_runs) else MISSING,
        first.median if first is not None else MISSING,
        float(cold),
        math.log(submission.gpus),
        _log(submission.walltime_s),
        _log(declared),
        declarations.weight,
        _log(submission.stages),
        _log(submission.parameter_bytes),
        _log(submission.batch_size),
        _log(published_speed(submission.gpu_type)),
        submission.submitted_at_s / 3_600.0 % 24.0,
        float(int(submission.submitted_at_s // 86_400.0) % 7),
        float(open_recurrence[0]),
        math.log1p(open_recurrence[1]),
        float(open_user[0]),
        math.log1p(open_user[1]),
        *_with_open(
            service_s.group(Level.RECURRENCE, recurrence), open_jobs, (Level.RECURRENCE, recurrence), submission, base_s
        ),
        *_with_open(service_s.group(Level.USER, user), open_jobs, (Level.USER, user), submission, base_s),
    )
    for level in _LATELY_LEVELS.values():
        values += _lately(history.group(level, keys[level]), open_jobs, (level, keys[level]), submission, base)
    same = groups[Level.RECURRENCE_GPUS]
    return Vector(tuple(values), same.count if same is not None else 0)


def open_keys(submission: Submission) -> tuple[tuple[Level, object], ...]:
    """The groups in which a job counts as open."""
    keys = keys_of(submission)
    levels = (Level.RECURRENCE, Level.USER, *_LATELY_LEVELS.values())
    return tuple((level, keys[level]) for level in levels if keys[level] is not None)
