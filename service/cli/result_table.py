"""The results of simulations as tables for people: a run, a policy, or the mean over the seeds of both."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import typer

from service.cli.output import Column, fitting, print_table
from service.domain.duration import words_of
from service.simulations.runs import Finished

_COLUMNS_MAX = 6
"""Columns that are shown side by side; more are shown one a line, with the decisive measures."""
_RATIO = "ratio_to_lower_bound"
_DECISIVE = (
    *(_RATIO, "mean_jct_s", "p99_jct_s", "mean_queueing_delay_s", "mean_slowdown"),
    *("utilization_ratio", "preemptions", "wasted_gpu_s"),
)
_PROMISES = ("promises", "promises_kept_ratio", "mean_lateness_s", "mean_promised_jct_s", "promised_jct_ratio")
"""Measures that are shown if a run promises ends."""
_CONFIDENCE = 0.95


def print_results(runs: Sequence[Finished]) -> None:
    """One line a measure and one column a run, or the other way round where there are many.

    Runs that differ only in their seed are one: the mean of each measure, and how sure that of the ratio is.
    """
    promised = any(run.result.promises for run in runs)
    documents = [run.result.to_dict() | (run.faults.to_dict() if run.faults is not None else {}) for run in runs]
    shown = _over_seeds(documents)
    if len(shown) <= _COLUMNS_MAX:
        wide = max(18, *(2 + len(document["policy"]) for document in shown))
        for key in shown[0]:
            if key != "schema" and (key not in _PROMISES or promised):
                typer.echo(f"{label(key):<24}" + "".join(f"{cell(key, document[key]):>{wide}}" for document in shown))
    else:
        keys = ["policy", "predictor", *(["seeds"] if "seeds" in shown[0] else [])]
        decisive = (*_DECISIVE, *_PROMISES[1:]) if promised else _DECISIVE
        columns = [Column[dict[str, Any]](key, partial(_value, key)) for key in keys]
        columns += [Column(label(key), partial(_value, key), right=True) for key in decisive]
        fit = fitting(columns, shown, len(keys) + 1)
        print_table(fit, shown)
        if left := [column.header for column in columns[len(fit) :]]:
            typer.echo(f"without room for {', '.join(left)} (--json has all)", err=True)
    if "seeds" in shown[0]:
        typer.echo(
            f"Means over the seeds; ± is half of the {_CONFIDENCE:.0%} confidence interval of the mean (Student's t)."
        )


def _over_seeds(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One document for each policy with each predictor. ``seeds`` takes the place of ``seed`` where one has several."""
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for document in documents:
        alike.setdefault((document["policy"], document["predictor"]), []).append(document)
    if len(alike) == len(documents):
        return list(documents)
    return [_summary(members) for members in alike.values()]


def _summary(members: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in members[0]:
        values = [member[key] for member in members]
        if key == "seed":
            found["seeds"] = len(members)
        elif key == _RATIO:
            found[key] = _mean_and_error(values)
        else:
            found[key] = _mean(values)
    return found


def _mean(values: Sequence[Any]) -> Any:
    """What all have, or the mean of numbers, a whole one if they are; None if one of them is."""
    if all(value == values[0] for value in values):
        return values[0]
    if None in values:
        return None
    mean = fmean(values)
    return round(mean) if all(isinstance(value, int) for value in values) else mean


def _mean_and_error(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    if len(known) == 1:
        return cell(_RATIO, known[0])
    # Not needed for runs with one seed, which are to start fast.
    from scipy.special import stdtrit

    half = float(stdtrit(len(known) - 1, (1.0 + _CONFIDENCE) / 2.0)) * stdev(known) / sqrt(len(known))
    return f"{cell(_RATIO, fmean(known))} ±{half:.3f}"


def _value(key: str, document: Mapping[str, Any]) -> str:
    return cell(key, document[key])


def label(key: str) -> str:
    """The name of a value without its unit, because times are shown in words."""
    return f"{key.removesuffix('_s')}_time" if key.endswith("_gpu_s") else key.removesuffix("_s")


def cell(key: str, value: object) -> str:
    """A value of a document as text."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return words_of(value) if key.endswith("_s") else f"{value:,.3f}"
