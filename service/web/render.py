"""Templates: every value is escaped, and text of users is isolated so that it cannot turn the text around it."""

import math
from datetime import datetime
from functools import partial
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from service.domain.counts import count_of, gpu_hours
from service.domain.duration import words_of

NOTHING: Final = "–"
"""Shown where there is no value."""

_NOTHING: Final = Markup('<span class="muted">–</span>')

TEXT_SHOWN_MAX: Final = 200
"""Letters of a name in a table; the title has more."""

TITLE_SHOWN_MAX: Final = 2000


def environment() -> Environment:
    """The templates of this package. A missing value is an error, not an empty place."""
    found = Environment(
        loader=PackageLoader("service.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        # Templates are part of the program: without this, each page would look whether its files have changed.
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "text": text,
        "when": when,
        "ago": partial(when, form="ago"),
        "since": partial(when, form="since"),
        "duration": duration,
        "seconds": seconds,
        "number": number,
        "gpu_hours": gpu_hours,
        "count_of": count_of,
        "percent": percent,
    }
    found.tests["before"] = before
    return found


def before(at: str, now_s: float) -> bool:
    """Whether a time of the API has passed."""
    return datetime.fromisoformat(at).timestamp() < now_s


def text(value: object, most: int = TEXT_SHOWN_MAX) -> Markup:
    """Text of a user on one line: control characters visible, its direction isolated, its length limited."""
    if value is None or value == "":
        return _NOTHING
    # One letter more than is shown.
    given = str(value)[: TITLE_SHOWN_MAX + 1]
    whole = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in given)
    if len(whole) <= most:
        return Markup("<bdi>{}</bdi>").format(whole)
    return Markup('<bdi title="{}">{}…</bdi>').format(whole[:TITLE_SHOWN_MAX], whole[:most])


def when(value: str | None, form: str = "full") -> Markup:
    """A time of the API. Without scripts it is UTC; scripts show it in the reader's zone."""
    if value is None:
        return _NOTHING
    shown = datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-as="{}">{}</time>').format(value, form, shown)


def duration(seconds: float | None) -> str:
    """As people write it: ``5 d 12 h``."""
    return NOTHING if seconds is None or not math.isfinite(seconds) else words_of(seconds)


def seconds(value: float | None) -> str:
    """A short time, such as that of an iteration: three digits of s, ms or µs."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:,.3g} {unit}" if value < 1000 * size else duration(value)
    return "0 s" if value == 0 else "under 1 µs"


def number(value: float | None, digits: int = 0) -> str:
    """With thousands separated."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def percent(part: float | None, whole: float = 1.0) -> str:
    """``part`` of ``whole``."""
    return NOTHING if part is None or not math.isfinite(part) or not whole else f"{100 * part / whole:.0f}%"
