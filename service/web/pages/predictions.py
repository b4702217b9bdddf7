"""How good predictions and forecasts are."""

import asyncio
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from predictor.aggregation import AGGREGATION, WITHOUT_MODELS
from service.web.charts import calibration_chart, drift_chart
from service.web.page import Asked

JOBS: Final = 500
"""Newest ended jobs behind the tables of errors. Their first predictions count: later ones have seen how the job ran."""


async def predictions(asked: Asked) -> dict[str, Any]:
    """What predicts, how far off it was by user and program, and whether forecasts hold."""
    serving, models, accuracy, calibration, ended = await asyncio.gather(
        asked.read.get_or(None, "v1/predictor"),
        asked.read.get("v1/models", {"limit": asked.rows(10)}),
        asked.read.get_or(None, "v1/forecasts/accuracy"),
        asked.read.get_or({"jobs": 0, "coverage": []}, "v1/predictions/calibration"),
        asked.read.get("v1/jobs", {"state": ["succeeded"], "limit": asked.rows(JOBS), "prediction": "first"}),
    )
    scored = [job for job in ended["items"] if job["prediction"] and job["prediction"]["log_error"] is not None]
    return {
        "serving": serving,
        "models": models["items"],
        "accuracy": accuracy,
        "scored": len(scored),
        "all": error_of(scored) if scored else None,
        "users": _by(scored, lambda job: job["user"] or ""),
        "programs": _by(scored, lambda job: job["name"]),
        "chart": _points(scored),
        "calibration": calibration,
        "calibration_chart": calibration_chart(calibration["coverage"]),
        "drift": drift_chart(scored),
        "compared": compared(models["items"]),
        "json": "v1/predictor",
    }


def error_of(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """``factor``: the median of max(predicted / actual, actual / predicted). ``inside``: share within the 80% interval."""
    found = [job["prediction"] for job in jobs]
    errors = [abs(each["log_error"]) for each in found]
    return {
        "jobs": len(found),
        "factor": math.exp(statistics.median(errors)),
        "twice": sum(error <= math.log(2) for error in errors) / len(found),
        "too_long": sum(each["log_error"] > 0 for each in found) / len(found),
        "inside": sum(each["p10"] <= each["actual"] <= each["p90"] for each in found) / len(found),
    }


def _by(jobs: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], str]) -> list[tuple[str, dict[str, Any]]]:
    groups = defaultdict(list)
    for job in jobs:
        groups[key(job)].append(job)
    found = [(name, error_of(members)) for name, members in groups.items()]
    return sorted(found, key=lambda group: -group[1]["jobs"])[:20]


def compared(models: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each training found on its test jobs, newest first: what is served with its models, beside what would be without.

    Models whose metrics have another form are left out.
    """
    found = []
    for model in models:
        for unit, head in model["metrics"].items():
            if not isinstance(head, dict) or not {"models", "verdict"} <= head.keys():
                continue
            # Models of earlier versions were compared with the best single rule.
            baseline = head["verdict"].get("best_baseline")
            found.append(
                {
                    "model": model,
                    "unit": unit,
                    "passed": head["verdict"]["passed"],
                    "reasons": head["verdict"]["reasons"],
                    "scores": head["models"][AGGREGATION],
                    "baseline": baseline or "without models",
                    "baseline_scores": head["models"].get(baseline or WITHOUT_MODELS),
                }
            )
    return found


def _points(jobs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Predicted against actual totals, of jobs that report iterations."""
    found = [job["prediction"] for job in jobs if job["prediction"]["unit"] == "iterations"]
    if len(found) < 2:
        return None
    return {
        "kind": "scatter",
        "actual": [each["actual"] for each in found],
        "predicted": [each["p50"] for each in found],
    }
