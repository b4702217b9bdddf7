"""The progress that a program reports: lines of JSON in a file that the program owns, so nothing in it is trusted.

Invalid lines are counted by kind and ignored, never an error: they cost the program its own progress and nothing else.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from service.runtime.untrusted import open_below

LINE_BYTES_MAX = 64 * 1024
LINES_PER_S_MAX = 10.0
"""Lines beyond this are ignored, the oldest of a batch first, because the newest matters most."""
_BURST_LINES = 10.0
_READ_BYTES_MAX = 1024 * 1024
_COUNT_MAX = 2.0**53
"""Limit of the iterations: a float cannot represent all larger whole numbers."""


class Ignored(StrEnum):
    """Why a line was ignored."""

    TOO_LONG = "too_long"
    TOO_FAST = "too_fast"
    MALFORMED = "malformed"
    NOT_FINITE = "not_finite"
    NEGATIVE = "negative"
    FALLING = "falling"
    NOT_A_FILE = "not_a_file"
    SKIPPED = "skipped"
    """More was written between two readings than is read at once."""


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """One line's numbers, in iterations. ``checkpoint_iteration`` is complete on disk.

    ``input_s``: seconds that the program has waited for input since it started.
    """

    iteration: float
    total_iterations: float | None = None
    checkpoint_iteration: float | None = None
    loss: float | None = None
    input_s: float | None = None


def parse_line(line: bytes) -> ProgressLine | Ignored:
    """The numbers of one line, or why it is ignored. Never raises."""
    if len(line) > LINE_BYTES_MAX:
        return Ignored.TOO_LONG
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Ignored.MALFORMED
    if not isinstance(value, dict):
        return Ignored.MALFORMED
    return check_line(value)


def check_line(value: Mapping[str, Any]) -> ProgressLine | Ignored:
    """As :func:`parse_line`, for a parsed line. Other keys (metrics) belong to the program and may hold anything."""
    numbers: list[float | None] = []
    for name in ("iteration", "total_iterations", "checkpoint_iteration"):
        number = value.get(name)
        if number is None:
            numbers.append(None)
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            return Ignored.MALFORMED
        if (
            not -_COUNT_MAX <= number <= _COUNT_MAX
        ):  # NaN fails every comparison, and an int may be too large for a float
            return Ignored.NOT_FINITE
        if number < 0:
            return Ignored.NEGATIVE
        numbers.append(float(number))
    iteration, total, checkpoint = numbers
    if iteration is None or (checkpoint is not None and checkpoint > iteration):
        return Ignored.MALFORMED
    return ProgressLine(iteration, total, checkpoint, _finite(value.get("loss")), _waited(value.get("input_s")))


def _waited(value: object) -> float | None:
    """Seconds of waiting for input. None if that is not a finite number from 0 on; the line is accepted in any case."""
    number = _finite(value)
    return number if number is not None and number >= 0.0 else None


def _finite(value: object) -> float | None:
    """A number that decides nothing, such as the loss. None if it is not finite; the line is accepted in any case."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


@dataclass(slots=True)
class Progress:
    """The progress of an attempt so far."""

    iteration: float | None = None
    total_iterations: float | None = None
    checkpoint_iteration: float | None = None
    loss: float | None = None
    input_s: float | None = None
    accepted: int = 0
    ignored: Counter[Ignored] = field(default_factory=Counter)

    def take(self, line: ProgressLine | Ignored) -> bool:
        """Accept a line unless a number falls; True if it was accepted."""
        if isinstance(line, ProgressLine) and self._falls(line):
            line = Ignored.FALLING
        if isinstance(line, Ignored):
            self.ignored[line] += 1
            return False
        self.iteration = line.iteration
        if line.total_iterations is not None:
            self.total_iterations = line.total_iterations
        if line.checkpoint_iteration is not None:
            self.checkpoint_iteration = line.checkpoint_iteration
        if line.loss is not None:
            self.loss = line.loss
        if line.input_s is not None:
            self.input_s = line.input_s
        self.accepted += 1
        return True

    def _falls(self, line: ProgressLine) -> bool:
        if self.iteration is not None and line.iteration < self.iteration:
            return True
        earlier, checkpoint = self.checkpoint_iteration, line.checkpoint_iteration
        return earlier is not None and checkpoint is not None and checkpoint < earlier


class RateLimit:
    """At most :data:`LINES_PER_S_MAX` lines per second, and a small burst after a pause."""

    def __init__(self, since_s: float) -> None:
        self._at_s = since_s
        self._carry = _BURST_LINES

    def admit(self, lines: int, now_s: float) -> int:
        """How many of ``lines`` new lines may pass at ``now_s``."""
        elapsed_s = max(0.0, now_s - self._at_s)
        allowed = self._carry + elapsed_s * LINES_PER_S_MAX
        self._at_s = max(self._at_s, now_s)
        passed = min(lines, math.floor(allowed))
        self._carry = min(_BURST_LINES, allowed - passed)
        return passed


class ProgressFile:
    """Follows one progress file. Each reading costs one open and reads what is new, at most 1 MiB."""

    def __init__(self, path: Path, since_s: float) -> None:
        self.progress = Progress()
        self._path = path
        self._limit = RateLimit(since_s)
        self._file = -1
        self._offset = 0
        self._partial = b""
        self._discarding = False
        self._waiting: list[bytes] = []

    def read(self, now_s: float, final: bool = False) -> bool:
        """Read new lines; True if progress changed. ``final``: no more lines follow, so the newest one is accepted whatever
        the rate was.

        The newest of the lines that came too fast waits until the rate allows it, unless a newer one comes.
        """
        lines = self._waiting + self._new_lines()
        if not lines:
            return False
        passed = max(self._limit.admit(len(lines), now_s), 1 if final else 0)
        self._waiting = [] if passed else lines[-1:]
        if dropped := len(lines) - passed - len(self._waiting):
            self.progress.ignored[Ignored.TOO_FAST] += dropped
        changed = False
        for line in lines[len(lines) - passed :]:
            changed = self.progress.take(parse_line(line)) or changed
        return changed

    def _new_lines(self) -> list[bytes]:
        try:
            descriptor = open_below(self._path.parent, self._path.name)
        except FileNotFoundError:
            return []
        except OSError:
            self.progress.ignored[Ignored.NOT_A_FILE] += 1
            return []
        try:
            return self._split(self._new_bytes(descriptor))
        finally:
            os.close(descriptor)

    def _new_bytes(self, descriptor: int) -> bytes:
        status = os.fstat(descriptor)
        if status.st_ino != self._file or status.st_size < self._offset:
            # Another file, or a truncated one: read it from its beginning.
            self._file, self._offset, self._partial, self._discarding = status.st_ino, 0, b"", False
        if status.st_size - self._offset > _READ_BYTES_MAX:
            self.progress.ignored[Ignored.SKIPPED] += 1
            self._offset = status.st_size - _READ_BYTES_MAX
            self._partial, self._discarding = b"", True
        data = os.pread(descriptor, status.st_size - self._offset, self._offset)
        self._offset += len(data)
        return data

    def _split(self, data: bytes) -> list[bytes]:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines and self._discarding:
            # The rest of a line whose beginning was discarded.
            self._discarding = False
            del lines[0]
        if len(self._partial) > LINE_BYTES_MAX:
            self.progress.ignored[Ignored.TOO_LONG] += not self._discarding
            self._partial, self._discarding = b"", True
        return [line for line in lines if line.strip()]
