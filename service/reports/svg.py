"""The base of all charts: scales with round ticks, text, markers, and a drawing with legend and axes, as plain SVG text.

No dependency and no script. Styles differ in colour (Okabe and Ito's palette), dash and marker at once, so that charts are
readable in grey and by the colour-blind. Equal input gives equal bytes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

from service.domain.duration import words_of

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b6b6b", "#000000")
_DASHES = ("", "7 3", "2 2", "9 3 2 3", "4 4", "12 3", "1 3", "6 2 1 2 1 2")
_MARKERS = ("circle", "square", "triangle", "diamond", "ring", "cross", "plus", "bar")

WIDTH = 680.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 18.0, 34.0, 46.0
_LEGEND_LINE = 18.0
ROW = 26.0
"""Height of a row with a label."""
CHARACTER = 6.6
"""Width of a character of the 12-pixel font, rounded up."""
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
"""Round times on a logarithmic axis: coarse ones, and fine ones for a short axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis. ``kind``: number, seconds (shown in minutes, hours, days) or ratio (shown in percent)."""

    label: str
    kind: str = "number"
    log: bool = False
    least: float | None = None
    most: float | None = None
    named: tuple[tuple[float, str], ...] = ()
    """Places beyond the numbers that have a name instead, ascending."""


_FLAT = 1e-9
"""Values that differ by less than this share are one value: the ticks between them would all read the same."""


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


def _short(value: float) -> str:
    """At most three significant digits; thousands with commas."""
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _ticks(axis: Axis, least: float, most: float) -> list[tuple[float, str]]:
    form: Callable[[float], str] = {"seconds": words_of, "ratio": lambda value: f"{100.0 * value:.3g}%"}.get(
        axis.kind, _short
    )
    if axis.log:
        return [(value, form(value)) for value in _log_ticks(axis, least, most)]
    if axis.kind == "seconds":
        # One unit along the axis: "1.25 d" between "20 h" and "40 h" is hard to read.
        sizes = ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min"))
        size, unit = next((pair for pair in sizes if most - least >= 2.0 * pair[0]), (1.0, "s"))
        return [(size * tick, f"{_short(tick)} {unit}") for tick in _round_ticks(least / size, most / size)]
    return [(value, form(value)) for value in _round_ticks(least, most)]


def _log_ticks(axis: Axis, least: float, most: float) -> list[float]:
    if axis.kind == "seconds":
        choices: Sequence[Sequence[float]] = _DURATION_TICKS_S
    else:
        powers = [10.0**power for power in range(floor(log10(least)), floor(log10(most)) + 1)]
        choices = (powers, [factor * power for power in powers for factor in (1.0, 2.0, 5.0)])
    values: list[float] = []
    for choice in choices:
        if len(values) < 3:
            values = [tick for tick in choice if least <= tick <= most]
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


def rectangle(x: float, y: float, width: float, height: float, look: str, title: str = "") -> str:
    """A rectangle; ``look`` are attributes, and ``title`` is shown under the pointer."""
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {look}>{inner}</rect>\n'


def left_of_labels(labels: Iterable[str]) -> float:
    """Where a chart begins that has these labels at its left."""
    return min(260.0, max(LEFT, 16.0 + CHARACTER * max(map(len, labels), default=0)))


class Drawing:
    """The frame of a chart: the legend above it, axes with grid lines and numbers, and a title for screen readers.

    ``top`` is where the chart begins below the legend. Parts are drawn in the order in which they are added.
    """

    def __init__(self, title: str, legend: Sequence[tuple[str, Callable[[float, float], str]]] = ()) -> None:
        """``legend``: labels, each with a function that draws its symbol, 24 pixels wide, from a pixel to the right."""
        self._title = title
        self._parts: list[str] = []
        across, down = 12.0, 20.0
        for label, symbol in legend:
            wide = 38.0 + CHARACTER * len(label)
            if across + wide > WIDTH and across > 12.0:
                across, down = 12.0, down + _LEGEND_LINE
            self.add(symbol(across, down - 4.0), text(across + 30.0, down, label))
            across += wide + 10.0
        self.top = down + 14.0

    def add(self, *parts: str) -> None:
        """Draw these next."""
        self._parts += parts

    def columns(self, xs: Scale, top: float, bottom: float, *, numbers: bool = True) -> None:
        """Grid lines and numbers of the x axis; numbers that would overlap are left out."""
        free_from = 0.0
        for value, words in xs.ticks:
            across = xs.at(value)
            self.add(f'<path d="M{across:.1f} {top:.1f}V{bottom:.1f}" stroke="{GRID}"/>\n')
            half = CHARACTER * len(words) / 2.0
            if numbers and across - half >= free_from and across + half <= WIDTH:
                self.add(text(across, bottom + 16.0, words, anchor="middle"))
                free_from = across + half + 6.0

    def rows(self, ys: Scale, label: str, left: float, right: float, middle: float, label_at: float) -> None:
        """Grid lines and numbers of the y axis, and its label, turned, with its centre at (``label_at``, ``middle``)."""
        for value, words in ys.ticks:
            down = ys.at(value)
            self.add(f'<path d="M{left:.1f} {down:.1f}H{right:.1f}" stroke="{GRID}"/>\n')
            self.add(text(left - 6.0, down + 4.0, words, anchor="end"))
        turned = f' transform="rotate(-90 {label_at:.1f} {middle:.1f})"'
        self.add(text(label_at, middle, label, colour=GREY, anchor="middle", more=turned))

    def svg(self, height: float, x_label: str = "", x_middle: float = 0.0) -> str:
        """The whole picture, with the label of the x axis at the bottom."""
        if x_label:
            self.add(text(x_middle, height - 8.0, x_label, colour=GREY, anchor="middle"))
        return (
            f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}" '
            f'height="{height:.0f}" role="img" font-family="system-ui, DejaVu Sans, sans-serif" font-size="12">'
            f"<title>{escape(self._title)}</title>\n"
            f'<rect width="100%" height="100%" fill="#fff"/>\n{"".join(self._parts)}</svg>\n'
        )


def standalone(svg: str) -> str:
    """A chart as a file of its own, which needs the name space that a page implies."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
