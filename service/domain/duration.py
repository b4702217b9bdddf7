"""Parses and formats durations: ``90``, ``2h``, ``1d12h``, ``30 min``, ``02:30:00`` or ``1-12:00:00``."""

import math
import re

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)\s*")
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):([0-5]\d):([0-5]\d)")


class DurationError(ValueError):
    """The text is not a duration. The message is one line."""


def seconds_of(text: str) -> float:
    """Seconds of a number, of numbers with units (``2h30m``), or of ``[DAYS-]HH:MM:SS``. Raises :class:`DurationError`."""
    plain = text.strip()
    clock = _CLOCK.fullmatch(plain)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return days * 86_400.0 + hours * 3600.0 + minutes * 60.0 + seconds
    parts = _PART.findall(plain)
    if parts and _PART.sub("", plain) == "":
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    try:
        value = float(plain)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DurationError(f"{text!r} is not a duration; write seconds, 2h, 1d12h, 30min or HH:MM:SS")
    return value


def words_of(seconds: float) -> str:
    """Seconds in at most two units: ``45 s``, ``12 min``, ``2 h 10 min``, ``3 d 4 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        hours, rest = divmod(minutes, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
