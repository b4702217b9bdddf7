"""Signs that a server is faulty, found in what its attempts do: one hangs, or different programs fail. No clock, no I/O.

Neither proves a fault: a program may hang or fail by itself. So a server is named only where the program is not the likelier
cause.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

Server = TypeVar("Server", bound=Hashable)
Attempt = TypeVar("Attempt", bound=Hashable)

OUTCOMES_MAX = 3
"""Largest number of failures in a reason."""


class Sign(StrEnum):
    """Kinds of signs."""

    XID = "xid"
    """The driver has reported an error of a GPU that programs do not cause."""
    ECC = "ecc"
    """The memory of a GPU has had errors that could not be corrected."""
    GPU_LOST = "gpu_lost"
    """A GPU no longer answers."""
    HANG = "hang"
    """An attempt has stopped making progress."""
    FAILURES = "failures"
    """Different programs have failed on the server."""


class Program(NamedTuple):
    """What fails by itself on any server: the jobs of one user with one name, all elements of an array included."""

    user: str
    name: str


class FailurePattern(Generic[Server]):
    """Finds servers on which ``programs_max`` different programs have failed within ``window_s`` and none has succeeded since.

    A program that fails again counts once. A success shows that the server works, and begins the count anew.
    """

    def __init__(self, programs_max: int, window_s: float) -> None:
        self._programs_max = programs_max
        self._window_s = window_s
        self._failed: dict[Server, dict[Program, tuple[float, str]]] = {}

    def failed(self, server: Server, program: Program, at_s: float, how: str) -> str | None:
        """Note a failure; returns the reason if the server is conspicuous now. The count then begins anew. O(1) amortized.

        The reason names no job and no user: users of other projects see it.
        """
        programs = self._failed.setdefault(server, {})
        programs.pop(program, None)
        programs[program] = (at_s, how)
        # The oldest are first, as a program that fails again is moved to the end.
        while (oldest := next(iter(programs))) != program and programs[oldest][0] < at_s - self._window_s:
            del programs[oldest]
        if len(programs) < self._programs_max:
            return None
        del self._failed[server]
        last = ", ".join([why for _, why in programs.values()][-OUTCOMES_MAX:])
        return f"{len(programs)} programs failed within {self._window_s:g} s, the last of them: {last}"

    def succeeded(self, server: Server) -> None:
        """Note a success."""
        self._failed.pop(server, None)


class Hang(NamedTuple, Generic[Attempt]):
    """An attempt that has made no progress for ``silent_s``; ``usual_s`` is its mean time between two reports of progress."""

    attempt: Attempt
    iteration: float
    silent_s: float
    usual_s: float

    @property
    def reason(self) -> str:
        """One clause with the numbers. It names no job: users of other projects see it."""
        return (
            f"an attempt has been at iteration {self.iteration:g} for {self.silent_s:.0f} s; "
            f"it usually reports progress every {self.usual_s:.3g} s"
        )


@dataclass(slots=True)
class _Course:
    """The reports of one attempt that showed progress. ``complete``: nothing more is expected."""

    first_s: float
    last_s: float
    iteration: float
    steps: int = 0
    complete: bool = False
    told: bool = False


class HangWatch(Generic[Attempt]):
    """Finds attempts without progress for ``factor`` times their usual time, and for ``least_s`` at least.

    The usual time is the mean time between reports that show progress: a program may report every iteration or every thousandth.
    An attempt is judged after :data:`STEPS_MIN` such times, and so never if it reports no progress.
    """

    STEPS_MIN = 3

    def __init__(self, factor: float, least_s: float) -> None:
        self._factor = factor
        self._least_s = least_s
        self._courses: dict[Attempt, _Course] = {}

    def progressed(self, attempt: Attempt, iteration: float, total: float | None, at_s: float) -> None:
        """Note a report of progress. One without a new iteration shows none."""
        course = self._courses.get(attempt)
        if course is None:
            course = self._courses[attempt] = _Course(at_s, at_s, iteration)
        elif iteration > course.iteration:
            course.iteration, course.last_s, course.told = iteration, max(at_s, course.last_s), False
            course.steps += 1
        # After its last iteration a program may evaluate and save for as long as it wants.
        course.complete = total is not None and iteration >= total

    def ended(self, attempts: Iterable[Attempt]) -> None:
        """Forget attempts."""
        for attempt in attempts:
            self._courses.pop(attempt, None)

    def repeat(self, attempts: Iterable[Attempt]) -> None:
        """Report these hangs once more."""
        for attempt in attempts:
            if attempt in self._courses:
                self._courses[attempt].told = False

    def hangs(self, attempt: Attempt) -> bool:
        """Whether a hang of the attempt was reported, and it has made no progress since."""
        course = self._courses.get(attempt)
        return course is not None and course.told

    def hanging(self, now_s: float) -> list[Hang[Attempt]]:
        """Attempts that hang now, each once until it makes progress again. O(attempts that report progress)."""
        found = []
        for attempt, course in self._courses.items():
            if course.told or course.complete or course.steps < self.STEPS_MIN:
                continue
            usual_s = (course.last_s - course.first_s) / course.steps
            silent_s = now_s - course.last_s
            if silent_s > max(self._factor * usual_s, self._least_s):
                course.told = True
                found.append(Hang(attempt, course.iteration, silent_s, usual_s))
        return found
