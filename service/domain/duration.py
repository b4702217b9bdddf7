"""Parses and formats durations: ``90``, ``2h``, ``1d12h``, ``30 min``, ``02:30:00`` or ``1-12:00:00``."""

import math
import re

PERIOD_S_MIN = 0.1
"""Of a walltime, and between checkpoints, of a job that is submitted: the service looks at its jobs a few times a second, so a
shorter time is a mistake. Jobs of traces may have any."""

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
    """Seconds as people write them: ``0.4 s``, ``42 s``, ``3 min 20 s``, ``3 h 05 min``, ``5 d 12 h``; at most two units.

    The second unit has two digits and is left out where it is zero. Below 10 s there is one decimal.
    """
    if round(seconds, 1) < 0.0:
        return f"-{words_of(-seconds)}"
    if seconds < 59.5:
        return f"{abs(round(seconds, 1 if seconds < 9.95 else 0)):g} s"
    if seconds < 3599.5:
        return _two_units(round(seconds), "min", "s", 60)
    if seconds < 86_370.0:
        return _two_units(round(seconds / 60.0), "h", "min", 60)
    return _two_units(round(seconds / 3600.0), "d", "h", 24)


def _two_units(parts: int, unit: str, part: str, parts_of_unit: int) -> str:
    whole, rest = divmod(parts, parts_of_unit)
    return f"{whole:,} {unit} {rest:02d} {part}" if rest else f"{whole:,} {unit}"
