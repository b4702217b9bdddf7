"""Charts made of rectangles: who held what when, and what sums are made of, as plain SVG text (:mod:`.svg`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from service.reports.svg import (
    BOTTOM,
    CHARACTER,
    GREY,
    GRID,
    INK,
    LEFT,
    PALETTE,
    RIGHT,
    WIDTH,
    Axis,
    Scale,
    cut,
    key_legend,
    svg_document,
    text,
    verticals,
)

_BAR_ROW = 26.0
_SQUARE = 460.0
_FAINTEST = 0.12
"""Opacity of a cell that holds a single thing: rare is not invisible."""


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a Gantt chart: ``rows`` rows from ``row`` on. ``notch`` marks an end by preemption."""

    start: float
    end: float
    row: int
    rows: int
    colour: str
    title: str
    notch: bool = False


def gantt_chart(
    title: str,
    x: Axis,
    blocks: Sequence[Block],
    groups: Sequence[tuple[str, int]],
    keys: Sequence[tuple[str, str]],
) -> str:
    """A row a GPU. ``groups`` are (server, GPUs) from the top, ``keys`` (label, colour) for the legend."""
    words, top = key_legend(keys)
    count = sum(rows for _, rows in groups)
    per_row = max(3.0, min(14.0, 420.0 / max(1, count)))
    height = top + per_row * count + BOTTOM
    scale = Scale(x, [], LEFT, WIDTH - RIGHT)
    parts = [words, *verticals(scale, top, height - BOTTOM)]
    row = 0
    for name, rows in groups:
        down = top + per_row * row
        parts.append(f'<path d="M{LEFT:.1f} {down:.1f}H{WIDTH - RIGHT:.1f}" stroke="#999999"/>\n')
        if per_row * rows >= 11.0:
            parts.append(text(LEFT - 6.0, down + per_row * rows / 2.0 + 4.0, cut(name, 10), anchor="end"))
        row += rows
    parts += [_block(block, scale, top, per_row) for block in blocks]
    parts.append(text((LEFT + WIDTH) / 2.0, height - 8.0, x.label, colour=GREY, anchor="middle"))
    return svg_document(title, height, "".join(parts))


def _block(block: Block, scale: Scale, top: float, per_row: float) -> str:
    left, right = scale.at(block.start), scale.at(block.end)
    down, tall = top + per_row * block.row, per_row * block.rows
    notch = f'<path d="M{right:.1f} {down:.1f}v{tall:.1f}" stroke="#000" stroke-width="2"/>' if block.notch else ""
    return (
        f'<g><title>{escape(block.title)}</title><rect x="{left:.1f}" y="{down:.1f}" width="{max(0.4, right - left):.1f}" '
        f'height="{tall:.1f}" fill="{block.colour}" stroke="#fff" stroke-width="0.5"/>{notch}</g>\n'
    )


def bar_chart(title: str, x: Axis, rows: Sequence[tuple[str, Sequence[float]]], keys: Sequence[tuple[str, str]]) -> str:
    """One stacked bar a row: its parts are in the order of ``keys``, (label, colour). Parts below 0 count as 0."""
    words, top = key_legend(keys)
    left = min(260.0, max(LEFT, 16.0 + CHARACTER * max((len(label) for label, _ in rows), default=0)))
    height = top + _BAR_ROW * len(rows) + BOTTOM
    sums = [sum(max(0.0, part) for part in parts) for _, parts in rows]
    scale = Scale(x, [0.0, *sums], left, WIDTH - RIGHT)
    drawn = [words, *verticals(scale, top, height - BOTTOM)]
    for index, (label, parts) in enumerate(rows):
        down = top + _BAR_ROW * index
        drawn.append(text(left - 8.0, down + _BAR_ROW / 2.0 + 4.0, cut(label, 36), anchor="end"))
        end = 0.0
        for part, (_, colour) in zip(parts, keys, strict=True):
            begin, end = end, end + max(0.0, part)
            wide = scale.at(end) - scale.at(begin)
            drawn.append(
                f'<rect x="{scale.at(begin):.1f}" y="{down + 4.0:.1f}" width="{wide:.1f}" height="{_BAR_ROW - 8.0:.1f}" '
                f'fill="{colour}"/>\n'
            )
    drawn.append(text((left + WIDTH) / 2.0, height - 8.0, x.label, colour=GREY, anchor="middle"))
    return svg_document(title, height, "".join(drawn))


def density_chart(title: str, x: Axis, y: Axis, counts: Sequence[Sequence[float]], edges: Sequence[float]) -> str:
    """How many things lie in each cell, rows over ``y`` and columns over ``x``, both cut at ``edges``; darker is more.

    A line marks where both are equal, dotted ones a factor of two either way.
    """
    left = (WIDTH - _SQUARE) / 2.0
    top, bottom = 14.0, 14.0 + _SQUARE
    xs, ys = Scale(x, edges, left, left + _SQUARE), Scale(y, edges, bottom, top)
    parts = [*verticals(xs, top, bottom)]
    for value, words in ys.ticks:
        down = ys.at(value)
        parts.append(f'<path d="M{left:.1f} {down:.1f}h{_SQUARE:.1f}" stroke="{GRID}"/>\n')
        parts.append(text(left - 6.0, down + 4.0, words, anchor="end"))
    most = max((count for row in counts for count in row), default=1.0)
    for row, cells in enumerate(counts):
        high, low = ys.at(edges[row + 1]), ys.at(edges[row])
        for column, count in enumerate(cells):
            if count > 0.0:
                begin, end = xs.at(edges[column]), xs.at(edges[column + 1])
                dark = _FAINTEST + (1.0 - _FAINTEST) * (count / most) ** 0.5
                parts.append(
                    f'<rect x="{begin:.1f}" y="{high:.1f}" width="{end - begin:.1f}" height="{low - high:.1f}" '
                    f'fill="{PALETTE[0]}" fill-opacity="{dark:.2f}"><title>{count:,.0f}</title></rect>\n'
                )
    parts += [_equal(xs, ys, edges[0], edges[-1], factor) for factor in (0.5, 1.0, 2.0)]
    middle = (top + bottom) / 2.0
    turned = f' transform="rotate(-90 {left - 64.0:.1f} {middle:.1f})"'
    parts.append(text(left - 64.0, middle, y.label, colour=GREY, anchor="middle", more=turned))
    parts.append(text(left + _SQUARE / 2.0, bottom + BOTTOM - 8.0, x.label, colour=GREY, anchor="middle"))
    return svg_document(title, bottom + BOTTOM, "".join(parts))


def _equal(xs: Scale, ys: Scale, low: float, high: float, factor: float) -> str:
    """The line y = factor x within the square."""
    begin, end = max(low, low / factor), min(high, high / factor)
    if begin >= end:
        return ""
    dash = "" if factor == 1.0 else ' stroke-dasharray="2 3"'
    return (
        f'<path d="M{xs.at(begin):.1f} {ys.at(factor * begin):.1f}L{xs.at(end):.1f} {ys.at(factor * end):.1f}" '
        f'stroke="{INK}"{dash}/>\n'
    )
