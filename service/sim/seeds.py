"""Runs that differ only in their seed as one: the means of their measures, and how sure the mean of the ratio is."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

RATIO = "ratio_to_lower_bound"
HALF_WIDTH = "ratio_half_width"
CONFIDENCE = 0.95
WORDS = f"Means over the seeds; ± is half of the {CONFIDENCE:.0%} confidence interval of the mean (Student's t)."


def over_seeds(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One document for each policy with each predictor, from those of runs; the same ones where none has several runs.

    Else ``seeds``, their number, takes the place of ``seed``, and the half width of the ratio's confidence interval is added,
    None where a run has no ratio or there is one run.
    """
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for document in documents:
        alike.setdefault((document["policy"], document["predictor"]), []).append(document)
    if len(alike) == len(documents):
        return list(documents)
    return [_summary(members) for members in alike.values()]


def _summary(members: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values = {key: [member[key] for member in members] for key in members[0]}
    found = {"seeds" if key == "seed" else key: _mean(of_key) for key, of_key in values.items()}
    return found | {"seeds": len(members), HALF_WIDTH: _half_width(values[RATIO])}


def _mean(values: Sequence[Any]) -> Any:
    """What all have, or the mean of numbers, a whole one if they are; None if one of them is."""
    if all(value == values[0] for value in values):
        return values[0]
    if None in values:
        return None
    mean = fmean(values)
    return round(mean) if all(isinstance(value, int) for value in values) else mean


def _half_width(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or len(known) == 1:
        return None
    # Not needed for runs with one seed, which are to start fast.
    from scipy.special import stdtrit

    return float(stdtrit(len(known) - 1, (1.0 + CONFIDENCE) / 2.0)) * stdev(known) / sqrt(len(known))


def ratio_words(document: dict[str, Any]) -> str:
    """The mean ratio to the lower bound with its error: ``1.139 ±0.004``; ``-`` where there is none."""
    ratio, half_width = document[RATIO], document.get(HALF_WIDTH)
    if ratio is None:
        return "-"
    return f"{ratio:,.3f}" if half_width is None else f"{ratio:,.3f} ±{half_width:.3f}"
