"""The results of simulations as tables for people: a run, a policy, or the mean over the seeds of both."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import typer

from service.cli.output import Column, fitting, print_table
from service.domain.duration import words_of
from service.sim.results import Result
from service.sim.seeds import HALF_WIDTH, RATIO, WORDS, over_seeds, ratio_words
from service.simulations.runs import Finished

_COLUMNS_MAX = 6
"""Columns that are shown side by side; more are shown one a line, with the decisive measures."""
_DECISIVE = (
    *(RATIO, "mean_jct_s", "p99_jct_s", "mean_queueing_delay_s", "mean_slowdown"),
    *("utilization_ratio", "preemptions", "wasted_gpu_s"),
)
_OF_FINISHED = (
    *("mean_jct_s", "median_jct_s", "p90_jct_s", "p99_jct_s"),
    *("mean_queueing_delay_s", "mean_slowdown"),
)
"""Measures over the finished jobs."""
_PROMISES = ("promises", "promises_kept_ratio", "mean_lateness_s", "mean_promised_jct_s", "promised_jct_ratio")
"""Measures that are shown if a run promises ends."""


def print_results(runs: Sequence[Finished]) -> None:
    """One line a measure and one column a run, or the other way round where there are many.

    Runs that differ only in their seed are one: the mean of each measure, and how sure that of the ratio is.
    """
    promised = any(run.result.promises for run in runs)
    documents = [_defined(run.result) | (run.faults.to_dict() if run.faults is not None else {}) for run in runs]
    shown = over_seeds(documents)
    if len(shown) <= _COLUMNS_MAX:
        wide = max(18, *(2 + len(document["policy"]) for document in shown))
        for key in shown[0]:
            if key not in ("schema", HALF_WIDTH) and (key not in _PROMISES or promised):
                typer.echo(f"{label(key):<24}" + "".join(f"{_value(key, document):>{wide}}" for document in shown))
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
        typer.echo(WORDS)


def _defined(result: Result) -> dict[str, Any]:
    """The document, with None for the measures that are 0 because they are of no jobs."""
    of_none: tuple[str, ...] = ()
    if not result.finished:
        of_none += _OF_FINISHED
    if not result.jobs:
        of_none += ("makespan_s", "utilization_ratio", "lower_bound_mean_jct_s")
    return result.to_dict() | dict.fromkeys(of_none)


def _value(key: str, document: dict[str, Any]) -> str:
    return ratio_words(document) if key == RATIO else cell(key, document[key])


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
