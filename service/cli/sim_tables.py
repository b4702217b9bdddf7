"""Simulation results for people: the measures of one or several runs, what went wrong, and who was left behind."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import typer

from service.cli.compare import Finished
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import Column, print_table

_COLUMNS_MAX = 6
"""Runs that are shown side by side; more are shown one a line, with the decisive measures."""
_DECISIVE = (
    *("ratio_to_lower_bound", "mean_jct_s", "p99_jct_s", "mean_queueing_delay_s", "mean_slowdown"),
    *("utilization_ratio", "preemptions", "wasted_gpu_s"),
)
_NAMED_MAX = 5
"""Unfinished jobs of a run that are named; the count covers all."""


def print_results(runs: Sequence[Finished]) -> None:
    """One line a measure and one column a run, or the other way round where there are many runs."""
    documents = [run.result.to_dict() | (run.faults.to_dict() if run.faults is not None else {}) for run in runs]
    if len(runs) <= _COLUMNS_MAX:
        wide = max(18, *(2 + len(run.result.policy) for run in runs))
        for key in documents[0]:
            if key != "schema":
                typer.echo(f"{key:<24}" + "".join(f"{cell(document[key]):>{wide}}" for document in documents))
        return
    columns = [Column[dict[str, Any]](key, partial(_value, key)) for key in ("policy", "predictor")]
    columns += [Column(key, partial(_value, key), right=True) for key in _DECISIVE]
    print_table(columns, documents)


def _value(key: str, document: dict[str, Any]) -> str:
    return cell(document[key])


def cell(value: object) -> str:
    """A value of a document as text."""
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


def end(runs: Sequence[Finished]) -> None:
    """Exit code 1 if a run left jobs behind; says which, and why."""
    behind = [_behind(run) for run in runs if run.unfinished]
    if behind:
        fail(f"jobs that did not finish: {'; '.join(behind)}", EXIT_FAILED)


def _behind(run: Finished) -> str:
    named = [f"{job.job_id} {job.reason}" for job in run.unfinished[:_NAMED_MAX]]
    if len(run.unfinished) > _NAMED_MAX:
        named.append("...")
    return f"{run.result.policy}: {len(run.unfinished)} ({', '.join(named)})"
