"""What charts are made of: scales with ticks that a person would choose, words, markers and legends, as plain SVG text.

No dependency, no script, readable in grey and by the colour-blind: styles differ by colour (Okabe and Ito's palette), dash and
marker at once. Equal input gives equal bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b6b6b", "#000000")
_DASHES = ("", "7 3", "2 2", "9 3 2 3", "4 4", "12 3", "1 3", "6 2 1 2 1 2")
_MARKERS = ("circle", "square", "triangle", "diamond", "ring", "cross", "plus", "bar")

WIDTH = 680.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 18.0, 34.0, 46.0
_LEGEND_LINE = 18.0
CHARACTER = 6.6
"""Width of a character of the legend's 12-pixel font, on the generous side."""
GREY, GRID, INK = "#555555", "#dddddd", "#1a1a1a"

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0
_DURATION_TICKS_S: tuple[tuple[float, ...], ...] = (
    (1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36e3, 86400.0, 864e3, 864e4, 864e5),
    (
        *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
        *(_MINUTE_S * count for count in (1, 2, 5, 10, 20, 30)),
        *(_HOUR_S * count for count in (1, 2, 3, 6, 12)),
        *(_DAY_S * count for count in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    ),
)
"""Times on a logarithmic axis that a person would choose: coarse ones, and fine ones for a short axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis. ``kind``: number, seconds (told in minutes, hours, days) or ratio (told in percent)."""

    label: str
    kind: str = "number"
    log: bool = False
    least: float | None = None
    most: float | None = None
    named: tuple[tuple[float, str], ...] = ()
    """Places beyond the numbers that have a name instead, ascending."""


_FLAT = 1e-9
"""Values that differ by less than this share of themselves are one value: ticks between them would all read the same."""


class Scale:
    """From values to pixels, with its ticks."""

    def __init__(self, axis: Axis, values: Sequence[float], low: float, high: float) -> None:
        usable = [value for value in values if isfinite(value) and (value > 0.0 or not axis.log)]
        least = axis.least if axis.least is not None else min(usable, default=0.0)
        most = axis.most if axis.most is not None else max(usable, default=1.0)
        most = axis.named[-1][0] if axis.named else most
        if axis.log:
            least = max(least, 1e-9)
            most = max(most, least * 1.5)
        elif most - least <= _FLAT * max(_FLAT, abs(least), abs(most)):
            most = least + max(1.0, abs(least))
        self._low, self._high, self._log = low, high, axis.log
        self._from, self._to = self._plain(least), self._plain(most)
        numbers = _ticks(axis, least, most)
        if axis.named:
            numbers = [tick for tick in numbers if tick[0] < axis.named[0][0]]
        self.ticks = [*numbers, *axis.named]

    def _plain(self, value: float) -> float:
        return log10(max(value, 1e-12)) if self._log else value

    def at(self, value: float) -> float:
        """The pixel, never outside the chart."""
        share = (self._plain(value) - self._from) / (self._to - self._from)
        return self._low + min(1.0, max(0.0, share)) * (self._high - self._low)


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would choose: ``45 s``, ``12 min``, ``3.5 h``, ``2 d``."""
    for unit, size in (("d", _DAY_S), ("h", _HOUR_S), ("min", _MINUTE_S)):
        if abs(seconds) >= size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    """At most three digits that matter; thousands with commas."""
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ticks(axis: Axis, least: float, most: float) -> list[tuple[float, str]]:
    tell: Callable[[float], str] = {"seconds": duration, "ratio": lambda value: f"{100.0 * value:.3g}%"}.get(
        axis.kind, _short
    )
    if axis.log:
        return [(value, tell(value)) for value in _log_ticks(axis, least, most)]
    if axis.kind == "seconds":
        # One unit along the axis: "1.25 d" between "20 h" and "40 h" is hard to read.
        sizes = ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min"))
        size, unit = next((pair for pair in sizes if most - least >= 2.0 * pair[0]), (1.0, "s"))
        return [(size * tick, f"{_short(tick)} {unit}") for tick in _round_ticks(least / size, most / size)]
    return [(value, tell(value)) for value in _round_ticks(least, most)]


def _log_ticks(axis: Axis, least: float, most: float) -> list[float]:
    if axis.kind == "seconds":
        ladders: Sequence[Sequence[float]] = _DURATION_TICKS_S
    else:
        powers = [10.0**power for power in range(floor(log10(least)), floor(log10(most)) + 1)]
        ladders = (powers, [factor * power for power in powers for factor in (1.0, 2.0, 5.0)])
    values: list[float] = []
    for ladder in ladders:
        if len(values) < 3:
            values = [tick for tick in ladder if least <= tick <= most]
    if len(values) < 2:
        values = [value for value in _round_ticks(least, most) if value > 0.0]
    return values


def _round_ticks(least: float, most: float) -> list[float]:
    """About five multiples of 1, 2 or 5 times a power of ten."""
    raw = (most - least) / 5.0
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= raw * 0.999)
    return [step * count for count in range(ceil(least / step - 1e-9), floor(most / step + 1e-9) + 1)]


def look(style: int) -> tuple[str, str, str]:
    """Colour, dash and marker of a style: each differs between the first eight, no two of the first 64 are alike."""
    turn = (style + style // len(PALETTE)) % len(PALETTE)
    return PALETTE[style % len(PALETTE)], _DASHES[turn], _MARKERS[turn]


def stroke(style: int, wide: float = 2.0) -> str:
    """The attributes of a line in a style."""
    colour, dash, _ = look(style)
    return f'stroke="{colour}" stroke-width="{wide:g}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def legend(names: Sequence[tuple[str, int]], *, lines: bool) -> tuple[str, float]:
    """The legend above the chart, wrapped, and where the chart begins."""
    parts: list[str] = []
    across, down = 12.0, 20.0
    for label, style in names:
        wide = 38.0 + CHARACTER * len(label)
        if across + wide > WIDTH and across > 12.0:
            across, down = 12.0, down + _LEGEND_LINE
        if lines:
            parts.append(f'<path d="M{across:.1f} {down - 4.0:.1f}h24" {stroke(style)}/>\n')
        else:
            parts.append(marker(across + 14.0, down - 4.0, style))
        parts.append(text(across + 30.0, down, label))
        across += wide + 10.0
    return "".join(parts), down + 14.0


def key_legend(keys: Sequence[tuple[str, str]]) -> tuple[str, float]:
    """A legend of coloured squares, (label, colour), wrapped, and where the chart begins."""
    parts: list[str] = []
    across, down = 12.0, 20.0
    for label, colour in keys:
        wide = 34.0 + CHARACTER * len(label)
        if across + wide > WIDTH and across > 12.0:
            across, down = 12.0, down + _LEGEND_LINE
        parts.append(
            f'<rect x="{across:.1f}" y="{down - 10.0:.1f}" width="14" height="12" fill="{colour}" stroke="{GREY}"/>\n'
        )
        parts.append(text(across + 20.0, down, label))
        across += wide
    return "".join(parts), down + 14.0


def verticals(xs: Scale, top: float, bottom: float, *, numbers: bool = True) -> list[str]:
    """Grid lines and numbers of the x axis; numbers that would run into each other are left out."""
    parts: list[str] = []
    free_from = 0.0
    for value, words in xs.ticks:
        across = xs.at(value)
        parts.append(f'<path d="M{across:.1f} {top:.1f}V{bottom:.1f}" stroke="{GRID}"/>\n')
        half = CHARACTER * len(words) / 2.0
        if numbers and across - half >= free_from and across + half <= WIDTH:
            parts.append(text(across, bottom + 16.0, words, anchor="middle"))
            free_from = across + half + 6.0
    return parts


def marker(across: float, down: float, style: int) -> str:
    """A marker around a pixel."""
    colour, _, shape = look(style)
    x, y = across, down
    if shape in ("circle", "ring"):
        fill = colour if shape == "circle" else "#fff"
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>\n'
    path = {
        "square": f"M{x - 5:.1f} {y - 5:.1f}h10v10h-10z",
        "triangle": f"M{x:.1f} {y - 6:.1f}l6 11h-12z",
        "diamond": f"M{x:.1f} {y - 7:.1f}l6 7l-6 7l-6 -7z",
        "cross": f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10",
        "plus": f"M{x - 6:.1f} {y:.1f}h12m-6 -6v12",
        "bar": f"M{x:.1f} {y - 7:.1f}v14",
    }[shape]
    fill = colour if shape in ("square", "triangle", "diamond") else "none"
    return f'<path d="{path}" fill="{fill}" stroke="{colour}" stroke-width="2"/>\n'


def cut(text: str, most: int) -> str:
    """The text, or its beginning."""
    return text if len(text) <= most else text[: most - 1] + "…"


def text(x: float, y: float, text: str, *, colour: str = INK, anchor: str = "start", more: str = "") -> str:
    """A line of text; ``more`` are attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{more}>{escape(text)}</text>\n'


def svg_document(title: str, height: float, inner: str) -> str:
    """A picture that tells its subject to a screen reader; :func:`standalone` makes a file of it."""
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}" '
        f'height="{height:.0f}" role="img" font-family="system-ui, DejaVu Sans, sans-serif" font-size="12">'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n{inner}</svg>\n'
    )


def standalone(svg: str) -> str:
    """A chart as a file of its own, which needs the name space that a page implies."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
