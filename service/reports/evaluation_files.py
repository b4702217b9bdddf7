"""The files of ``sooner model evaluate``: the document, one row per prediction, and the HTML page."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from predictor.evaluation import middle
from predictor.intervals import at_levels
from service.domain.spreadsheet import cells
from service.reports.evaluation import evaluation_html
from service.sim.evaluate import Evaluation

_PREDICTION_COLUMNS: Final = ("job_id", "submit_time_s", "duration_s", "runs_known", "served_s", "p10_s", "p90_s")


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write ``evaluation.json``, ``predictions.csv`` (one row per test job) and ``report.html`` into an existing folder.

    Raises OSError.
    """
    text = json.dumps(evaluation.document, allow_nan=False, indent=2)
    (folder / "evaluation.json").write_text(text + "\n", encoding="utf-8")
    with (folder / "predictions.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        others = sorted(evaluation.run.experts)
        writer.writerow((*_PREDICTION_COLUMNS, *(f"{name}_s" for name in others)))
        writer.writerows(map(cells, _predictions(evaluation, others)))
    write_page(evaluation, folder / "report.html")


def write_page(evaluation: Evaluation, path: Path) -> None:
    """Write the page. Raises OSError."""
    path.write_text(evaluation_html(evaluation), encoding="utf-8")


def _predictions(evaluation: Evaluation, others: Sequence[str]) -> Iterator[tuple[object, ...]]:
    run, tested = evaluation.run, evaluation.run.tested
    served = evaluation.served.tested(run)
    ends = at_levels(served, np.array([0.1, 0.9]))
    columns = [middle(served), ends[:, 0], ends[:, 1], *(middle(tested[name]) for name in others)]
    seconds = np.exp(np.stack(columns, axis=1)).round(3).tolist()
    examples = run.examples[run.test_start :]
    for job, example, row in zip(evaluation.test_jobs, examples, seconds, strict=True):
        yield (job.job_id, job.submit_time_s, job.duration_s, example.runs, *row)
