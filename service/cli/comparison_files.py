"""Files that a comparison leaves behind: its documents, a table, its pictures."""

import csv
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from service.domain.spreadsheet import cells
from service.reports.page import Chart
from service.reports.svg import standalone
from service.sim.results import Result, comparison_dict


class NoRasterizer(RuntimeError):
    """The package that turns charts into PNG is not installed."""


def write_summaries(results: Sequence[Result], folder: Path) -> None:
    """``comparison.json`` and ``comparison.csv``, a row a run. Raises OSError."""
    text = json.dumps(comparison_dict(results), indent=2, allow_nan=False)
    (folder / "comparison.json").write_text(text + "\n", encoding="utf-8")
    rows = [result.to_dict() for result in results]
    with (folder / "comparison.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows(cells(list(row.values())) for row in rows)


def write_pngs(charts: Sequence[Chart], folder: Path) -> None:
    """Each chart as ``SLUG.png``, two pixels a point. Raises :class:`NoRasterizer` and OSError."""
    draw = rasterizer()
    for chart in charts:
        (folder / f"{chart.slug}.png").write_bytes(draw.svg_to_bytes(svg_string=standalone(chart.svg), zoom=2))


def rasterizer() -> Any:
    """The optional package ``resvg_py``. Raises :class:`NoRasterizer`."""
    try:
        return import_module("resvg_py")
    except ImportError as error:
        raise NoRasterizer("PNG files need another package: pip install 'sooner[png]'") from error
