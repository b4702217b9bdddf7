"""Advice as JSON (``sooner.advice/1``)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from service.advice.advice import ASRPT, NICE, SLURM, Advice, JobAdvice
from service.advice.calibration import Kind
from service.advice.site import Site
from service.forecast.forecast import Spread

SCHEMA = "sooner.advice/1"

_KEYS: Mapping[str, str] = {SLURM: "slurm", NICE: "slurm_by_asrpt", ASRPT: "asrpt"}
"""Names of the three schedules."""

Document = dict[str, Any]


def document(advice: Advice, site: Site) -> Document:
    """The whole advice. Waiting jobs come first, in Slurm's order; then held ones; then running ones by their end."""
    return {
        "schema": SCHEMA,
        "made_at": instant(advice.now_s),
        "gpus": advice.gpus,
        "gpus_free": advice.gpus_free,
        "samples": advice.samples,
        "problem": advice.problem or None,
        "jobs": [_job(each) for each in sorted(advice.jobs, key=_order)],
        "left_out": dict(advice.mirrored.left_out),
        "mean_time_to_completion": _worth(advice),
        "history": {
            "ended_jobs": site.learner.learnt,
            "checked_forecasts": {kind.value: site.calibration.count(kind) for kind in Kind},
        },
    }


def instant(at_s: float) -> str:
    """ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


def _order(each: JobAdvice) -> tuple[int, float, Sequence[int]]:
    if each.place is not None:
        return 0, each.place, each.job.serial
    if each.state == "held":
        return 1, 0.0, each.job.serial
    return 2, each.finish.p50_s if each.finish is not None else 0.0, each.job.serial


def _job(each: JobAdvice) -> Document:
    job = each.job
    return {
        "job": job.key,
        "name": job.name,
        "user": job.user,
        "state": each.state,
        "gpus": job.gpus,
        "time_limit_s": job.limit_s,
        "run_s": None if each.run is None else {"p10": each.run.p10_s, "p50": each.run.p50_s, "p90": each.run.p90_s},
        "source": each.source,
        "start_at": _times(each.start),
        "end_at": _times(each.finish),
        "place": each.place,
        "asrpt_place": each.asrpt_place,
        "asrpt_start_at": _times(each.asrpt_start),
        "asrpt_end_at": _times(each.asrpt_finish),
        "reason": each.reason,
    }


def _times(of: Spread | None) -> Document | None:
    return None if of is None else {"p10": instant(of.p10_s), "p50": instant(of.p50_s), "p90": instant(of.p90_s)}


def _worth(advice: Advice) -> Document | None:
    if advice.outlooks is None:
        return None
    first = advice.outlooks.outlooks[0]
    return {
        "jobs": len(advice.outlooks.jobs),
        "schedules": {
            _KEYS[each.label]: {
                "mean_s": each.mean_jct_s,
                "saved_ratio": 1.0 - each.mean_jct_s / first.mean_jct_s if first.mean_jct_s > 0.0 else 0.0,
                "better_in": each.better_in,
            }
            for each in advice.outlooks.outlooks
        },
    }
