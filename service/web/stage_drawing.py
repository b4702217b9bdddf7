"""The stages of a job as a drawing: a column a stage, a box a replica, a colour a server."""

from collections import Counter
from collections.abc import Mapping
from math import log10
from typing import Any, Final

BOXES_MAX: Final = 128
"""Larger plans are shown as tables alone."""

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7f7f7f")
"""Distinct for colour-blind readers (Okabe and Ito); the text in a box names its server too."""

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 42, 46, 10, 6


def drawing_of(placed: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Boxes and lines of ``GET /v1/jobs/{id}/placement``; None for a job without stages, and for one with too many boxes."""
    stages = placed["stages"] if placed is not None else []
    count = sum(len(stage["replicas"]) for stage in stages)
    if placed is None or len(stages) < 1 or count > BOXES_MAX:
        return None
    boxes: dict[tuple[int, int], dict[str, Any]] = {}
    for column, stage in enumerate(stages):
        for row, replica in enumerate(stage["replicas"]):
            boxes[column, row] = _box(placed["servers"], stage, replica, column, row)
    rows = max(len(stage["replicas"]) for stage in stages)
    columns = {stage["stage"]: column for column, stage in enumerate(stages)}
    lines = [
        line
        for edge in placed["edges"]
        if edge["kind"] == "activations"
        for row in range(rows)
        if (line := _line(boxes, columns[edge["source"]], columns[edge["target"]], row, edge["total_bytes"]))
    ]
    return {
        "boxes": list(boxes.values()),
        "lines": lines,
        "width": 2 * _MARGIN + len(stages) * _WIDTH + (len(stages) - 1) * _GAP_X,
        "height": 2 * _MARGIN + rows * _HEIGHT + (rows - 1) * _GAP_Y,
    }


def _box(servers: Any, stage: Any, replica: Any, column: int, row: int) -> dict[str, Any]:
    held = Counter(gpu["server"] for gpu in replica["gpus"])
    most = held.most_common(1)[0][0]
    names = ", ".join(_short(servers[index]["server"]) for index in held)
    gpus = ",".join(str(gpu["gpu_id"]) for gpu in replica["gpus"][:6]) + ("…" if len(replica["gpus"]) > 6 else "")
    return {
        "x": _MARGIN + column * (_WIDTH + _GAP_X),
        "y": _MARGIN + row * (_HEIGHT + _GAP_Y),
        "w": _WIDTH,
        "h": _HEIGHT,
        "server": most,
        "colour": COLOURS[most % len(COLOURS)],
        "line": f"stage {stage['stage']}, replica {replica['replica']}",
        "where": f"{_short(names, 14)}: {gpus}",
        "title": f"stage {stage['stage']}, replica {replica['replica']} on {names}, GPUs {gpus}",
    }


def _line(boxes: Any, source: int, target: int, row: int, total_bytes: float) -> dict[str, Any] | None:
    left, right = boxes.get((source, row)), boxes.get((target, row))
    if left is None or right is None:
        return None
    thick = 1.0 + min(4.0, max(0.0, log10(max(total_bytes, 1.0)) - 6.0))
    return {
        "x1": left["x"] + _WIDTH,
        "y1": left["y"] + _HEIGHT / 2,
        "x2": right["x"],
        "y2": right["y"] + _HEIGHT / 2,
        "thick": round(thick, 1),
        "dashed": left["server"] != right["server"],
    }


def _short(name: str, most: int = 24) -> str:
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
