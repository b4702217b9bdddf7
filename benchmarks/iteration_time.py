"""Compares predicted iteration times with published ones. The constants are those of the package, never fitted on the table.

python -m benchmarks.iteration_time --table open.csv --models models.csv --gpus gpus.csv [--json] [--by-row]

``mape``: mean of |predicted / measured - 1| of the speeds, in percent; ``classes``: the same by class of model.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.throughput_table import Measured, by_reason, load
from policies.training.constants import SHIPPED, Constants
from policies.training.iteration import IterationTime, iteration_time


def predicted(row: Measured, constants: Constants = SHIPPED) -> IterationTime:
    return iteration_time(row.shape, row.plan, row.gpu, row.links, constants)


def error(row: Measured, iteration_s: float) -> float:
    """Of the predicted speed, over the measured one."""
    return abs(row.iteration_s / iteration_s - 1)


def summary(rows: Sequence[Measured], errors: Sequence[float]) -> dict[str, Any]:
    """``mape`` in percent and ``rows``, in all and by class."""

    def of(chosen: Sequence[float]) -> dict[str, Any]:
        return {"mape": round(100 * fmean(chosen), 2) if chosen else None, "rows": len(chosen)}

    kinds = sorted({row.kind for row in rows})
    pairs = list(zip(rows, errors, strict=True))
    classes = {kind: of([value for row, value in pairs if row.kind == kind]) for kind in kinds}
    return {**of(errors), "classes": classes}


def add_tables(parser: argparse.ArgumentParser) -> None:
    for name in ("table", "models", "gpus"):
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"CSV file: {name}")


def main(arguments: Sequence[str] | None = None, write: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tables(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--by-row", action="store_true", help="each row with its parts")
    chosen = parser.parse_args(arguments)
    rows, skipped = load(chosen.table, chosen.models, chosen.gpus)
    times = [predicted(row) for row in rows]
    found = summary(rows, [error(row, time.total_s) for row, time in zip(rows, times, strict=True)])
    found["skipped"] = by_reason(skipped)
    if chosen.by_row:
        found["predictions"] = [_line(row, time) for row, time in zip(rows, times, strict=True)]
    if chosen.json:
        write(json.dumps(found))
        return
    write(f"mape {found['mape']}% of {found['rows']} rows")
    for kind, values in found["classes"].items():
        write(f"  {kind:12} {values['mape']:6.2f}%  {values['rows']:4} rows")
    for reason, count in found["skipped"].items():
        write(f"skipped {count} rows: {reason}")
    for line in found.get("predictions", ()):
        write(json.dumps(line))


def _line(row: Measured, time: IterationTime) -> dict[str, Any]:
    shares = {name: round(seconds / time.total_s, 3) for name, seconds in time.parts.items() if seconds}
    keys = ("model", "gpu", "precision", "release", "gpus")
    return {key: row.row.get(key, "") for key in keys} | {
        "measured": row.speed,
        "predicted": round(row.count / time.total_s, 3),
        "bottleneck": time.bottleneck,
        "parts": shares,
    }


if __name__ == "__main__":
    main()
